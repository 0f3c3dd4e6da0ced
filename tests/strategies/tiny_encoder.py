"""An encoder of four convolutions, so that tests of stages take milliseconds."""

from __future__ import annotations

from segtailor.core.plan import IMAGE, PlanBuilder
from segtailor.ops import Conv
from segtailor.spaces.decoder_cell.encoders import Encoder, KeyNames, LayerNames, Tap

PARTS = (("conv1", "0"), ("norm1", "1"))


def write(build: PlanBuilder) -> tuple[Tap, ...]:
    source = build.add("encoder_stem", Conv(), IMAGE, channels=4, stride=2)
    taps = []
    for level, stride in enumerate((4, 8, 16, 32)):
        source = build.add(f"encoder_level{level}", Conv(), source, channels=4 + level, stride=2)
        taps.append(Tap(source, stride))
    return tuple(taps)


def three_taps(build: PlanBuilder) -> tuple[Tap, ...]:
    return write(build)[:3]


def finer_taps(build: PlanBuilder) -> tuple[Tap, ...]:
    """Say strides that the maps do not have."""
    taps = write(build)
    return (Tap("encoder_stem", 4), *taps[1:])


def layouts() -> dict[str, KeyNames]:
    names = ["encoder_stem", *(f"encoder_level{level}" for level in range(4))]
    return {"": KeyNames(layers=tuple(LayerNames(name, name, PARTS) for name in names))}


TINY = Encoder(write=write, layouts=layouts)
