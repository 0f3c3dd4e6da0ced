"""FasterSeg (Chen, Gong, Liu, Zhang, Li, Wang, ICLR 2020): paths, operators, widths, and a teacher beside the student.

Where paper and release differ the release is followed, from which the published networks came: crops, rates, the
adaptive weight of the latency term, mixing of outputs. Our choices: both sets are pretrained (the release trains the
teacher's stem and heads alone), gradients are cleared between the two updates, branches are chosen on the half of the
training images that trained no weight, and the relaxed latency is that of the paper, without the release's faults. The
shares of the latency term are balanced as the paper says, but from the price table at hand; the published values hold
for the release's recursion on its card alone. Widths learn through the norms of all widths: by the published form, the
score of the drawn one, data says next to nothing about them.

Paper: student 70.5 % mIoU on Cityscapes val, 73.1 % distilled, 163.9 images/s on a GTX 1080 Ti; about 2 days of search
on one such card. The latency term is decoupled by groups: with one term over everything the search collapses (Figure 4
of the paper; `benchmarks/fasterseg_studies.py`).
"""

from __future__ import annotations

from dataclasses import replace

from segtailor.core.cost import Power
from segtailor.core.space import Architecture
from segtailor.costs.analytic import Macs
from segtailor.costs.latency import PackLatency
from segtailor.data.augment import Augment
from segtailor.recipes.search import SearchRecipe
from segtailor.recipes.train import StagedTrainRecipe
from segtailor.spaces.multi_resolution import MultiResolution
from segtailor.spaces.multi_resolution.supernet import MultiResolutionSettings
from segtailor.strategies.evaluators.train import TrainEvaluator
from segtailor.strategies.gradient_settings import (
    Choice,
    CostTerm,
    Gradient,
    Learning,
    LogitOptimiser,
    Pass,
    Pretraining,
    Role,
    Temperature,
)
from segtailor.systems.system import PAPER_DATA, SMALL_DATA, SMALL_IMAGE, System
from segtailor.systems.training import (
    SMALL_EPOCHS,
    Asked,
    PublishedTraining,
    TrainingSetting,
    check_family,
    one_stage,
)
from segtailor.tasks.loss_settings import LossSettings
from segtailor.training.distill import DistillSettings
from segtailor.training.settings import FitSettings, Schedule

FASTEST_FPS, SLOWEST_FPS = 175.0, 155.0  # images per second that the release steers between
TARGET_MS = 8.3  # of the score that chooses branches
# Of the release, for its own recursion and a 1080 Ti (paper: 0.001, 0.997, 0.002); `cost.shares=given` takes them.
LATENCY_SHARES = {"op": 0.002, "path": 0.994, "width": 0.004}

STUDENT = Role(name="student", fixed={"frame": 0})
TEACHER = Role(name="teacher", cost=0.0, fixed={"frame": 1, "width": -1}, never=("skip",))
STUDENT_PASSES = (  # its set as it is, at its widest and at its narrowest
    Pass(role="student", widths="own"),
    Pass(role="student", widths="most"),
    Pass(role="student", widths="least"),
)

LOSS = LossSettings(  # of all five outputs: hard pixels at an eighth of the resolution
    ohem=0.7, ohem_keep=1 / 16, auxiliary_default=1.0, resize="labels"
)
SCHEDULE = Schedule(kind="exponential", gamma=0.978)
HALF_SIZE_SCALES = (0.375, 0.5, 0.625)  # 0.75, 1 and 1.25 of images at half their size

