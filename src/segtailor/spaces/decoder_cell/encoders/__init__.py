"""Encoders: functions that write a pre-trained classifier's layers into a plan and say which maps the decoder taps."""

from segtailor.spaces.decoder_cell.encoders.choice import ENCODERS, check_name, encoder
from segtailor.spaces.decoder_cell.encoders.encoder import Encoder, KeyNames, LayerNames, Tap

__all__ = ["ENCODERS", "Encoder", "KeyNames", "LayerNames", "Tap", "check_name", "encoder"]
