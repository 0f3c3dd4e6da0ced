"""The published systems by name: each turns a scale and a dataset into a complete search recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from segtailor.core.registry import Registry
from segtailor.recipes.choices import Scale
from segtailor.recipes.searching import SearchRecipe


@dataclass(frozen=True, kw_only=True)
class Occasion:
    """What a system is asked to search on: the dataset, and the size (height, width) of its images."""

    data: str
    size: tuple[int, int]
    crop: tuple[int, int]


class System(Protocol):
    """A published system: one row of settings."""

    def __call__(self, scale: Scale, occasion: Occasion) -> SearchRecipe:
        """Return the recipe at the paper's scale, or one that a laptop carries out in minutes."""


SYSTEMS: Registry[System] = Registry("recipe")
