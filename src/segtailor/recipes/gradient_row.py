"""A published gradient search as data: the space, the strategy and the size that networks are priced at."""

from __future__ import annotations

from dataclasses import dataclass

from segtailor.core.space import SearchSpace
from segtailor.strategies.gradient_settings import Gradient

SMALL_IMAGE = (64, 128)  # of synthetic street scenes: a search then takes minutes on one core
ADAPT = 20.0  # with a budget: how fast the cost weight follows (our choice)


@dataclass(frozen=True, kw_only=True)
class GradientRow:
    """One row of settings; any additive cost fits. `seed` is set where the paper names seeds."""

    name: str
    space: SearchSpace
    strategy: Gradient
    image: tuple[int, int]
    seed: int = 0
