"""The search spaces, one folder per family, and the networks that have a name."""

from segtailor.spaces.published import (
    architectures,
    baselines,
    is_published,
    on_lite0,
    published,
    published_record,
)

__all__ = ["architectures", "baselines", "is_published", "on_lite0", "published", "published_record"]
