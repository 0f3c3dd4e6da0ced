"""LR-ASPP on MobileNetV3-Large (Howard et al.: Searching for MobileNetV3, ICCV 2019; Tables 1 and 7, section 6.4)."""

from __future__ import annotations

from typing import NamedTuple

from segtailor.core.plan import IMAGE, PlanBuilder
from segtailor.ops import Conv, Resize, Sum
from segtailor.ops.attention import Gate, SqueezeExcite
from segtailor.ops.convolutions import Activation
from segtailor.ops.pooling import WindowPool
from segtailor.spaces.handmade.parts import POINT, SCORES

EPS = 1e-3  # of the backbone's norms
HIDDEN = 128  # of the head


class Block(NamedTuple):
    """One inverted residual: kernel, hidden and output width, squeeze-and-excite width, activation, stride."""

    kernel: int
    hidden: int
    outputs: int
    squeeze: int
    activation: Activation
    stride: int
    dilation: int = 1


# Table 1 of the paper; the last three are dilated instead of strided (output stride 16). Squeezed widths are a
# quarter of the hidden one, rounded to a multiple of 8 but never below 90 % of it.
BLOCKS = (
    Block(3, 16, 16, 0, "relu", 1),
    Block(3, 64, 24, 0, "relu", 2),
    Block(3, 72, 24, 0, "relu", 1),
    Block(5, 72, 40, 24, "relu", 2),
    Block(5, 120, 40, 32, "relu", 1),
    Block(5, 120, 40, 32, "relu", 1),
    Block(3, 240, 80, 0, "hardswish", 2),
    Block(3, 200, 80, 0, "hardswish", 1),
    Block(3, 184, 80, 0, "hardswish", 1),
    Block(3, 184, 80, 0, "hardswish", 1),
    Block(3, 480, 112, 120, "hardswish", 1),
    Block(3, 672, 112, 168, "hardswish", 1),
    Block(5, 672, 160, 168, "hardswish", 1, 2),
    Block(5, 960, 160, 240, "hardswish", 1, 2),
    Block(5, 960, 160, 240, "hardswish", 1, 2),
)
LOW = 3  # the block, first at 1/8, whose output the head reads besides the last


def lr_aspp_mobilenet_v3_large(build: PlanBuilder, classes: int) -> dict[str, str]:
    """The classifier's backbone at stride 16, and a head that gates its features by their means; return the output."""
    stem = Conv(activation="hardswish", eps=EPS)
    source = build.add("stem", stem, IMAGE, channels=16, stride=2)
    for index, block in enumerate(BLOCKS):
        source = _inverted(build, f"block{index}", source, block)
    last = build.add("last", Conv(kernel=1, activation="hardswish", eps=EPS), source, channels=960)
    features = build.add("head_features", POINT, last, channels=HIDDEN)
    gate = Conv(kernel=1, norm=False, activation="sigmoid")
    attention = build.add(
        "head_attention", gate, build.add("head_window", WindowPool(), last), channels=HIDDEN
    )
    gated = build.add("head_gated", Gate(align_corners=False), features, attention)
    high = build.add(
        "head_high", SCORES, build.add("head_resized", Resize(), gated, f"block{LOW}"), channels=classes
    )
    low = build.add("head_low", SCORES, f"block{LOW}", channels=classes)
    return {"main": build.add("head", Sum(), high, low)}


def _inverted(build: PlanBuilder, name: str, source: str, block: Block) -> str:
    """Expand, depthwise, squeeze and excite, project; the input is added where shapes agree."""
    inner, shape = source, build.shape(source)
    if block.hidden != shape.channels:
        expand = Conv(kernel=1, activation=block.activation, eps=EPS)
        inner = build.add(f"{name}_expand", expand, inner, channels=block.hidden)
    depth = Conv(kernel=block.kernel, dilation=block.dilation, groups=0, activation=block.activation, eps=EPS)
    inner = build.add(f"{name}_depth", depth, inner, stride=block.stride)
    if block.squeeze:
        inner = build.add(f"{name}_excite", SqueezeExcite(hidden=block.squeeze, gate="hardsigmoid"), inner)
    project = Conv(kernel=1, activation="none", eps=EPS)
    if block.stride > 1 or block.outputs != shape.channels:
        return build.add(name, project, inner, channels=block.outputs)
    body = build.add(f"{name}_project", project, inner, channels=block.outputs)
    return build.add(name, Sum(), body, source)
