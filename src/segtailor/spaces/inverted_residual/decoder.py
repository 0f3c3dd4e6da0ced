"""The two decoders: LR-ASPP (Small, Large) and ASPP with grouped convolutions (XLarge).

Both read the last feature map and one earlier block output, and give logits at the latter's size.
"""

from __future__ import annotations

from segtailor.core.plan import PlanBuilder
from segtailor.ops import Concat, Conv, Resize, Sum
from segtailor.ops.attention import Gate
from segtailor.ops.pooling import GlobalMean, WindowPool

POINT = Conv(kernel=1)
LINEAR = Conv(kernel=1, norm=False, bias=True, activation="none")
DILATIONS = (6, 12, 18)


def lr_aspp(build: PlanBuilder, last: str, low: str, *, channels: int, classes: int) -> str:
    """Gate the last map by its own windowed means, then add the logits of both maps; return the output."""
    features = build.add("decoder_features", POINT, last, channels=channels)
    window = build.add("decoder_window", WindowPool(), last)
    attention = build.add(
        "decoder_attention",
        Conv(kernel=1, norm=False, bias=True, activation="sigmoid"),
        window,
        channels=channels,
    )
    gated = build.add("decoder_gated", Gate(align_corners=False), features, attention)
    resized = build.add("decoder_resized", Resize(align_corners=False), gated, low)
    high = build.add("decoder_high", LINEAR, resized, channels=classes)
    detail = build.add("decoder_low", LINEAR, low, channels=classes)
    return build.add("head", Sum(), high, detail)


def aspp(build: PlanBuilder, last: str, low: str, *, channels: int, classes: int) -> str:
    """Join four fields of view and the mean of the last map, refine with the low map; return the output."""
    views = [build.add("decoder_point", POINT, last, channels=channels)]
    for dilation in DILATIONS:
        # "Fully depthwise" in the paper: as many groups as outputs, so each output reads two of the 320 inputs.
        op = Conv(kernel=3, dilation=dilation, groups=channels)
        views.append(build.add(f"decoder_dilated{dilation}", op, last, channels=channels))
    views.append(build.add("decoder_mean", GlobalMean(), last))
    joined = _concat(build, "decoder_joined", views, Concat())
    fused = build.add("decoder_fused", POINT, joined, channels=channels)
    detail = build.add("decoder_low", LINEAR, low)
    merged = _concat(build, "decoder_merged", [fused, detail], Concat(like=1, align_corners=True))
    refined = build.add("decoder_refined", Conv(kernel=3, groups=0), merged)
    return build.add("head", LINEAR, refined, channels=classes)


def _concat(build: PlanBuilder, name: str, maps: list[str], op: Concat) -> str:
    return build.add(name, op, *maps, channels=sum(build.shape(source).channels for source in maps))
