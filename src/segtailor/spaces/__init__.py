"""The search spaces, one folder per family, and the networks that have a name."""

from segtailor.spaces.published import architectures, baselines, is_published, published, published_record

__all__ = ["architectures", "baselines", "is_published", "published", "published_record"]
