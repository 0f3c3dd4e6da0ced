"""Semantic segmentation networks made to measure: your data, your device, your budget in milliseconds."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from segtailor.core.shipped import VERSION

__version__ = VERSION

if TYPE_CHECKING:
    from segtailor.api.exporting import export
    from segtailor.api.models import load
    from segtailor.api.networks import architectures, baselines, count, create, load_encoder, load_published
    from segtailor.api.searching import search
    from segtailor.api.timing import bench
    from segtailor.api.training import evaluate, train
    from segtailor.tailoring.run import tailor

__all__ = [
    "architectures",
    "baselines",
    "bench",
    "count",
    "create",
    "evaluate",
    "export",
    "load",
    "load_encoder",
    "load_published",
    "search",
    "tailor",
    "train",
]

_HOMES = {
    "architectures": "api.networks",
    "baselines": "api.networks",
    "bench": "api.timing",
    "count": "api.networks",
    "create": "api.networks",
    "evaluate": "api.training",
    "export": "api.exporting",
    "load": "api.models",
    "load_encoder": "api.networks",
    "load_published": "api.networks",
    "search": "api.searching",
    "tailor": "tailoring.run",
    "train": "api.training",
}


def __getattr__(name: str) -> Any:
    """Import the interface on first use, so that `import segtailor` stays instant."""
    if name not in _HOMES:
        raise AttributeError(f"module 'segtailor' has no attribute '{name}'")
    return getattr(import_module(f"segtailor.{_HOMES[name]}"), name)
