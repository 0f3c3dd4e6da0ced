"""The families as data, and the hand-made baselines. Importing this registers them, without torch."""

from segtailor.spaces import (
    decoder_cell,
    dilated_residual,
    handmade,
    hyper_cell,
    inverted_residual,
    multi_resolution,
    scalable_path,
)
from segtailor.spaces.published import architectures, baselines, is_published, published, published_record

__all__ = [
    "architectures",
    "baselines",
    "decoder_cell",
    "dilated_residual",
    "handmade",
    "hyper_cell",
    "inverted_residual",
    "is_published",
    "multi_resolution",
    "published",
    "published_record",
    "scalable_path",
]
