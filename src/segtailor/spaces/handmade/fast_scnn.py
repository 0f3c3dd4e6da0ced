"""Fast-SCNN (Poudel, Liwicki, Cipolla: Fast-SCNN: Fast Semantic Segmentation Network, BMVC 2019; Tables 1 and 2)."""

from __future__ import annotations

from segtailor.core.plan import IMAGE, PlanBuilder
from segtailor.ops import Conv, InvertedBottleneck, Resize, Separable, Sum
from segtailor.ops.convolutions import Activate
from segtailor.ops.pooling import BinPool
from segtailor.spaces.handmade.parts import BARE_POINT, CONV, POINT, SCORES, concat, head

BOTTLENECKS = ((64, 2), (96, 2), (128, 1))  # width and stride of three groups of three, expansion 6
BINS = (1, 2, 3, 6)  # of PSPNet's pyramid (Zhao et al. 2017)
AUXILIARY = 32  # hidden width of the train-only heads, which the paper leaves open


def fast_scnn(build: PlanBuilder, classes: int) -> dict[str, str]:
    """Downsample, see the whole at 1/32, fuse with the detail at 1/8, classify; return the outputs."""
    source = build.add("down1", CONV, IMAGE, channels=32, stride=2)
    source = build.add("down2", Separable(), source, channels=48, stride=2)
    detail = source = build.add("down3", Separable(), source, channels=64, stride=2)
    for group, (channels, stride) in enumerate(BOTTLENECKS, start=1):
        for index in range(1, 4):
            name = f"bottleneck{group}_{index}"
            source = build.add(
                name, InvertedBottleneck(), source, channels=channels, stride=stride if index == 1 else 1
            )
    context = _pyramid(build, source)
    fused = _fuse(build, detail, context)
    refined = build.add("refine", Separable(repeats=2), fused)
    return {
        "main": build.add("head", SCORES, refined, channels=classes),
        "aux1": head(build, "aux1", detail, hidden=AUXILIARY, classes=classes),
        "aux2": head(build, "aux2", context, hidden=AUXILIARY, classes=classes),
    }


def _pyramid(build: PlanBuilder, source: str) -> str:
    """Join the map with its means over 1, 2, 3 and 6 bins, each a quarter as wide."""
    channels, maps = build.shape(source).channels, [source]
    for bins in BINS:
        pooled = build.add(f"pyramid_pool{bins}", BinPool(bins=bins), source)
        maps.append(build.add(f"pyramid_conv{bins}", POINT, pooled, channels=channels // len(BINS)))
    return build.add("pyramid", POINT, concat(build, "pyramid_joined", *maps), channels=channels)


def _fuse(build: PlanBuilder, detail: str, context: str) -> str:
    """Bring the context to the detail's size and add both."""
    large = build.add("fuse_resized", Resize(), context, detail)
    spread = build.add("fuse_depthwise", Conv(groups=0, dilation=4), large)
    low = build.add("fuse_low", BARE_POINT, spread, channels=128)
    high = build.add("fuse_high", BARE_POINT, detail, channels=128)
    return build.add("fuse", Activate(), build.add("fuse_sum", Sum(), high, low))
