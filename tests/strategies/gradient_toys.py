"""Problems with a known answer for gradient search: pixels of noise whose labels stand a few columns away.

Only an operator, or a number of layers, that reaches exactly that far can predict them; everything else guesses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from segtailor.core.cost import Linear
from segtailor.core.plan import IMAGE, OpCall, Operator, Plan, PlanBuilder, Shape
from segtailor.core.registry import SPACES
from segtailor.core.space import Decision, Picks
from segtailor.core.strategy import Halves, Problem
from segtailor.core.task import IGNORE, Task
from segtailor.costs import Macs
from segtailor.data.dataset import Pair
from segtailor.nets.mixed import Mixed, Price, scaled
from segtailor.nets.network import Network
from segtailor.nets.relax import Live, Weights
from segtailor.nets.supernet import (
    MixedPlan,
    Outputs,
    SupernetSettings,
    checked,
    freeze_affine,
    most_likely,
    remaining_options,
    transfer_nodes,
)
from segtailor.ops import Conv, Identity, Sum
from segtailor.strategies.gradient_settings import Choice, CostTerm, Gradient, LogitOptimiser, Temperature
from segtailor.training.settings import FitSettings, Schedule

TASK = Task(classes=("dark", "light"))
SIZE = Shape(3, 12, 24)
WIDTH = 6
OPERATORS: dict[str, Operator] = {
    "skip": Identity(),
    "conv1": Conv(kernel=1),
    "conv3": Conv(kernel=3),
    "conv3_d3": Conv(kernel=3, dilation=3),
}
OPTIONS = tuple(OPERATORS)


@dataclass(frozen=True, kw_only=True)
class Shifted:
    """Noise whose label is whether the pixel `shift` columns to the left is light."""

    number: int
    shift: int
    seed: int = 0

    @property
    def name(self) -> str:
        return f"shifted{self.number}"

    @property
    def fingerprint(self) -> str:
        return f"{self.number}/{self.shift}/{self.seed}"

    def read(self) -> Pair:
        rng = np.random.default_rng([self.seed, self.number])
        light = rng.integers(0, 2, (SIZE.height, SIZE.width), dtype=np.uint8)
        labels = np.full_like(light, IGNORE)
        labels[:, self.shift :] = light[:, : SIZE.width - self.shift]
        return Pair(np.repeat(255 * light[..., None], 3, axis=2), labels)


def halves(*, shift: int, fit: int = 16, judge: int = 8) -> Halves:
    samples = tuple(Shifted(number=number, shift=shift) for number in range(fit + judge))
    return Halves(fit=samples[:fit], judge=samples[fit:])


@dataclass(frozen=True, kw_only=True)
class ToyOpsArchitecture:
    blocks: tuple[str, ...]


@SPACES.register("toy_ops")
@dataclass(frozen=True, kw_only=True)
class ToyOps:
    """A stem, blocks of one of four operators with a residual, and a classifier."""

    blocks: int = 2
    architecture_type: ClassVar[type] = ToyOpsArchitecture

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return tuple(
            Decision(name=f"block{index}", options=OPTIONS, group="op") for index in range(self.blocks)
        )

    def architecture(self, picks: Picks) -> ToyOpsArchitecture:
        return ToyOpsArchitecture(blocks=tuple(OPTIONS[picks[row.name]] for row in self.decisions))

    def picks(self, arch: ToyOpsArchitecture) -> Picks:
        return {f"block{index}": OPTIONS.index(name) for index, name in enumerate(arch.blocks)}

    def plan(self, arch: ToyOpsArchitecture, image: Shape, classes: int) -> Plan:
        build = PlanBuilder(image)
        last = build.add("stem", Conv(kernel=1), IMAGE, channels=WIDTH)
        for index, name in enumerate(arch.blocks):
            added = build.add(f"block{index}", OPERATORS[name], last)
            last = build.add(f"sum{index}", Sum(), last, added)
        last = build.add("mix", Conv(kernel=1), last)  # its norm makes the share of a block matter
        head = Conv(kernel=1, norm=False, bias=True, activation="none")
        return build.plan(
            outputs={"main": build.add("head", head, last, channels=classes)}, align_corners=False
        )

    def calls(self, image: Shape, classes: int) -> Iterator[OpCall]:
        for name in OPTIONS:
            yield from self.plan(ToyOpsArchitecture(blocks=(name,) * self.blocks), image, classes).calls

    def supernet(
        self, image: Shape, classes: int, *, settings: SupernetSettings | None = None
    ) -> ToyOpsSupernet:
        return ToyOpsSupernet(self, image, classes, settings or SupernetSettings())

    def discretise(self, probabilities: Mapping[str, Sequence[float]]) -> Picks:
        return most_likely(self.decisions, probabilities)


class ToyOpsSupernet(nn.Module):
    def __init__(self, space: ToyOps, image: Shape, classes: int, settings: SupernetSettings) -> None:
        super().__init__()
        self.space, self.decisions, self.align_corners = space, space.decisions, False
        plan = space.plan(ToyOpsArchitecture(blocks=("conv3",) * space.blocks), image, classes)
        self.mixed = {
            row.name: Mixed(
                {
                    name: OpCall(op=op, inputs=(plan.call(row.name).source,), channels=WIDTH)
                    for name, op in OPERATORS.items()
                }
            )
            for row in self.decisions
        }
        if not settings.affine:
            for mixed in self.mixed.values():
                freeze_affine(mixed)
        self.body = MixedPlan(plan, self.mixed, driven_by={row.name: row.name for row in self.decisions})

    def forward(self, image: Tensor, weights: Weights, live: Live | None = None) -> Outputs:
        known = checked(self.decisions, weights, live, images=len(image))
        outputs: Outputs = self.body({IMAGE: image}, weights, known)
        return outputs

    def cost(self, weights: Weights, price: Price) -> Tensor:
        return self.searched_cost(weights, price) + self.body.fixed_cost(price)

    def searched_cost(self, weights: Weights, price: Price) -> Tensor:
        return self.body.mixed_cost(weights, price)

    def transfer(self, arch: ToyOpsArchitecture, network: Network) -> None:
        picks = self.space.picks(arch)
        transfer_nodes(network, dict(self.body.nodes.items()), picks=picks, driven_by=self.body.driven_by)

    def remove(self, decision: str, option: int) -> None:
        self.mixed[decision].remove(option)

    def remaining(self) -> dict[str, tuple[int, ...]]:
        return remaining_options(self.decisions, {name: [mixed] for name, mixed in self.mixed.items()})


@dataclass(frozen=True, kw_only=True)
class ToyDepthArchitecture:
    depth: int


@SPACES.register("toy_depth")
@dataclass(frozen=True, kw_only=True)
class ToyDepth:
    """Up to `deepest` 3x3 convolutions in a row, of which the exit is searched."""

    deepest: int = 4
    architecture_type: ClassVar[type] = ToyDepthArchitecture

    @property
    def decisions(self) -> tuple[Decision, ...]:
        depths = tuple(range(1, self.deepest + 1))
        return (Decision(name="depth1", options=depths, group="depth", ordered=True),)

    def architecture(self, picks: Picks) -> ToyDepthArchitecture:
        return ToyDepthArchitecture(depth=picks["depth1"] + 1)

    def picks(self, arch: ToyDepthArchitecture) -> Picks:
        return {"depth1": arch.depth - 1}

    def plan(self, arch: ToyDepthArchitecture, image: Shape, classes: int) -> Plan:
        build = PlanBuilder(image)
        last = IMAGE
        for index in range(arch.depth):
            last = build.add(f"layer{index}", Conv(kernel=3), last, channels=WIDTH)
        head = Conv(kernel=1, norm=False, bias=True, activation="none")
        return build.plan(
            outputs={"main": build.add("head", head, last, channels=classes)}, align_corners=False
        )

    def calls(self, image: Shape, classes: int) -> Iterator[OpCall]:
        yield from self.plan(ToyDepthArchitecture(depth=self.deepest), image, classes).calls

    def supernet(
        self,
        image: Shape,
        classes: int,
        *,
        settings: SupernetSettings | None = None,  # noqa: ARG002
    ) -> ToyDepthSupernet:
        return ToyDepthSupernet(self, image, classes)

    def discretise(self, probabilities: Mapping[str, Sequence[float]]) -> Picks:
        return most_likely(self.decisions, probabilities)


class ToyDepthSupernet(nn.Module):
    def __init__(self, space: ToyDepth, image: Shape, classes: int) -> None:
        super().__init__()
        self.space, self.decisions, self.align_corners = space, space.decisions, False
        self.net = Network(space.plan(ToyDepthArchitecture(depth=space.deepest), image, classes))

    def forward(self, image: Tensor, weights: Weights, live: Live | None = None) -> Outputs:
        checked(self.decisions, weights, live, images=len(image))
        out, made = torch.zeros(()), image
        for index in range(self.space.deepest):
            made = self.net.nodes[f"layer{index}"](made)
            out = out + scaled(made, weights["depth1"][..., index])
        return {"main": self.net.nodes["head"](out)}

    def cost(self, weights: Weights, price: Price) -> Tensor:
        return self.searched_cost(weights, price) + price(self.net.plan.call("head"))

    def searched_cost(self, weights: Weights, price: Price) -> Tensor:
        depth = weights["depth1"].reshape(-1, self.space.deepest).mean(dim=0)
        keep = depth.flip(0).cumsum(0).flip(0)
        prices = [price(self.net.plan.call(f"layer{index}")) for index in range(self.space.deepest)]
        return (keep * keep.new_tensor(prices)).sum()

    def transfer(self, arch: ToyDepthArchitecture, network: Network) -> None:  # noqa: ARG002
        transfer_nodes(network, dict(self.net.nodes.items()), picks={}, driven_by={})

    def remove(self, decision: str, option: int) -> None:
        raise NotImplementedError

    def remaining(self) -> dict[str, tuple[int, ...]]:
        return {"depth1": tuple(range(self.space.deepest))}


def problem(space: Any = None, *, shift: int = 3, seed: int = 0, **changes: Any) -> Problem:
    settings: dict[str, Any] = {
        "space": space or ToyOps(blocks=1),
        "cost": Macs(),
        "objective": Linear(weight=0.0),
        "task": TASK,
        "image": SIZE,
        "data": halves(shift=shift),
        "seed": seed,
    }
    return Problem(**{**settings, **changes})


def settings(*, steps: int = 60, **changes: Any) -> Gradient:
    fit = FitSettings(
        steps=steps,
        batch=8,
        lr=0.1,
        weight_decay=0.0,
        schedule=Schedule(kind="constant"),
        channels_last=False,
    )
    standard: dict[str, Any] = {
        "fit": fit,
        "temperature": Temperature(start=2.0, end=0.5),
        "logits": LogitOptimiser(lr=0.1),
        "cost": CostTerm(weight=0.02),
        "choice": Choice(recalibrate=2),
        "marks": 4,
        "judge_every": 0,
    }
    return Gradient(**{**standard, **changes})
