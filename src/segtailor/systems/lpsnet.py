"""LPS-Net (Zhang, Yao, Qiu, Mei 2022): the expansion of section 3.4.

The paper judges by the short recipe of section 4.2 (the strength of colour jitter is ours). At the small scale the same
steps run on whatever images are given, in minutes on a CPU: our choice of settings. The two design studies of the
paper (Tables 2 and 3) are in `benchmarks/lpsnet_studies.py`.
"""

from __future__ import annotations

from dataclasses import replace

from segtailor.core.space import Architecture
from segtailor.data.augment import Augment
from segtailor.recipes.search import SearchRecipe
from segtailor.recipes.train import COLOUR_JITTER, StagedTrainRecipe
from segtailor.spaces.scalable_path import ScalablePath
from segtailor.strategies import Expansion
from segtailor.strategies.evaluators.train import TrainEvaluator
from segtailor.systems.system import JUDGING, PAPER_DATA, SMALL_DATA, SMALL_IMAGE, System, layout_of
from segtailor.systems.training import (
    Asked,
    PublishedTraining,
    TrainingSetting,
    check_family,
    one_stage,
)
from segtailor.tasks.loss_settings import LossSettings
from segtailor.training.settings import FitSettings, Schedule

PAPER = SearchRecipe(
    name="lpsnet",
    data=PAPER_DATA,
    image=(1024, 2048),
    space=ScalablePath(),
    strategy=Expansion(steps=14),  # Table 4
    evaluator=TrainEvaluator(
        augment=Augment(crop=(768, 768), scale=(0.5, 2.0), **COLOUR_JITTER),
        fit=FitSettings(
            steps=90_000,
            batch=16,
            optimiser="sgd",
            lr=0.01,
            momentum=0.9,
            weight_decay=5e-4,
            schedule=Schedule(kind="poly", power=0.9),
        ),
        reparameterise=True,
    ),
    judging=JUDGING,
)
SMALL = replace(
    PAPER,
    data=SMALL_DATA,
    image=SMALL_IMAGE,
    strategy=Expansion(steps=6),
    evaluator=TrainEvaluator(
        augment=Augment(crop=SMALL_IMAGE, scale=(0.75, 1.5), **COLOUR_JITTER),
        fit=FitSettings(steps=40, batch=8, optimiser="adamw", lr=0.01, weight_decay=0.01, validate_batch=32),
        reparameterise=True,
    ),
    judging=0.5,
)

SYSTEM = System(
    summary="Grow a family of networks step by step, by the best gain per cost (LPS-Net, Algorithm 1).",
    paper=PAPER,
    small=SMALL,
    from_scratch=True,
)

# The full recipe of section 4.2. The paper does not give the settings of hard mining: 0.7 and 1/16 are our choice.
TRAINING_FIT = FitSettings(
    steps=180_000,
    batch=16,
    optimiser="sgd",
    lr=0.01,
    momentum=0.9,
    weight_decay=5e-4,
    schedule=Schedule(kind="poly", power=0.9),
    loss=LossSettings(ohem=0.7, ohem_keep=1 / 16),
)
CITYSCAPES_SETTING = TrainingSetting(crop=(768, 1536), fit=TRAINING_FIT)
SETTINGS = {
    "bdd100k": TrainingSetting(crop=(720, 1280), fit=TRAINING_FIT),
    "camvid": TrainingSetting(
        crop=(720, 960),
        fit=replace(TRAINING_FIT, steps=40_000, batch=12, lr=0.03),
        train="train+val",
        val="test",
    ),
}


def training(arch: Architecture, asked: Asked) -> StagedTrainRecipe:
    """Return the full training of a network of the family, in its re-parameterised form."""
    check_family(arch, "lpsnet", "scalable_path")
    setting = SETTINGS.get(layout_of(asked.only("lpsnet")), CITYSCAPES_SETTING)
    augment = Augment(crop=asked.crop, scale=(0.5, 2.0), **COLOUR_JITTER)
    return one_stage(arch, asked, "lpsnet", setting, augment, reparameterise=True)


TRAINING = PublishedTraining(recipe=training, begins="imagenet")
