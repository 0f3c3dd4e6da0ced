"""Semantic segmentation networks made to measure: your data, your device, your budget in milliseconds."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from segtailor import tables
from segtailor.core.shipped import VERSION

__version__ = VERSION

if TYPE_CHECKING:
    from segtailor.nets.models import load
    from segtailor.recipes.export import export
    from segtailor.spaces.networks import count, create, load_encoder, load_published
    from segtailor.spaces.published import architectures, baselines
    from segtailor.tailoring.tailor import tailor
    from segtailor.verbs.bench import bench
    from segtailor.verbs.eval import evaluate
    from segtailor.verbs.search import search
    from segtailor.verbs.train import train

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
    "architectures": "spaces.published",
    "baselines": "spaces.published",
    "bench": "verbs.bench",
    "count": "spaces.networks",
    "create": "spaces.networks",
    "evaluate": "verbs.eval",
    "export": "recipes.export",
    "load": "nets.models",
    "load_encoder": "spaces.networks",
    "load_published": "spaces.networks",
    "search": "verbs.search",
    "tailor": "tailoring.tailor",
    "train": "verbs.train",
}

tables.fill()


def __getattr__(name: str) -> Any:
    """Import the interface on first use, so that `import segtailor` stays instant."""
    if name not in _HOMES:
        raise AttributeError(f"module 'segtailor' has no attribute '{name}'")
    return getattr(import_module(f"segtailor.{_HOMES[name]}"), name)
