"""FasterSeg (Chen, Gong, Liu, Zhang, Li, Wang, ICLR 2020) as data: paths, operators, widths, and a teacher beside it.

Where paper and release differ the release is followed, from which the published networks came: crops, rates, shares of
the latency term, its adaptive weight, mixing of outputs. Our choices: both sets are pretrained (the release trains the
teacher's stem and heads alone), gradients are cleared between the two updates, branches are chosen on the half of the
training images that trained no weight, and the relaxed latency is that of the paper, without the release's faults.
Scales of augmentation are drawn from a range instead of three values.
"""

from __future__ import annotations

from dataclasses import replace

from segtailor.data.augment import Augment
from segtailor.nets.supernet import SupernetSettings
from segtailor.recipes.choices import Scale
from segtailor.recipes.gradient_row import SMALL_IMAGE, GradientRow
from segtailor.search.gradient_settings import (
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
from segtailor.spaces.multi_resolution import MultiResolution
from segtailor.tasks.loss_settings import LossSettings
from segtailor.training.settings import FitSettings, Schedule

PAPER_IMAGE = (1024, 2048)
PAPER_PACK = "fasterseg-1080ti"
FASTEST, SLOWEST = 175.0, 155.0  # frames per second that the release steers between
TARGET_MS = 8.3  # of the score that chooses branches
SHARES = {"op": 0.002, "path": 0.994, "width": 0.004}  # paper: 0.001, 0.997, 0.002

STUDENT = Role(name="student", fixed={"frame": 0})
TEACHER = Role(name="teacher", cost=0.0, fixed={"frame": 1, "width": -1}, never=("skip",))


def fasterseg(
    scale: Scale,
    *,
    image: tuple[int, int] = SMALL_IMAGE,
    space: MultiResolution | None = None,
    mix_inputs: bool = False,
    teacher: bool = True,
    decoupled: bool = True,
) -> GradientRow:
    """Return the search; `image` counts at the small scale only, which takes minutes on a CPU.

    `mix_inputs` runs each cell once, at half the cost. Without `decoupled` the latency term sees everything at once and
    collapses (Figure 4 of the paper). Paper: student 70.5 % mIoU on Cityscapes val, 73.1 % distilled, 163.9 images/s on
    a GTX 1080 Ti; about 2 days of search on one such card.
    """
    paper = scale == "paper"
    strategy = Gradient(
        fit=_fit(paper=paper),
        augment=_augment((224, 448) if paper else image, paper=paper),
        pretraining=Pretraining(
            fit=_pretraining_fit(paper=paper), augment=_augment((256, 512) if paper else image, paper=paper)
        ),
        supernet=SupernetSettings(fused=paper, masked=paper, matrices=paper, mix_inputs=mix_inputs),
        record=paper,
        updates="alternating",
        temperature=Temperature(start=1.0, end=1.0),
        logits=LogitOptimiser(lr=3e-4 if paper else 0.03, betas=(0.5, 0.999)),
        cost=_cost(paper=paper, decoupled=decoupled),
        groups={
            "op": Learning(relaxation="softmax", cost=SHARES["op"] if decoupled else 1.0),
            "path": Learning(relaxation="softmax", cost=SHARES["path"] if decoupled else 1.0),
            "width": Learning(hard=True, cost=SHARES["width"] if decoupled else 1.0),
        },
        roles=(STUDENT, TEACHER) if teacher else (STUDENT,),
        passes=_passes(teacher=teacher),
        choice=Choice(recalibrate=0, scale=0.5) if paper else Choice(recalibrate=0, images=50),
        marks=30 if paper else 10,
        judge_every=10 if paper else 5,
    )
    return GradientRow(
        name="fasterseg",
        space=space or (MultiResolution() if paper else small_space()),
        strategy=strategy,
        image=PAPER_IMAGE if paper else image,
        seed=12345 if paper else 0,
    )


def small_space() -> MultiResolution:
    """Return a quarter of the width and half of the layers."""
    return MultiResolution(layers=8, ratios=(1, 2, 3), stem_ratios=(2, 3), head_ratios=(2, 3))


def _passes(*, teacher: bool) -> tuple[Pass, ...]:
    """Return the passes of an update: each role as it is, then the student's set at its widest and narrowest."""
    own = (Pass(role="teacher"),) if teacher else ()
    return (*own, *(Pass(role="student", widths=widths) for widths in ("own", "most", "least")))


def _cost(*, paper: bool, decoupled: bool) -> CostTerm:
    """Return the latency term: 0.01 times milliseconds, or as strong a one in any unit at the small scale."""
    return CostTerm(
        weight=0.01 if paper else 0.2,
        form="absolute" if paper else "linear",
        of="sampled",
        window=(SLOWEST / FASTEST, 1.0),
        others="neutral" if decoupled else "current",
    )


def _augment(crop: tuple[int, int], *, paper: bool) -> Augment:
    """Return flips and scales of 0.75 to 1.25, at the paper's scale of images at half their size."""
    return Augment(crop=crop, scale=(0.375, 0.625) if paper else (0.75, 1.25))


def _loss() -> LossSettings:
    """Return the loss of all five outputs: hard pixels at an eighth of the resolution."""
    return LossSettings(ohem=0.7, ohem_keep=1 / 16, auxiliary_default=1.0, resize="labels")


def _fit(*, paper: bool) -> FitSettings:
    if paper:
        return FitSettings(
            epochs=30,
            batch=2,
            lr=0.01,
            weight_decay=5e-4,
            schedule=Schedule(kind="exponential", gamma=0.978),
            loss=_loss(),
            clip=5.0,
            precision="bf16",
        )
    return FitSettings(
        steps=100,
        batch=4,
        optimiser="adamw",
        lr=0.004,
        weight_decay=0.01,
        schedule=Schedule(kind="cosine", final=0.1),
        loss=_loss(),
        clip=5.0,
        validate_batch=16,
    )


def _pretraining_fit(*, paper: bool) -> FitSettings:
    if paper:
        return FitSettings(
            epochs=20,
            batch=3,
            lr=0.02,
            weight_decay=5e-4,
            schedule=Schedule(kind="exponential", gamma=0.978),
            loss=_loss(),
            clip=5.0,
            precision="bf16",
        )
    return FitSettings(
        steps=60,
        batch=4,
        optimiser="adamw",
        lr=0.008,
        schedule=Schedule(kind="constant"),
        loss=_loss(),
        clip=5.0,
    )


def latency_terms(*, image: tuple[int, int] = SMALL_IMAGE) -> dict[str, GradientRow]:
    """Return the two searches of Figure 4: one latency term over everything at once, and decoupled ones."""
    return {
        "plain": fasterseg("small", image=image, teacher=False, decoupled=False),
        "decoupled": fasterseg("small", image=image, teacher=False),
    }


def ablation(*, image: tuple[int, int] = SMALL_IMAGE) -> dict[str, GradientRow]:
    """Return the searches behind the rows of Table 3; its last two rows prune or distil what the third one finds."""
    space = small_space()
    middle = (space.ratios[len(space.ratios) // 2],)
    spaces = {
        "one branch": replace(space, ends=((32,),), ratios=middle),
        "two branches": replace(space, ratios=middle),
        "widths searched": space,
    }
    return {
        name: replace(fasterseg("small", image=image, space=own), name=f"fasterseg {name}")
        for name, own in spaces.items()
    }
