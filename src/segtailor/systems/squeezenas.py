"""SqueezeNAS (Shaw, Hunter, Iandola, Sidhu, ICCV workshops 2019): 13 candidates per block, joint updates.

Published, and so here: Gumbel-softmax with one draw per image, temperature 5 to 1, expected cost over probabilities
without noise, joint updates, removal below 0.5 %, 200 sampled architectures judged with shared weights, choice on
their front. Our choice, as neither paper nor code says: geometric temperature, all optimiser settings and the frozen
first tenth (after FBNet), weight decay, length, batch, crop, augmentation, cost weight, norms measured again. For
speed: candidates run fused in bf16, and a step is recorded (CUDA graph). Where memory has no room for the batch it runs
in parts: 4 images of 512x1024 at a time on a card of 11 GB, which is then what norms see.

Paper: MAC-Small 66.76 % mIoU at 3.01 GMACs, 7 GPU days of search; LAT-Small 68.02 %, 8.7 GPU days. The cost weight
multiplies the expected cost relative to that of the uniform distribution; with a budget it adapts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from segtailor.core.errors import UserError
from segtailor.core.space import Architecture
from segtailor.data.augment import Augment
from segtailor.nets.supernet import SupernetSettings
from segtailor.recipes.search import SearchRecipe
from segtailor.recipes.train import StagedTrainRecipe, TrainRecipe
from segtailor.spaces.inverted_residual import InvertedResidual
from segtailor.strategies.evaluators.train import TrainEvaluator
from segtailor.strategies.gradient_settings import (
    Choice,
    CostTerm,
    Gradient,
    Learning,
    LogitOptimiser,
    Temperature,
)
from segtailor.systems.system import JUDGING, PAPER_DATA, SMALL_DATA, SMALL_IMAGE, SMALL_JUDGING, System
from segtailor.systems.training import SMALL_FIT, Asked, PublishedTraining, check_family
from segtailor.training.settings import FitSettings, Schedule

PAPER_STRATEGY = Gradient(
    fit=FitSettings(
        epochs=90,
        batch=16,
        optimiser="sgd",
        lr=0.1,
        momentum=0.9,
        weight_decay=1e-4,
        schedule=Schedule(kind="cosine"),
        clip=5.0,
        precision="bf16",
    ),
    augment=Augment(crop=(512, 1024)),
    supernet=SupernetSettings(fused=True),
    record=True,
    updates="joint",
    mode="soft",
    per_image=True,
    temperature=Temperature(start=5.0, end=1.0),
    logits=LogitOptimiser(lr=0.01, weight_decay=5e-4),
    cost=CostTerm(weight=0.1, form="linear", of="probabilities"),
    learn=Learning(warmup=0.1),
    remove_below=0.005,
    choice=Choice(samples=200, recalibrate=20),
    marks=100,
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
        schedule=Schedule(kind="cosine"),
        clip=5.0,
        validate_batch=16,
    ),
    augment=Augment(crop=SMALL_IMAGE, scale=(0.75, 1.5)),
    supernet=SupernetSettings(),
    record=False,
    # Few steps leave logits close together, so the small scale samples nearly one candidate at a time in the end.
    temperature=Temperature(start=2.0, end=0.2),
    logits=LogitOptimiser(lr=0.1, weight_decay=5e-4),
    learn=Learning(warmup=0.3),
    choice=Choice(samples=20, recalibrate=8, images=50),
    marks=20,
)

PAPER = SearchRecipe(
    name="squeezenas",
    data=PAPER_DATA,
    image=(1024, 2048),
    space=InvertedResidual(frame="small"),
    strategy=PAPER_STRATEGY,
    evaluator=TrainEvaluator(augment=Augment(crop=(512, 1024)), fit=PAPER_STRATEGY.fit),
    judging=JUDGING,
)
SMALL = replace(
    PAPER,
    data=SMALL_DATA,
    image=SMALL_IMAGE,
    strategy=SMALL_STRATEGY,
    evaluator=TrainEvaluator(augment=Augment(crop=SMALL_IMAGE, scale=(0.75, 1.5)), fit=SMALL_STRATEGY.fit),
    judging=SMALL_JUDGING,
)

SYSTEM = System(
    summary="Choose one of 13 inverted residuals per block by gradients, weights and choice together (SqueezeNAS).",
    paper=PAPER,
    small=SMALL,
    from_scratch=True,
)

# Section 5.3.2. Batch, momentum and augmentation are our choice, and so is the constant rate of the stages before the
# last one: neither paper nor release states them.
FINE_FIT = FitSettings(
    epochs=100,
    batch=16,
    optimiser="sgd",
    lr=0.05,
    momentum=0.9,
    weight_decay=1e-5,
    schedule=Schedule(kind="step", gamma=0.1, milestones=(0.5, 0.75)),
    precision="bf16",
    validate_every=1,  # the paper quotes the best of the last 20 epochs
)
BEFORE_FIT = replace(FINE_FIT, epochs=40, schedule=Schedule(kind="constant"), validate_every=0)
TRAINING_CROP = (768, 768)
COARSE_FOLDER, COARSE = "gtCoarse", "cityscapes-coarse"


def training(arch: Architecture, asked: Asked) -> StagedTrainRecipe:
    """Return the training in stages: COCO and coarse masks where they are given, then the finely labelled images.

    The data is the fine dataset, or coarse and fine, or COCO, coarse and fine. A Cityscapes folder that also holds
    coarse masks stands for both.
    """
    check_family(arch, "squeezenas", "inverted_residual")
    names = list(asked.data)
    if not 1 <= len(names) <= 3:
        raise UserError(f"the training 'squeezenas' has one to three datasets, not {len(names)}.")
    if len(names) == 1 and asked.paper:
        names = [*_coarse(names[0]), *names]
    stages = []
    for number, name in enumerate(names):
        last = number == len(names) - 1
        fit = FINE_FIT if last else BEFORE_FIT
        stages.append(
            TrainRecipe(
                architecture=arch,
                data=name,
                augment=Augment(crop=TRAINING_CROP if asked.paper else asked.crop, scale=(0.5, 2.0)),
                fit=fit if asked.paper else replace(fit, **SMALL_FIT, validate_every=0),
                val_split=asked.val_split if last else None,
                start=asked.start if number == 0 else "none",
            )
        )
    return StagedTrainRecipe(stages=tuple(stages))


def _coarse(data: str) -> list[str]:
    """Return the coarse half of a Cityscapes folder, where it is there."""
    name, _, rest = data.partition(":")
    place = Path(rest.partition("?")[0]).expanduser()
    return [f"{COARSE}:{rest}"] if name == "cityscapes" and (place / COARSE_FOLDER).is_dir() else []


TRAINING = PublishedTraining(recipe=training, begins="imagenet")
