"""AutoRTNet (Sun, Wu, Li, Lin, Huang, Li, IJCV 2021) as data: operators per edge, depth by soft exits, log latency.

Published, and so here: 150 epochs, batch 16, weights by SGD 0.025 to 0.001 (cosine, momentum 0.9, decay 1e-3), logits
by Adam 1e-3 (0.5, 0.999, decay 1e-4), temperature 3 to 0.03, depth frozen for the first 50 epochs, loss CE + gamma log
latency with gamma 0.01 (A), 0.001 (B) or 0.1 (C, CamVid), latency of sampled weights without aggregation cell, arg max.
Inferred: linear temperature per epoch (SNAS). Our choice: crop, augmentation, gradient clipping at 5, norms of
candidates without scale and shift (SNAS), spread 0.01 of the first logits. For speed: operators run fused in bf16, and
a step is recorded (CUDA graph); where memory has no room for the batch it runs in parts (4 images of 512x1024 at a time
on a card of 11 GB). One operator per edge (`path`) loses to any cost weight: see `autortnet`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from segtailor.data.augment import Augment
from segtailor.nets.relax import Mode
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
from segtailor.spaces.hyper_cell import OWN_PATHS, HyperCell, MultiScale
from segtailor.training.settings import FitSettings, Schedule

PAPER_IMAGE = (768, 1536)
PAPER_DEPTHS, SMALL_DEPTHS = (5, 10, 10), (2, 3, 3)
GAMMAS = {"a": 0.01, "b": 0.001, "c": 0.1}  # section 4.2; c is for CamVid


class Start(NamedTuple):
    """First depths and seed of one row of Table 4."""

    depths: tuple[int, int, int]
    seed: int


ROBUSTNESS = (
    Start((5, 10, 10), 2), Start((5, 10, 15), 2), Start((5, 15, 15), 2),
    Start((10, 10, 10), 2), Start((5, 10, 10), 1), Start((5, 10, 10), 3),
)  # fmt: skip
SMALL_ROBUSTNESS = (
    Start((2, 3, 3), 2), Start((2, 4, 4), 2), Start((2, 3, 3), 1),
    Start((3, 3, 3), 2), Start((2, 3, 4), 2), Start((2, 3, 3), 3),
)  # fmt: skip


def autortnet(
    scale: Scale,
    *,
    image: tuple[int, int] = SMALL_IMAGE,
    depths: tuple[int, int, int] | None = None,
    cost_weight: float = GAMMAS["a"],
    mode: Mode | None = None,
    budget: bool = False,
) -> GradientRow:
    """Return the search; `image` counts at the small scale only, which takes minutes on a CPU.

    `mode` is `soft`, the paper's: all operators run. `pair` runs the two likeliest of each draw, `path` one; both take
    less memory and cannot be recorded. The gradient of `path` says whether more of its operator would help, which the
    layers behind it bring to zero; nothing says whether another were better, so the cost decides: on a planted operator
    with a cost weight of 0.02 it is right for 0 of 10 seeds, `pair` for 8 to 10, `soft` for 10.
    Paper: AutoRTNet-A 72.9 % mIoU, 110 images/s on a Titan Xp, 16 hours on 16 cards.
    """
    paper = scale == "paper"
    strategy = Gradient(
        fit=_fit(paper=paper),
        augment=Augment(crop=(512, 1024)) if paper else Augment(crop=image, scale=(0.75, 1.5)),
        supernet=SupernetSettings(fused=paper, affine=False),
        updates="joint",
        mode=mode or "soft",
        record=paper and mode in (None, "soft"),  # other modes look at each draw
        temperature=Temperature(start=3.0, end=0.03 if paper else 0.3, shape="linear", per="epoch"),
        logits=LogitOptimiser(lr=1e-3 if paper else 0.05, betas=(0.5, 0.999), weight_decay=1e-4, spread=0.01),
        cost=CostTerm(
            weight=cost_weight, form="log", of="sampled", adapt=ADAPT if budget else 0.0, whole=budget
        ),
        # At the small scale weights learn something before operators do, and samples are judged besides the arg max.
        learn=Learning(warmup=0.0 if paper else 0.2),
        groups={"depth": Learning(warmup=1 / 3)},
        choice=Choice(recalibrate=20) if paper else Choice(samples=12, recalibrate=8, images=50),
        marks=150 if paper else 20,
        judge_every=10,
    )
    return GradientRow(
        name="autortnet",
        space=_space(depths or PAPER_DEPTHS) if paper else _small_space(depths or SMALL_DEPTHS),
        strategy=strategy,
        image=PAPER_IMAGE if paper else image,
    )


def robustness(scale: Scale, *, image: tuple[int, int] = SMALL_IMAGE) -> tuple[GradientRow, ...]:
    """Return the searches of Table 4: other first depths and seeds should end at similar depths."""
    starts = ROBUSTNESS if scale == "paper" else SMALL_ROBUSTNESS
    return tuple(
        replace(
            autortnet(scale, image=image, depths=start.depths),
            name=f"autortnet-{'-'.join(map(str, start.depths))}-seed{start.seed}",
            seed=start.seed,
        )
        for start in starts
    )


def _space(depths: tuple[int, int, int]) -> HyperCell:
    return HyperCell(depths=depths)


def _small_space(depths: tuple[int, int, int]) -> HyperCell:
    """Return narrower cells and a narrower head."""
    context = MultiScale(branch=32, output=32, rates=(2, 4, 6))
    return HyperCell(
        depths=depths, widths=(8, 16, 24), stem=8, wiring=replace(OWN_PATHS, width=24), context=context
    )


def _fit(*, paper: bool) -> FitSettings:
    if paper:
        return FitSettings(
            epochs=150,
            batch=16,
            optimiser="sgd",
            lr=0.025,
            momentum=0.9,
            weight_decay=1e-3,
            schedule=Schedule(kind="cosine", final=0.001 / 0.025),
            clip=5.0,
            precision="bf16",
        )
    return FitSettings(
        steps=300,
        batch=8,
        optimiser="adamw",
        lr=0.01,
        weight_decay=0.01,
        schedule=Schedule(kind="cosine", final=0.04),
        clip=5.0,
        validate_batch=16,
    )