PAPER_STRATEGY = Gradient(
    fit=FitSettings(
        epochs=30,
        batch=2,
        lr=0.01,
        weight_decay=5e-4,
        schedule=SCHEDULE,
        loss=LOSS,
        clip=5.0,
        precision="bf16",
    ),
    augment=Augment(crop=(224, 448), scales=HALF_SIZE_SCALES),
    pretraining=Pretraining(
        fit=FitSettings(
            epochs=20,
            batch=3,
            lr=0.02,
            weight_decay=5e-4,
            schedule=SCHEDULE,
            loss=LOSS,
            clip=5.0,
            precision="bf16",
        ),
        augment=Augment(crop=(256, 512), scales=HALF_SIZE_SCALES),
    ),
    supernet=MultiResolutionSettings(fused=True, masked=True, matrices=True),
    record=True,
    updates="alternating",
    temperature=Temperature(start=1.0, end=1.0),
    logits=LogitOptimiser(lr=3e-4, betas=(0.5, 0.999)),
    cost=CostTerm(
        weight=0.01,  # times milliseconds
        form="absolute",
        of="sampled",
        window=(SLOWEST_FPS / FASTEST_FPS, 1.0),
        others="neutral",
        shares="balanced",
    ),
    groups={
        "op": Learning(relaxation="softmax", cost=LATENCY_SHARES["op"]),
        "path": Learning(relaxation="softmax", cost=LATENCY_SHARES["path"]),
        "width": Learning(hard=True, cost=LATENCY_SHARES["width"]),
    },
    roles=(STUDENT, TEACHER),
    passes=(Pass(role="teacher"), *STUDENT_PASSES),
    choice=Choice(recalibrate=0, scale=0.5),
    marks=30,
    judge_every=10,
)
SMALL_AUGMENT = Augment(crop=SMALL_IMAGE, scale=(0.75, 1.25))
SMALL_STRATEGY = replace(
    PAPER_STRATEGY,
    fit=FitSettings(
        steps=100,
        batch=4,
        optimiser="adamw",
        lr=0.004,
        weight_decay=0.01,
        schedule=Schedule(kind="cosine", final=0.1),
        loss=LOSS,
        clip=5.0,
        validate_batch=16,
    ),
    augment=SMALL_AUGMENT,
    pretraining=Pretraining(
        fit=FitSettings(
            steps=60,
            batch=4,
            optimiser="adamw",
            lr=0.008,
            schedule=Schedule(kind="constant"),
            loss=LOSS,
            clip=5.0,
        ),
        augment=SMALL_AUGMENT,
    ),
    supernet=MultiResolutionSettings(),
    record=False,
    logits=LogitOptimiser(lr=0.03, betas=(0.5, 0.999)),
    cost=replace(PAPER_STRATEGY.cost, weight=0.2, form="linear"),  # as strong, in any unit
    choice=Choice(recalibrate=0, images=50),
    marks=10,
    judge_every=5,
)

PAPER = SearchRecipe(
    name="fasterseg",
    data=PAPER_DATA,
    image=(1024, 2048),
    space=MultiResolution(),
    strategy=PAPER_STRATEGY,
    evaluator=TrainEvaluator(
        augment=Augment(crop=(224, 448), scales=HALF_SIZE_SCALES), fit=PAPER_STRATEGY.fit
    ),
    cost=PackLatency(pack="fasterseg-1080ti", force=True),
    limit=1000 / SLOWEST_FPS,
    objective=Power(limit=TARGET_MS, exponent=-0.07),
    seed=12345,
)
SMALL = replace(
    PAPER,
    data=SMALL_DATA,
    image=SMALL_IMAGE,
    space=MultiResolution(  # a quarter of the width and half of the layers
        layers=8, ratios=(1, 2, 3), stem_ratios=(2, 3), head_ratios=(2, 3)
    ),
    strategy=SMALL_STRATEGY,
    evaluator=TrainEvaluator(augment=SMALL_AUGMENT, fit=SMALL_STRATEGY.fit),
    cost=Macs(),
    limit=None,
    seed=0,
)

SYSTEM = System(
    summary="Choose paths, operators and widths by gradients, and a teacher beside the student (FasterSeg).",
    paper=PAPER,
    small=SMALL,
    crop_multiple=32,  # the supernet's deepest stride
    from_scratch=True,
)

TRAINING_EPOCHS, EPOCH_STEPS, TRAINING_DECAY = 600, 1000, 0.992
TRAINING_FIT = FitSettings(  # (d), (e) and (g) of the release: teacher and student alike, from random weights
    steps=TRAINING_EPOCHS * EPOCH_STEPS,
    batch=12,
    optimiser="sgd",
    lr=0.01,
    momentum=0.9,
    weight_decay=5e-4,
    schedule=Schedule(kind="exponential", gamma=TRAINING_DECAY, epoch_steps=EPOCH_STEPS),
    loss=LossSettings(ohem=0.7, ohem_keep=1 / 16, auxiliary_default=0.2),
    validate_every=40,  # passes over Cityscapes, about ten epochs of a thousand steps
)
DISTILL = DistillSettings(kind="kl", weight=1.0, mean_over_classes=True)  # from the teacher's main output
TRAINING_SCALES = (0.75, 1.0, 1.25)


def training(arch: Architecture, asked: Asked) -> StagedTrainRecipe:
    """Return the training of a teacher, or with a teacher of a student that is distilled from it."""
    check_family(arch, "fasterseg", "multi_resolution")
    fit = replace(TRAINING_FIT, distill=DISTILL if asked.teacher else None)
    if not asked.paper:  # ends at the same rate
        decay = TRAINING_DECAY ** (TRAINING_EPOCHS / SMALL_EPOCHS)
        fit = replace(fit, schedule=Schedule(kind="exponential", gamma=decay), validate_every=0)
    setting = TrainingSetting(crop=(512, 1024), fit=fit)
    return one_stage(arch, asked, "fasterseg", setting, Augment(crop=asked.crop, scales=TRAINING_SCALES))


TRAINING = PublishedTraining(recipe=training, begins="scratch", teacher=True)
