"""Semantic segmentation networks made to measure: your data, your device, your budget in milliseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from segtailor.api import architectures, bench, count, create, load_published

__all__ = ["architectures", "bench", "count", "create", "load_published"]


def __getattr__(name: str) -> Any:
    """Import the interface on first use, so that `import segtailor` stays instant."""
    if name not in __all__:
        raise AttributeError(f"module 'segtailor' has no attribute '{name}'")
    from segtailor import api

    return getattr(api, name)
