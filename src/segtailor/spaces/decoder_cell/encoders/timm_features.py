"""Encoders of an installed timm, by its model names: `timm:mobilenetv3_large_100`."""

from __future__ import annotations

import re

from segtailor.core.plan import IMAGE, PlanBuilder
from segtailor.ops.timm_encoder import TIMM_STRIDES, TimmFeatures, TimmTap
from segtailor.spaces.decoder_cell.encoders.encoder import Encoder, KeyNames, LayerNames, Tap

# Plain model names only: timm's own prefixes (hf_hub:, local-dir:) would fetch or open files.
_NAME = re.compile(r"timm:(?P<model>[A-Za-z0-9_.]{1,100})")


def well_formed(name: str) -> bool:
    """Tell whether `name` is `timm:` and a plain model name."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def encoder(name: str) -> Encoder:
    """Return the encoder of a well-formed name."""
    model = name.removeprefix("timm:")

    def write(build: PlanBuilder) -> tuple[Tap, ...]:
        features = TimmFeatures(model=model)
        shapes = features.taps(build.image)
        node = build.add("encoder", features, IMAGE, channels=shapes[-1].channels, stride=TIMM_STRIDES[-1])
        return tuple(
            Tap(
                build.add(
                    f"encoder_tap{level}", TimmTap(model=model, level=level), IMAGE, node,
                    channels=shape.channels, stride=stride,
                ),
                stride,
            )
            for level, (shape, stride) in enumerate(zip(shapes, TIMM_STRIDES, strict=True))
        )  # fmt: skip

    return Encoder(write=write, layouts=_layouts)


def _layouts() -> dict[str, KeyNames]:
    return {"": KeyNames(layers=(LayerNames("encoder", "", (("model", ""),)),))}
