"""STDC1-Seg (Fan, Lai, Huang, Wei, Chai, Luo, Wei: Rethinking BiSeNet For Real-time Semantic Segmentation, CVPR 2021;
Tables 1 and 2, Figures 3 and 4). The decoder is that of BiSeNet (Yu et al. 2018).
"""

from __future__ import annotations

from segtailor.core.plan import IMAGE, PlanBuilder
from segtailor.ops import Conv, PooledConv, Resize, Sum
from segtailor.ops.attention import SqueezeExcite
from segtailor.ops.pooling import AveragePool
from segtailor.spaces.handmade.parts import CONV, DEPTHWISE, POINT, concat, head

STAGES = (256, 512, 1024)  # widths; two modules each, the first strided
CONTEXT = 128  # width of the context path
AUXILIARY = 64  # hidden width of the train-only heads
SCORES = Conv(kernel=1, norm=False, activation="none")


def stdc1_seg(build: PlanBuilder, classes: int) -> dict[str, str]:
    """Backbone of dense concatenation modules, context path, fusion with the detail at 1/8; return the outputs."""
    source = build.add("stem", CONV, IMAGE, channels=32, stride=2)
    source = build.add("stem2", CONV, source, channels=64, stride=2)
    features = []
    for number, channels in enumerate(STAGES, start=3):
        source = _module(build, f"stage{number}_1", source, channels=channels, stride=2)
        source = _module(build, f"stage{number}_2", source, channels=channels)
        features.append(source)
    eighth, sixteenth, last = features
    mean = build.add("context_mean", PooledConv(), last, channels=CONTEXT)
    half = _context(build, "context16", last, above=mean, like=sixteenth)
    full = _context(build, "context8", sixteenth, above=half, like=eighth)
    fused = build.add("fuse_conv", POINT, concat(build, "fuse_joined", eighth, full), channels=256)
    fused = build.add("fuse", SqueezeExcite(hidden=64, bias=False, keep=True), fused)
    return {
        "main": head(build, "head", fused, hidden=256, classes=classes, scores=SCORES),
        "aux1": head(build, "aux1", full, hidden=AUXILIARY, classes=classes, scores=SCORES),
        "aux2": head(build, "aux2", half, hidden=AUXILIARY, classes=classes, scores=SCORES),
        "aux3": head(build, "aux3", eighth, hidden=AUXILIARY, classes=classes, scores=SCORES),
    }


def _module(build: PlanBuilder, name: str, source: str, *, channels: int, stride: int = 1) -> str:
    """Four convolutions of falling width, each reading the one before, and all of them joined."""
    first = passed = build.add(f"{name}_conv1", POINT, source, channels=channels // 2)
    if stride > 1:
        passed = build.add(f"{name}_pool", AveragePool(), first, stride=stride)
        first = build.add(f"{name}_down", DEPTHWISE, first, stride=stride)
    second = build.add(f"{name}_conv2", CONV, first, channels=channels // 4)
    third = build.add(f"{name}_conv3", CONV, second, channels=channels // 8)
    fourth = build.add(f"{name}_conv4", CONV, third, channels=channels // 8)
    return concat(build, name, passed, second, third, fourth)


def _context(build: PlanBuilder, name: str, source: str, *, above: str, like: str) -> str:
    """Refine a map by its own mean, add the one above, and bring the sum to the size of the next finer map."""
    narrow = build.add(f"{name}_conv", CONV, source, channels=CONTEXT)
    refined = build.add(f"{name}_refined", SqueezeExcite(bias=False, norm=True), narrow)
    added = build.add(f"{name}_sum", Sum(), refined, above)
    large = build.add(f"{name}_resized", Resize(), added, like)
    return build.add(name, CONV, large)
