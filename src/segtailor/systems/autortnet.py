"""AutoRTNet (Sun, Wu, Li, Lin, Huang, Li, IJCV 2021): operators per edge, depth by soft exits, log latency.

Published, and so here: 150 epochs, batch 16, weights by SGD 0.025 to 0.001 (cosine, momentum 0.9, decay 1e-3), logits
by Adam 1e-3 (0.5, 0.999, decay 1e-4), temperature 3 to 0.03, depth frozen for the first 50 epochs, loss CE + gamma log
latency with gamma 0.01 (A), 0.001 (B) or 0.1 (C, CamVid), latency of sampled weights without aggregation cell, arg max.
Inferred: linear temperature per epoch (SNAS). Our choice: crop, augmentation, gradient clipping at 5, norms of
candidates without scale and shift (SNAS), spread 0.01 of the first logits. For speed: operators run fused in bf16, and
a step is recorded (CUDA graph); where memory has no room for the batch it runs in parts (4 images of 512x1024 at a time
on a card of 11 GB).

The mode is `soft`, the paper's: all operators run. `pair` runs the two likeliest of each draw, `path` one; both take
less memory and cannot be recorded. The gradient of `path` says whether more of its operator would help, which the
layers behind it bring to zero; nothing says whether another operator were better, so the cost decides: on a planted
operator with a cost weight of 0.02 it is right for 0 of 10 seeds, `pair` for 8 to 10, `soft` for 10.

Paper: AutoRTNet-A 72.9 % mIoU, 110 images/s on a Titan Xp, 16 hours on 16 cards.
"""

from __future__ import annotations

from dataclasses import replace

from segtailor.core.space import Architecture
from segtailor.data.augment import Augment
from segtailor.nets.supernet import SupernetSettings
from segtailor.recipes.search import SearchRecipe
from segtailor.recipes.train import StagedTrainRecipe
from segtailor.spaces.hyper_cell import OWN_PATHS, HyperCell, MultiScale
from segtailor.strategies.evaluators.train import TrainEvaluator
from segtailor.strategies.gradient_settings import (
    Choice,
    CostTerm,
    Gradient,
    Learning,
    LogitOptimiser,
    Temperature,
)
from segtailor.systems.system import (
    JUDGING,
    PAPER_DATA,
    SMALL_DATA,
    SMALL_IMAGE,
    SMALL_JUDGING,
    System,
    layout_of,
    with_crops,
)
from segtailor.systems.training import (
    Asked,
    PublishedTraining,
    TrainingSetting,
    check_family,
    one_stage,
)
from segtailor.tasks.loss_settings import LossSettings
from segtailor.training.settings import FitSettings, Schedule

GAMMAS = {"a": 0.01, "b": 0.001, "c": 0.1}  # cost weights of section 4.2; c is for CamVid

PAPER_STRATEGY = Gradient(
    fit=FitSettings(
        epochs=150,
        batch=16,
        optimiser="sgd",
        lr=0.025,
        momentum=0.9,
        weight_decay=1e-3,
        schedule=Schedule(kind="cosine", final=0.001 / 0.025),
        clip=5.0,
        precision="bf16",
    ),
    augment=Augment(crop=(512, 1024)),
    supernet=SupernetSettings(fused=True, affine=False),
    updates="joint",
    mode="soft",
    record=True,
    temperature=Temperature(start=3.0, end=0.03, shape="linear", per="epoch"),
    logits=LogitOptimiser(lr=1e-3, betas=(0.5, 0.999), weight_decay=1e-4, spread=0.01),
    cost=CostTerm(weight=GAMMAS["a"], form="log", of="sampled"),
    learn=Learning(warmup=0.0),
    groups={"depth": Learning(warmup=1 / 3)},
    choice=Choice(recalibrate=20),
    marks=150,
    judge_every=10,
)
SMALL_STRATEGY = replace(
    PAPER_STRATEGY,
    fit=FitSettings(
        steps=300,
        batch=8,
        optimiser="adamw",
        lr=0.01,
        weight_decay=0.01,
        schedule=Schedule(kind="cosine", final=0.04),
        clip=5.0,
        validate_batch=16,
    ),
    augment=Augment(crop=SMALL_IMAGE, scale=(0.75, 1.5)),
    supernet=SupernetSettings(affine=False),
    record=False,
    temperature=Temperature(start=3.0, end=0.3, shape="linear", per="epoch"),
    logits=LogitOptimiser(lr=0.05, betas=(0.5, 0.999), weight_decay=1e-4, spread=0.01),
    # Weights learn something before operators do, exits one at a time, and samples are judged besides the arg max.
    learn=Learning(warmup=0.2),
    groups={"depth": Learning(warmup=0.5, frozen="uniform")},
    choice=Choice(samples=12, recalibrate=8, images=50),
    marks=20,
)

PAPER = SearchRecipe(
    name="autortnet",
    data=PAPER_DATA,
    image=(768, 1536),
    space=HyperCell(depths=(5, 10, 10)),
    strategy=PAPER_STRATEGY,
    evaluator=TrainEvaluator(augment=Augment(crop=(512, 1024)), fit=PAPER_STRATEGY.fit),
    judging=JUDGING,
)
SMALL = replace(
    PAPER,
    data=SMALL_DATA,
    image=SMALL_IMAGE,
    space=HyperCell(  # narrower cells and a narrower head
        depths=(2, 3, 3),
        widths=(8, 16, 24),
        stem=8,
        wiring=replace(OWN_PATHS, width=24),
        context=MultiScale(branch=32, output=32, rates=(2, 4, 6)),
    ),
    strategy=SMALL_STRATEGY,
    evaluator=TrainEvaluator(augment=Augment(crop=SMALL_IMAGE, scale=(0.75, 1.5)), fit=SMALL_STRATEGY.fit),
    judging=SMALL_JUDGING,
)

CAMVID = replace(  # network C; the crop is our choice
    with_crops(PAPER, lambda _: (360, 480)),
    image=(720, 960),
    strategy=replace(
        PAPER_STRATEGY,
        augment=Augment(crop=(360, 480)),
        cost=replace(PAPER_STRATEGY.cost, weight=GAMMAS["c"]),
    ),
)

SYSTEM = System(
    summary="Choose operators, depths and aggregation of three hyper-cells by gradients (AutoRTNet).",
    paper=PAPER,
    small=SMALL,
    paper_on={"camvid": CAMVID},
    from_scratch=True,
)

# Section 4.2 of the paper; crop and the settings of bootstrapping are our choice, as the paper does not state them.
TRAINING_FIT = FitSettings(
    epochs=200,
    batch=16,
    optimiser="sgd",
    lr=0.01,
    momentum=0.9,
    weight_decay=5e-4,
    schedule=Schedule(kind="poly", power=0.9),
    loss=LossSettings(ohem=0.7, ohem_keep=1 / 16),
)
CITYSCAPES_SETTING = TrainingSetting(crop=(768, 768), fit=TRAINING_FIT)
SETTINGS = {"camvid": TrainingSetting(crop=(720, 720), fit=TRAINING_FIT, train="train+val", val="test")}


def training(arch: Architecture, asked: Asked) -> StagedTrainRecipe:
    """Return the retraining of a found network; on CamVid 468 frames train and 233 score, as in the paper."""
    check_family(arch, "autortnet", "hyper_cell")
    setting = SETTINGS.get(layout_of(asked.only("autortnet")), CITYSCAPES_SETTING)
    augment = Augment(crop=asked.crop, scale=(0.5, 2.0))
    return one_stage(arch, asked, "autortnet", setting, augment)


TRAINING = PublishedTraining(recipe=training, begins="imagenet")
