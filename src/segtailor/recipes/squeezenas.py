"""SqueezeNAS (Shaw, Hunter, Iandola, Sidhu, ICCV workshops 2019) as data: 13 candidates per block, joint updates.

Published, and so here: Gumbel-softmax with one draw per image, temperature 5 to 1, expected cost over probabilities
without noise, joint updates, removal below 0.5 %, 200 sampled architectures judged with shared weights, choice on
their front. Our choice, as neither paper nor code says: geometric temperature, all optimiser settings and the frozen
first tenth (after FBNet), weight decay, length, batch, crop, augmentation, cost weight, norms measured again. For
speed: candidates run fused in bf16, and a step is recorded (CUDA graph). Where memory has no room for the batch it runs
in parts: 4 images of 512x1024 at a time on a card of 11 GB, which is then what norms see.
"""

from __future__ import annotations

from segtailor.data.augment import Augment
from segtailor.nets.supernet import SupernetSettings
from segtailor.recipes.choices import Scale
from segtailor.recipes.gradient_row import ADAPT, SMALL_IMAGE, GradientRow
from segtailor.search.gradient_settings import (
    Choice,
    CostTerm,
    Gradient,
    Learning,
    LogitOptimiser,
    Temperature,
)
from segtailor.spaces.inverted_residual import InvertedResidual
from segtailor.spaces.inverted_residual.frames import FrameName
from segtailor.training.settings import FitSettings, Schedule

PAPER_IMAGE = (1024, 2048)


def squeezenas(
    scale: Scale,
    *,
    image: tuple[int, int] = SMALL_IMAGE,
    frame: FrameName = "small",
    cost_weight: float = 0.1,
    budget: bool = False,
) -> GradientRow:
    """Return the search of one frame; `image` counts at the small scale only, which takes minutes on a CPU.

    The cost weight multiplies the expected cost relative to that of the uniform distribution. With a `budget` it
    adapts. Paper: MAC-Small 66.76 % mIoU at 3.01 GMACs, 7 GPU days of search; LAT-Small 68.02 %, 8.7 GPU days.
    """
    paper = scale == "paper"
    strategy = Gradient(
        fit=_fit(paper=paper),
        augment=Augment(crop=(512, 1024)) if paper else Augment(crop=image, scale=(0.75, 1.5)),
        supernet=SupernetSettings(fused=paper),
        record=paper,
        updates="joint",
        mode="soft",
        per_image=True,
        # Few steps leave logits close together, so the small scale samples nearly one candidate at a time in the end.
        temperature=Temperature(start=5.0, end=1.0) if paper else Temperature(start=2.0, end=0.2),
        logits=LogitOptimiser(lr=0.01 if paper else 0.1, weight_decay=5e-4),
        cost=CostTerm(
            weight=cost_weight,
            form="linear",
            of="probabilities",
            adapt=ADAPT if budget else 0.0,
            whole=budget,
        ),
        learn=Learning(warmup=0.1 if paper else 0.3),
        remove_below=0.005,
        choice=Choice(samples=200, recalibrate=20) if paper else Choice(samples=20, recalibrate=8, images=50),
        marks=100 if paper else 20,
        judge_every=10,
    )
    return GradientRow(
        name="squeezenas",
        space=InvertedResidual(frame=frame),
        strategy=strategy,
        image=PAPER_IMAGE if paper else image,
    )


def _fit(*, paper: bool) -> FitSettings:
    if paper:
        return FitSettings(
            epochs=90,
            batch=16,
            optimiser="sgd",
            lr=0.1,
            momentum=0.9,
            weight_decay=1e-4,
            schedule=Schedule(kind="cosine"),
            clip=5.0,
            precision="bf16",
        )
    return FitSettings(
        steps=300,
        batch=8,
        optimiser="adamw",
        lr=0.01,
        weight_decay=0.01,
        schedule=Schedule(kind="cosine"),
        clip=5.0,
        validate_batch=16,
    )
