"""The five families as data. Importing this package registers them; it does not import torch."""

from segtailor.spaces import inverted_residual, scalable_path
from segtailor.spaces.published import architectures, published, published_record

__all__ = ["architectures", "inverted_residual", "published", "published_record", "scalable_path"]
