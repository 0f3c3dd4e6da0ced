"""A tiny co-search: blocks of light and dark, a space of narrow cells, and devices that prefer known networks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any, ClassVar

import numpy as np

from segtailor.core.cost import Power
from segtailor.core.plan import OpCall, Plan, Shape
from segtailor.core.registry import OPERATORS
from segtailor.core.strategy import Halves, Problem
from segtailor.core.task import Task
from segtailor.costs import Macs
from segtailor.data.augment import Augment
from segtailor.data.dataset import Pair
from segtailor.spaces.multi_resolution import MultiResolution
from segtailor.spaces.multi_resolution.architecture import CELL_OPERATORS
from segtailor.spaces.multi_resolution.layers import OPERATORS_BY_NAME
from segtailor.strategies.gradient_settings import Gradient
from segtailor.systems import fasterseg
from segtailor.training.settings import FitSettings, Schedule

TASK = Task(classes=("dark", "light"))
SIZE = Shape(3, 32, 64)
SPACE = MultiResolution(layers=8, ratios=(1, 2), stem_ratios=(1, 2), head_ratios=(1, 2))


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Squares of 16 pixels, each light or dark, which is their label."""

    number: int

    @property
    def name(self) -> str:
        return f"blocks{self.number}"

    @property
    def fingerprint(self) -> str:
        return str(self.number)

    def read(self) -> Pair:
        rng = np.random.default_rng(self.number)
        squares = rng.integers(0, 2, (SIZE.height // 16, SIZE.width // 16), dtype=np.uint8)
        light = np.kron(squares, np.ones((16, 16), dtype=np.uint8))
        return Pair(np.repeat(255 * light[..., None], 3, axis=2), light)


def problem(**changes: Any) -> Problem:
    samples = tuple(Blocks(number=number) for number in range(8))
    settings: dict[str, Any] = {
        "space": SPACE,
        "cost": Macs(),
        "objective": Power(limit=1e6),
        "task": TASK,
        "image": SIZE,
        "data": Halves(fit=samples[:4], judge=samples[4:]),
    }
    return Problem(**{**settings, **changes})


def settings(*, steps: int = 3, ahead: int = 2, **changes: Any) -> Gradient:
    """The recipe's own strategy, shorter."""
    own = fasterseg.SMALL_STRATEGY
    fit = FitSettings(
        steps=steps,
        batch=2,
        lr=0.05,
        schedule=Schedule(kind="constant"),
        loss=own.fit.loss,
        channels_last=False,
    )
    first = own.pretraining
    assert first is not None
    still = Augment(crop=SIZE[1:], scale=(1.0, 1.0), flip=0.0)
    standard: dict[str, Any] = {
        "fit": fit,
        "augment": still,
        "pretraining": replace(first, fit=replace(fit, steps=ahead), augment=still) if ahead else None,
        "marks": steps,
        "judge_every": 0,
    }
    return replace(own, **{**standard, **changes})


@dataclass(frozen=True, kw_only=True)
class PlantedDevice:
    """A device on which one operator and one width are cheap: what a search must find everywhere."""

    seed: int
    unit: ClassVar[str] = "ms"

    @property
    def operator(self) -> str:
        return Random(self.seed).choice(CELL_OPERATORS)

    @property
    def ratio(self) -> int:
        return Random(2000 + self.seed).choice(SPACE.ratios)

    def price(self, call: OpCall) -> float:
        kind = OPERATORS.name_of(type(call.op))
        if call.op not in OPERATORS_BY_NAME.values() or call.source.channels in (3, 4):
            return 30.0 if kind in ("identity", "factorised_reduction") else 0.1
        rate = SIZE.height // call.source.height
        own = 1.0 if call.op == OPERATORS_BY_NAME[self.operator] else 5.0  # type: ignore[index]
        written = call.channels // (rate * call.stride)
        return own * (1.0 if written == self.ratio else 2.0)

    def of(self, plan: Plan) -> float:
        return sum(map(self.price, plan.calls))


@dataclass(frozen=True, kw_only=True)
class Stripes:
    """Upright stripes of light and dark, `side` pixels wide, which is their label: coarser maps cannot tell them."""

    number: int
    side: int

    @property
    def name(self) -> str:
        return f"stripes{self.side}-{self.number}"

    @property
    def fingerprint(self) -> str:
        return f"{self.side}/{self.number}"

    def read(self) -> Pair:
        rng = np.random.default_rng([self.side, self.number])
        stripes = rng.integers(0, 2, SIZE.width // self.side, dtype=np.uint8)
        light = np.tile(np.repeat(stripes, self.side), (SIZE.height, 1))
        return Pair(np.repeat(255 * light[..., None], 3, axis=2), light)


@dataclass(frozen=True, kw_only=True)
class CoarseIsCheap:
    """A device on which operators at half resolution cost a fifth of others, and doing nothing the most."""

    unit: ClassVar[str] = "ms"

    def price(self, call: OpCall) -> float:
        kind = OPERATORS.name_of(type(call.op))
        if kind in ("identity", "factorised_reduction"):
            return 30.0
        if call.op not in OPERATORS_BY_NAME.values() or call.source.channels in (3, 4):
            return 0.1
        return 1.0 if kind == "zoomed_conv" else 5.0

    def of(self, plan: Plan) -> float:
        return sum(map(self.price, plan.calls))


ONE_WIDTH = MultiResolution(layers=8, ratios=(2,), stem_ratios=(2,), head_ratios=(2,))


def striped(side: int, *, seed: int) -> Problem:
    """A task that needs maps as fine as `side`, on a device that would rather compute coarser ones."""
    samples = tuple(Stripes(number=1000 * seed + index, side=side) for index in range(16))
    data = Halves(fit=samples[:8], judge=samples[8:])
    return problem(space=ONE_WIDTH, cost=CoarseIsCheap(), data=data, seed=seed)
