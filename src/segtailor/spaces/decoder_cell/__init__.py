"""The auxiliary-cells family: one searched cell in a decoder on a pre-trained encoder (Nekrasov et al., CVPR 2019)."""

from segtailor.spaces.decoder_cell.architecture import (
    Branch,
    Cell,
    DecoderCellArchitecture,
    decode,
    encode,
    flatten,
    unflatten,
)
from segtailor.spaces.decoder_cell.space import SEARCH_FORM, DecoderCell, final_form

__all__ = [
    "SEARCH_FORM",
    "Branch",
    "Cell",
    "DecoderCell",
    "DecoderCellArchitecture",
    "decode",
    "encode",
    "final_form",
    "flatten",
    "unflatten",
]
