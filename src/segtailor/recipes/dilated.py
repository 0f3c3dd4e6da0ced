"""A search of our own: evolution over residual networks that stay at 1/8 (`dilated_residual`).

Such networks learn from few images and few steps, so short trainings tell good ones from bad ones. Nothing is published
of it: both scales are our choice.
"""

from __future__ import annotations

from segtailor.core.space import SPACES
from segtailor.core.strategy import STRATEGIES
from segtailor.data.augment import Augment
from segtailor.recipes.choices import Scale
from segtailor.recipes.parts import part
from segtailor.recipes.searching import SearchRecipe
from segtailor.recipes.systems import SYSTEMS, Occasion
from segtailor.search.evaluators.train import TrainEvaluator
from segtailor.training.settings import FitSettings, Schedule

SMALL_CROP = (128, 256)  # at most: a candidate then trains in seconds on one core


@SYSTEMS.register("dilated")
def dilated(scale: Scale, occasion: Occasion) -> SearchRecipe:
    """Breed residual networks with dilated convolutions along the front of quality and cost (ours)."""
    paper = scale == "paper"
    strategy = part(STRATEGIES, "evolution", trials=128 if paper else 32, population=12, children=4)
    crop = occasion.crop if paper else _at_most(occasion.crop, SMALL_CROP)
    return SearchRecipe(
        name="dilated",
        space=part(SPACES, "dilated_residual"),
        strategy=strategy,
        data=occasion.data,
        image=occasion.size,
        training=TrainEvaluator(
            augment=Augment(
                crop=crop, scale=(0.5, 2.0), brightness=0.3, contrast=0.3, saturation=0.3, hue=0.03
            ),
            fit=FitSettings(
                steps=4000 if paper else 40,
                batch=16 if paper else 8,
                optimiser="adamw",
                lr=0.003,
                weight_decay=0.01,
                schedule=Schedule(kind="poly", power=0.9),
                ema=0.99 if paper else 0.9,
                validate_batch=32,
            ),
        ),
    )


def _at_most(crop: tuple[int, int], most: tuple[int, int]) -> tuple[int, int]:
    return min(crop[0], most[0]), min(crop[1], most[1])
