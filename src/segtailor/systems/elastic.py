"""A search of our own: one set of weights for all parts of a pre-trained encoder, then the front is read
off (`elastic`).

The weights begin from ImageNet's and are fine-tuned once, several networks on every batch; hundreds of networks are
then judged by the weights that they share. Nothing is published about it: both scales are our choice, and both follow
the data.
"""

from __future__ import annotations

from dataclasses import replace

from segtailor.recipes.search import SearchRecipe
from segtailor.recipes.train import CARRIED_LR
from segtailor.spaces.elastic import Elastic
from segtailor.strategies.evaluators.train import TrainEvaluator
from segtailor.strategies.gradient_settings import Choice
from segtailor.strategies.one_shot import USUAL_FIT, OneShot
from segtailor.systems import dilated
from segtailor.systems.system import System

JUDGING = 0.3  # share of the training images that judge; the other ones train the shared weights
PAPER_STEPS, SMALL_STEPS = 4000, 150
PAPER_TRIALS, SMALL_TRIALS = 512, 96
PAPER_IMAGES, SMALL_IMAGES = 200, 32  # that a network is judged on

FIT = replace(USUAL_FIT, carried_lr=CARRIED_LR)


def _one_shot(recipe: SearchRecipe, *, steps: int, trials: int, images: int) -> SearchRecipe:
    """Return a search in this space with the augmentation of a search of `dilated`.

    Its evaluator, which trains each candidate, is for other strategies (`--strategy evolution`).
    """
    evaluator = recipe.evaluator
    if not isinstance(evaluator, TrainEvaluator):
        raise TypeError("candidates of this search can be trained")
    strategy = OneShot(
        fit=replace(FIT, steps=steps, batch=evaluator.fit.batch),
        augment=evaluator.augment,
        trials=trials,
        choice=Choice(recalibrate=4, images=images),
    )
    return replace(
        recipe,
        name="elastic",
        space=Elastic(),
        strategy=strategy,
        judging=JUDGING,
        evaluator=replace(evaluator, fit=replace(evaluator.fit, carried_lr=CARRIED_LR)),
    )


PAPER = _one_shot(dilated.PAPER, steps=PAPER_STEPS, trials=PAPER_TRIALS, images=PAPER_IMAGES)
SMALL = _one_shot(dilated.SMALL, steps=SMALL_STEPS, trials=SMALL_TRIALS, images=SMALL_IMAGES)

SYSTEM = System(
    summary="Fine-tune one set of weights for all parts of a pre-trained encoder, then read off the front (ours).",
    paper=PAPER,
    small=SMALL,
    fit_paper=True,
)
