"""ResNet-50 (He et al. 2016), the stride of a stage on its first 3x3 convolution. Taps are the four stages."""

from __future__ import annotations

from collections.abc import Iterator

from segtailor.core.plan import IMAGE, PlanBuilder
from segtailor.ops import Conv, MaxPool
from segtailor.ops.blocks import Bottleneck
from segtailor.spaces.decoder_cell.encoders.encoder import Encoder, KeyNames, LayerNames, Tap

DEPTHS = (3, 4, 6, 3)
WIDTHS = (256, 512, 1024, 2048)
STRIDES = (1, 2, 2, 2)
TOTAL_STRIDES = (4, 8, 16, 32)

PARTS = (
    ("body.0", "conv1"),
    ("body.1", "bn1"),
    ("body.3", "conv2"),
    ("body.4", "bn2"),
    ("body.6", "conv3"),
    ("body.7", "bn3"),
    ("shortcut.0", "downsample.0"),
    ("shortcut.1", "downsample.1"),
)


def write(build: PlanBuilder) -> tuple[Tap, ...]:
    """Add the layers; one node per block."""
    stem = build.add("encoder_stem", Conv(kernel=7), IMAGE, channels=64, stride=2)
    source = build.add("encoder_pool", MaxPool(norm=False), stem, stride=2)
    taps = []
    for stage, block in _blocks():
        stride = STRIDES[stage] if block == 0 else 1
        source = build.add(_node(stage, block), Bottleneck(), source, channels=WIDTHS[stage], stride=stride)
        if block == DEPTHS[stage] - 1:
            taps.append(Tap(source, TOTAL_STRIDES[stage]))
    return tuple(taps)


def layouts() -> dict[str, KeyNames]:
    """Return the key layout of torchvision."""
    blocks = [
        LayerNames(_node(stage, block), f"layer{stage + 1}.{block}", PARTS) for stage, block in _blocks()
    ]
    stem = LayerNames("encoder_stem", "", (("conv1", "conv1"), ("norm1", "bn1")))
    return {"": KeyNames(layers=(stem, *blocks), extra=("fc.",))}


def _blocks() -> Iterator[tuple[int, int]]:
    for stage, depth in enumerate(DEPTHS):
        for block in range(depth):
            yield stage, block


def _node(stage: int, block: int) -> str:
    return f"encoder_layer{stage + 1}_{block}"


RESNET50 = Encoder(write=write, layouts=layouts)
