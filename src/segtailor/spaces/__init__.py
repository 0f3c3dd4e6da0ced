"""The five families as data. Importing this package registers them; it does not import torch."""

from segtailor.spaces import decoder_cell, hyper_cell, inverted_residual, multi_resolution, scalable_path
from segtailor.spaces.published import architectures, published, published_record

__all__ = [
    "architectures",
    "decoder_cell",
    "hyper_cell",
    "inverted_residual",
    "multi_resolution",
    "published",
    "published_record",
    "scalable_path",
]
