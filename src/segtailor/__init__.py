"""Semantic segmentation networks made to measure: your data, your device, your budget in milliseconds."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from segtailor.api.models import load
    from segtailor.api.networks import architectures, baselines, count, create, load_encoder, load_published
    from segtailor.api.searching import search
    from segtailor.api.timing import bench

__all__ = [
    "architectures",
    "baselines",
    "bench",
    "count",
    "create",
    "load",
    "load_encoder",
    "load_published",
    "search",
]

_HOMES = {
    "architectures": "networks",
    "baselines": "networks",
    "bench": "timing",
    "count": "networks",
    "create": "networks",
    "load": "models",
    "load_encoder": "networks",
    "load_published": "networks",
    "search": "searching",
}


def __getattr__(name: str) -> Any:
    """Import the interface on first use, so that `import segtailor` stays instant."""
    if name not in _HOMES:
        raise AttributeError(f"module 'segtailor' has no attribute '{name}'")
    return getattr(import_module(f"segtailor.api.{_HOMES[name]}"), name)
