"""Auxiliary cells (Nekrasov, Chen, Shen, Reid, CVPR 2019) as data: the search of section 4.1.

At the small scale the same stages run on whatever images are given, in minutes on a CPU: our choice of settings.
"""

from __future__ import annotations

from dataclasses import replace

from segtailor.core.space import SPACES
from segtailor.core.strategy import STRATEGIES
from segtailor.data.augment import Augment
from segtailor.recipes.choices import Scale
from segtailor.recipes.parts import CostSpec, Part, part
from segtailor.recipes.searching import SearchRecipe
from segtailor.recipes.systems import SYSTEMS, Occasion
from segtailor.strategies.evaluators.staged import STAGE1, STAGE2, EarlyStop, StagedEvaluator
from segtailor.strategies.evaluators.train import TrainEvaluator
from segtailor.training.settings import FitSettings

PAPER_IMAGE = (512, 512)
SMALL_CROP = (64, 128)  # at most
PAPER_TRIALS = 20_000  # the authors' limit; their search ended after four days
PAPER_SEED = 9314


@SYSTEMS.register("auxcells")
def auxcells(scale: Scale, occasion: Occasion) -> SearchRecipe:
    """Design the decoder of a pre-trained encoder with a learning controller (auxiliary cells)."""
    return small_or_paper("auxcells", scale, occasion, controller(scale))


def controller(scale: Scale, **settings: object) -> Part:
    """Return the controller: as published, or one that learns from a few dozen trials."""
    if scale == "paper":
        return part(STRATEGIES, "controller", trials=PAPER_TRIALS, **settings)
    quick: dict[str, object] = {"trials": 24, "batch": 4, "lr": 3e-3, "minibatch": 100}
    return part(STRATEGIES, "controller", **{**quick, **settings})


def small_or_paper(name: str, scale: Scale, occasion: Occasion, strategy: Part) -> SearchRecipe:
    """Return the recipe of any search in this space."""
    synthetic = occasion.data.startswith("synthetic")
    encoder = "mobilenet_v2" if synthetic or scale == "paper" else "efficientnet_lite0"
    channels = 48 if scale == "paper" else 24
    judged = staged(scale, occasion)
    return SearchRecipe(
        name=name,
        space=part(SPACES, "decoder_cell", encoder=encoder, channels=channels, repeats=1),
        strategy=strategy,
        data=occasion.data,
        image=PAPER_IMAGE if scale == "paper" else occasion.size,
        training=TrainEvaluator(
            augment=judged.augment, fit=FitSettings(steps=40, batch=8, optimiser="adamw")
        ),
        staged=judged,
        judging=0.1 if scale == "paper" else 0.5,
        evaluator="staged",
        cost=CostSpec(kind="params"),
        seed=PAPER_SEED if scale == "paper" else 0,
    )


def staged(scale: Scale, occasion: Occasion) -> StagedEvaluator:
    """Return the two stages of section 4.1, or far shorter ones."""
    if scale == "paper":
        return StagedEvaluator(
            features=Augment(crop=(256, 256), scale=(0.7, 1.4), shorter=300),
            augment=Augment(crop=(350, 350), scale=(0.7, 1.4), shorter=400),
            judge=(400, 400),
            images=4000,
        )
    height, width = (min(side, most) for side, most in zip(occasion.crop, SMALL_CROP, strict=True))
    cut = Augment(crop=(height, width), scale=(0.7, 1.4))
    return StagedEvaluator(
        features=cut,
        augment=cut,
        judge=(height, width),
        images=128,
        stage1=replace(STAGE1, epochs=3, batch=16),
        stage2=replace(STAGE2, steps=6, batch=8, ema=0.9),
        early_stop=EarlyStop(milestones=(8, 16, 24, 32), every=4),
    )
