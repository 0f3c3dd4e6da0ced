"""BiSeNetV2 (Yu, Gao, Wang, Yu, Shen, Sang: BiSeNet V2: Bilateral Network with Guided Aggregation, IJCV 2021; Table 1,
Figures 4 to 6).
"""

from __future__ import annotations

from segtailor.core.plan import IMAGE, PlanBuilder
from segtailor.ops import Conv, MaxPool, Resize, Sum
from segtailor.ops.attention import Gate
from segtailor.ops.convolutions import Activate, Norm
from segtailor.ops.pooling import AveragePool, BinPool
from segtailor.spaces.handmade.parts import BARE, BARE_POINT, CONV, DEPTHWISE, POINT, concat, head

DETAIL = ((64, 2), (64, 3), (128, 3))  # width and number of convolutions per stage, the first of each strided
SEMANTIC = ((32, 2), (64, 2), (128, 4))  # width and number of gather-and-expansion layers, the first strided
EXPANSION = 6
WIDTH = 128  # of both branches where they meet
HIDDEN = 1024  # of the main head
BOOSTER = 128  # hidden width of the train-only heads
WEIGHTS = Conv(kernel=1, norm=False, activation="sigmoid")


def bisenet_v2(build: PlanBuilder, classes: int) -> dict[str, str]:
    """Detail at 1/8 and semantics at 1/32, each guiding the other; return the outputs."""
    detail = IMAGE
    for number, (channels, convs) in enumerate(DETAIL, start=1):
        for index in range(1, convs + 1):
            stride = 2 if index == 1 else 1
            detail = build.add(f"detail{number}_{index}", CONV, detail, channels=channels, stride=stride)
    source = _stem(build)
    boosted = [source]
    for number, (channels, layers) in enumerate(SEMANTIC, start=3):
        source = _gather_down(build, f"semantic{number}_1", source, channels=channels)
        for index in range(2, layers + 1):
            source = _gather(build, f"semantic{number}_{index}", source)
        boosted.append(source)
    fused = _aggregate(build, detail, _embed(build, source))
    outputs = {"main": head(build, "head", fused, hidden=HIDDEN, classes=classes)}
    for number, source in enumerate(boosted, start=1):
        outputs[f"aux{number}"] = head(build, f"aux{number}", source, hidden=BOOSTER, classes=classes)
    return outputs


def _stem(build: PlanBuilder) -> str:
    """Reduce to a quarter of the size in two ways and join them."""
    first = build.add("stem_conv", CONV, IMAGE, channels=16, stride=2)
    narrow = build.add("stem_narrow", POINT, first, channels=8)
    learned = build.add("stem_down", CONV, narrow, channels=16, stride=2)
    pooled = build.add("stem_pool", MaxPool(norm=False), first, stride=2)
    return build.add("stem", CONV, concat(build, "stem_joined", learned, pooled), channels=16)


def _gather(build: PlanBuilder, name: str, source: str) -> str:
    """3x3 convolution, depthwise expansion, projection, and the input added."""
    channels = build.shape(source).channels
    gathered = build.add(f"{name}_gather", CONV, source)
    expanded = build.add(f"{name}_expand", DEPTHWISE, gathered, channels=EXPANSION * channels)
    body = build.add(f"{name}_project", BARE_POINT, expanded, channels=channels)
    return build.add(name, Activate(), build.add(f"{name}_sum", Sum(), body, source))


def _gather_down(build: PlanBuilder, name: str, source: str, *, channels: int) -> str:
    """The same at half the size: two depthwise convolutions, and a separable shortcut."""
    wide = EXPANSION * build.shape(source).channels
    gathered = build.add(f"{name}_gather", CONV, source)
    expanded = build.add(f"{name}_expand", DEPTHWISE, gathered, channels=wide, stride=2)
    mixed = build.add(f"{name}_mix", DEPTHWISE, expanded)
    body = build.add(f"{name}_project", BARE_POINT, mixed, channels=channels)
    passed = build.add(f"{name}_pass", DEPTHWISE, source, stride=2)
    shortcut = build.add(f"{name}_shortcut", BARE_POINT, passed, channels=channels)
    return build.add(name, Activate(), build.add(f"{name}_sum", Sum(), body, shortcut))


def _embed(build: PlanBuilder, source: str) -> str:
    """Add what the mean of the whole map says (context embedding)."""
    mean = build.add("context_norm", Norm(activation="none"), build.add("context_mean", BinPool(), source))
    context = build.add("context_conv", POINT, mean)
    return build.add("context", BARE, build.add("context_sum", Sum(), source, context))


def _aggregate(build: PlanBuilder, detail: str, semantic: str) -> str:
    """Weigh the detail by the semantics at both sizes and add the two (guided aggregation)."""
    kept = build.add("guide_detail_depth", DEPTHWISE, detail)
    kept = build.add("guide_detail", Conv(kernel=1, norm=False, activation="none"), kept)
    small = build.add("guide_small_conv", BARE, detail, stride=2)
    small = build.add("guide_small", AveragePool(), small, stride=2)
    large = build.add("guide_large_conv", BARE, semantic)
    large = build.add("guide_large_resized", Resize(), large, detail)
    large = build.add("guide_large", Activate(activation="sigmoid"), large)
    weights = build.add("guide_weights_depth", DEPTHWISE, semantic)
    weights = build.add("guide_weights", WEIGHTS, weights)
    left = build.add("guide_left", Gate(align_corners=False), kept, large)
    right = build.add("guide_right", Gate(align_corners=False), small, weights)
    return build.add("guide", CONV, build.add("guide_sum", Sum(), left, right), channels=WIDTH)
