"""Encoders by name. Names of the form `timm:MODEL` reach any encoder that an installed timm offers."""

from __future__ import annotations

import difflib

from segtailor.core.codec import short
from segtailor.core.errors import MAX_NAME_CHARACTERS, InvalidArchitecture
from segtailor.spaces.decoder_cell.encoders import timm_features
from segtailor.spaces.decoder_cell.encoders.efficientnet_lite0 import EFFICIENTNET_LITE0
from segtailor.spaces.decoder_cell.encoders.encoder import Encoder
from segtailor.spaces.decoder_cell.encoders.mobilenet_v2 import MOBILENET_V2
from segtailor.spaces.decoder_cell.encoders.resnet50 import RESNET50

ENCODERS: dict[str, Encoder] = {
    "mobilenet_v2": MOBILENET_V2,
    "resnet50": RESNET50,
    "efficientnet_lite0": EFFICIENTNET_LITE0,
}


def check_name(name: str) -> None:
    """Raise unless `name` is built in or well formed for timm; whether timm has it shows when it is used."""
    if name in ENCODERS or timm_features.well_formed(name):
        return
    near = difflib.get_close_matches(str(name)[:MAX_NAME_CHARACTERS], ENCODERS, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise InvalidArchitecture(f"encoder: {short(name)}; allowed: {', '.join(ENCODERS)}, timm:MODEL.{hint}")


def encoder(name: str) -> Encoder:
    """Return an encoder by its (checked) name."""
    check_name(name)
    return ENCODERS[name] if name in ENCODERS else timm_features.encoder(name)
