"""A search of our own: evolution over parts of a pre-trained encoder with a short decoder (`elastic`).

The search of `dilated` in another space, whose candidates begin from the ImageNet weights that they share with the
encoder, so that a short training shows what one is worth. Nothing is published about it: both scales are our choice,
and both follow the data.
"""

from __future__ import annotations

from dataclasses import replace

from segtailor.recipes.search import SearchRecipe
from segtailor.recipes.train import CARRIED_LR
from segtailor.spaces.elastic import Elastic
from segtailor.strategies.evaluators.train import TrainEvaluator
from segtailor.systems import dilated
from segtailor.systems.system import System

PAPER_STEPS = 2000  # half of what random weights get


def _started(recipe: SearchRecipe, *, steps: int | None = None) -> SearchRecipe:
    """Return a search of `dilated` in this space; carried weights learn more slowly."""
    evaluator = recipe.evaluator
    if not isinstance(evaluator, TrainEvaluator):
        raise TypeError("candidates of this search are trained")
    fit = replace(evaluator.fit, steps=steps or evaluator.fit.steps, carried_lr=CARRIED_LR)
    return replace(recipe, name="elastic", space=Elastic(), evaluator=replace(evaluator, fit=fit))


PAPER = _started(dilated.PAPER, steps=PAPER_STEPS)
SMALL = _started(dilated.SMALL)

SYSTEM = System(
    summary="Breed parts of a pre-trained encoder with a short decoder along the front of quality and cost (ours).",
    paper=PAPER,
    small=SMALL,
    fit_paper=True,
)
