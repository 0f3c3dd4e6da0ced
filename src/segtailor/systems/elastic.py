"""A search of our own: evolution over parts of a pre-trained encoder with a short decoder (`elastic`).

Every candidate begins from the ImageNet weights that it shares with the encoder, so that a short training shows what it
is worth. Nothing is published about it: both scales are our choice, and both follow the data.
"""

from __future__ import annotations

from dataclasses import replace

from segtailor.data.augment import Augment
from segtailor.recipes.search import SearchRecipe
from segtailor.recipes.train import CARRIED_LR, COLOUR_JITTER, MAX_CROP
from segtailor.spaces.elastic import Elastic
from segtailor.strategies import Evolution
from segtailor.strategies.evaluators.train import TrainEvaluator
from segtailor.systems.system import PAPER_DATA, SMALL_DATA, SMALL_IMAGE, System
from segtailor.training.settings import FitSettings, Schedule

SMALL_CROP = (128, 256)  # at most: a candidate then trains in seconds on one core

PAPER_FIT = FitSettings(
    steps=2000,
    batch=16,
    optimiser="adamw",
    lr=0.003,
    carried_lr=CARRIED_LR,
    weight_decay=0.01,
    schedule=Schedule(kind="poly", power=0.9),
    ema=0.99,
    validate_batch=32,
)
PAPER = SearchRecipe(
    name="elastic",
    data=PAPER_DATA,
    image=(1024, 2048),
    space=Elastic(),
    strategy=Evolution(trials=128, population=12, children=4),
    evaluator=TrainEvaluator(
        augment=Augment(crop=MAX_CROP, scale=(0.5, 2.0), **COLOUR_JITTER), fit=PAPER_FIT
    ),
)
SMALL = replace(
    PAPER,
    data=SMALL_DATA,
    image=SMALL_IMAGE,
    strategy=Evolution(trials=32, population=12, children=4),
    evaluator=TrainEvaluator(
        augment=Augment(crop=SMALL_CROP, scale=(0.5, 2.0), **COLOUR_JITTER),
        fit=replace(PAPER_FIT, steps=40, batch=8, ema=0.9),
    ),
)

SYSTEM = System(
    summary="Breed parts of a pre-trained encoder with a short decoder along the front of quality and cost (ours).",
    paper=PAPER,
    small=SMALL,
    fit_paper=True,
)
