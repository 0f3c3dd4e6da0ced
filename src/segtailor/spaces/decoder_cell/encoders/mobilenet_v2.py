"""MobileNet-v2 at width 1.0 (Sandler et al. 2018) without its last 1280 channels, as the authors' program builds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from segtailor.core.plan import IMAGE, PlanBuilder
from segtailor.ops import Conv, InvertedBottleneck
from segtailor.spaces.decoder_cell.encoders.encoder import Encoder, KeyNames, LayerNames, Tap

if TYPE_CHECKING:
    from torch import Tensor


class Stage(NamedTuple):
    """Blocks of one width; the stride sits on the first."""

    number: int
    expansion: int
    channels: int
    repeats: int
    stride: int


STAGES = (
    Stage(2, 1, 16, 1, 1),
    Stage(3, 6, 24, 2, 2),
    Stage(4, 6, 32, 3, 2),
    Stage(5, 6, 64, 4, 2),
    Stage(6, 6, 96, 3, 1),
    Stage(7, 6, 160, 3, 2),
    Stage(8, 6, 320, 1, 1),
)
TAPPED = {3: 4, 4: 8, 6: 16, 8: 32}  # stage -> stride; the paper says 2, 3, 6, 8, its output sizes need these
STEM_WIDTH = 32
EPS = 1e-5

STEM_PARTS = (("conv1", "0"), ("norm1", "1"))
LINKS = ("expand", "expand_norm", "depth", "depth_norm", "project", "project_norm")
OWN_PARTS = tuple(zip((f"body.{link}" for link in LINKS), ("0", "1", "3", "4", "6", "7"), strict=True))
TORCHVISION_PARTS = tuple(
    zip((f"body.{link}" for link in LINKS), ("0.0", "0.1", "1.0", "1.1", "2", "3"), strict=True)
)
# Torchvision's first block has no expansion; `_with_expansion` adds one under these made-up names.
TORCHVISION_FIRST = tuple(
    zip((f"body.{link}" for link in LINKS), ("added.0", "added.1", "0.0", "0.1", "1", "2"), strict=True)
)


def write(build: PlanBuilder) -> tuple[Tap, ...]:
    """Add the layers; one node per block."""
    source = build.add("encoder_layer1", Conv(activation="relu6"), IMAGE, channels=STEM_WIDTH, stride=2)
    taps = []
    for stage, node, block in _blocks():
        # The first block keeps an expansion of 32 to 32 channels that most implementations drop.
        op = InvertedBottleneck(expansion=stage.expansion, activation="relu6")
        stride = stage.stride if block == 0 else 1
        source = build.add(node, op, source, channels=stage.channels, stride=stride)
        if stage.number in TAPPED and block == stage.repeats - 1:
            taps.append(Tap(source, TAPPED[stage.number]))
    return tuple(taps)


def layouts() -> dict[str, KeyNames]:
    """Return the key layouts: the authors' program, and torchvision."""
    own = [LayerNames("encoder_layer1", "layer1", STEM_PARTS)]
    foreign = [LayerNames("encoder_layer1", "features.0", STEM_PARTS)]
    for number, (stage, node, block) in enumerate(_blocks(), start=1):
        own.append(LayerNames(node, f"layer{stage.number}.{block}.conv", OWN_PARTS))
        parts = TORCHVISION_FIRST if number == 1 else TORCHVISION_PARTS
        foreign.append(LayerNames(node, f"features.{number}.conv", parts))
    extra = (f"features.{number + 1}.", "classifier.")
    return {
        "layer": KeyNames(layers=tuple(own)),
        "features.": KeyNames(layers=tuple(foreign), extra=extra, complete=_with_expansion),
    }


def _blocks() -> Iterator[tuple[Stage, str, int]]:
    for stage in STAGES:
        for block in range(stage.repeats):
            yield stage, f"encoder_layer{stage.number}_{block}", block


def _with_expansion(state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Add an expansion that changes nothing: its input is already within the 0 to 6 of the activation after it."""
    import torch

    start = "features.1.conv.added."
    ones, zeros = torch.ones(STEM_WIDTH), torch.zeros(STEM_WIDTH)
    added = {
        f"{start}0.weight": torch.eye(STEM_WIDTH)[:, :, None, None],
        f"{start}1.weight": ones,
        f"{start}1.bias": zeros,
        f"{start}1.running_mean": zeros,
        f"{start}1.running_var": ones - EPS,
    }
    return {**state, **added}


MOBILENET_V2 = Encoder(write=write, layouts=layouts)
