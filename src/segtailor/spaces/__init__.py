"""The five families as data. Importing this package registers them; it does not import torch."""

from segtailor.spaces import scalable_path
from segtailor.spaces.published import architectures, published, published_record

__all__ = ["architectures", "published", "published_record", "scalable_path"]
