"""Problems with a known answer: a tiny registered space, additive cost, smooth quality with seeded noise."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from segtailor.core.cost import Within
from segtailor.core.errors import DataProblem, Diverged
from segtailor.core.plan import IMAGE, OpCall, Plan, PlanBuilder, Shape
from segtailor.core.registry import SPACES
from segtailor.core.space import Decision, Picks, parse_architecture
from segtailor.core.strategy import Evaluator, Executor, Problem, Trial, TrialResult, Work
from segtailor.core.task import Task
from segtailor.ops import Conv
from segtailor.strategies.executors import Serial

IMAGE_SHAPE = Shape(3, 8, 8)
PRICES = (1, 2, 3, 4, 2, 3)  # per step of each decision
WORTH = (1.0, 2.4, 1.8, 4.4, 1.4, 2.1)  # of each decision, saturating
OPTIONS = 8
TASK = Task(classes=("a", "b"))


@dataclass(frozen=True, kw_only=True)
class PlantedArchitecture:
    picks: tuple[int, ...]


@SPACES.register("planted")
@dataclass(frozen=True, kw_only=True)
class Planted:
    """Ordered decisions of equal size; decision i costs PRICES[i] per step."""

    options: int = OPTIONS
    decisions_count: int = len(PRICES)
    ordered: bool = True

    architecture_type: ClassVar[type] = PlantedArchitecture

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return tuple(
            Decision(
                name=f"d{index}", options=tuple(range(self.options)), group="width", ordered=self.ordered
            )
            for index in range(self.decisions_count)
        )

    def architecture(self, picks: Picks) -> PlantedArchitecture:
        return PlantedArchitecture(picks=tuple(picks[decision.name] for decision in self.decisions))

    def picks(self, arch: PlantedArchitecture) -> Picks:
        return {f"d{index}": value for index, value in enumerate(arch.picks)}

    def plan(self, arch: PlantedArchitecture, image: Shape, classes: int) -> Plan:  # noqa: ARG002
        build = PlanBuilder(image)
        last = IMAGE
        for index, value in enumerate(arch.picks):
            last = build.add(f"n{index}", Conv(kernel=1), last, channels=1 + PRICES[index] * value)
        return build.plan(outputs={"main": last}, align_corners=False)

    def calls(self, image: Shape, classes: int) -> Iterator[OpCall]:  # noqa: ARG002
        yield from ()


@dataclass(frozen=True, kw_only=True)
class Channels:
    """The sum of all widths: additive over decisions."""

    unit: str = "ch"

    def of(self, plan: Plan) -> float:
        return float(sum(node.channels for node in plan.nodes))


def quality_of(picks: tuple[int, ...]) -> float:
    """Rise smoothly with every pick, less and less: between 0 and 1."""
    gains = [worth * (1 - math.exp(-value / 3)) for worth, value in zip(WORTH, picks, strict=False)]
    return sum(gains) / sum(WORTH[: len(picks)])


def best_within(limit: float, space: Planted) -> float:
    """Return the best quality there is, by dynamic programming over the cost."""
    best = {space.decisions_count: 0.0}  # cost so far -> worth so far
    for index in range(space.decisions_count):
        table: dict[int, float] = {}
        for cost, worth in best.items():
            for value in range(space.options):
                total = cost + PRICES[index] * value
                gain = worth + WORTH[index] * (1 - math.exp(-value / 3))
                if total <= limit and gain > table.get(total, -1):
                    table[total] = gain
        best = table
    return max(best.values()) / sum(WORTH[: space.decisions_count])


def judge(trial: Trial, device: str) -> TrialResult:
    """Return the planted quality with a little noise that depends on the trial's seed alone."""
    noise = Random(trial.seed).gauss(0, float(trial.evaluator.get("noise", 0.0)) / math.sqrt(trial.budget))  # type: ignore[arg-type]
    return trial.done(quality_of(parse_architecture(dict(trial.architecture)).picks) + noise)


def problem(
    *,
    limit: float | None = None,
    seed: int = 0,
    space: Any = None,
    executor: Executor | None = None,
    work: Work = judge,
    cache: Path | None = None,
    **settings: Any,
) -> Problem:
    return Problem(
        space=space or Planted(),
        cost=Channels(),
        objective=Within(limit=limit or math.inf),
        task=TASK,
        image=IMAGE_SHAPE,
        evaluator=Evaluator(work=work, settings=settings, data="planted"),
        executor=executor or Serial(),
        seed=seed,
        limit=limit,
        cache=cache,
    )


def fail(trial: Trial, device: str) -> TrialResult:
    raise MemoryError("out of memory")


def fail_after_first(trial: Trial, device: str) -> TrialResult:
    return trial.failed("planted failure") if trial.id else judge(trial, device)


def fail_some(trial: Trial, device: str) -> TrialResult:
    """Fail in three ways, by id."""
    if trial.id % 4 == 1:
        raise MemoryError("out of memory")
    return trial.done(math.nan) if trial.id % 4 == 2 else judge(trial, device)


def die_once(trial: Trial, device: str) -> TrialResult:
    """Kill the worker the first time trial 2 is tried; `mark` is a file that remembers."""
    mark = Path(str(trial.evaluator["mark"]))
    if trial.id == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return judge(trial, device)


def die_always(trial: Trial, device: str) -> TrialResult:
    if trial.id == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return judge(trial, device)


def hang(trial: Trial, device: str) -> TrialResult:
    if trial.id == 1:
        time.sleep(60)
    return judge(trial, device)


def logged(trial: Trial, device: str) -> TrialResult:
    """Count calls in a file: one line per evaluation, with id and seed."""
    with Path(str(trial.evaluator["log"])).open("a") as stream:
        stream.write(f"{trial.id} {trial.seed} {trial.budget}\n")
    return judge(trial, device)


def slow(trial: Trial, device: str) -> TrialResult:
    time.sleep(float(trial.evaluator["sleep"]))  # type: ignore[arg-type]
    return judge(trial, device)


def moody(trial: Trial, device: str) -> TrialResult:
    """Ignore the seed."""
    return trial.done(Random().random())


def recover(trial: Trial, device: str) -> TrialResult:
    """Fail in the way that `how` names until a trial was tried `tries` times; the log remembers."""
    log = Path(str(trial.evaluator["log"]))
    with log.open("a") as stream:
        stream.write(f"{trial.id} {trial.seed}\n")
    tried = sum(line.startswith(f"{trial.id} ") for line in log.read_text().splitlines())
    if trial.id == 1 and tried < int(trial.evaluator["tries"]):  # type: ignore[arg-type]
        if trial.evaluator["how"] == "nan":
            return trial.done(math.nan)
        raise {
            "memory": MemoryError("no room"),
            "torch": RuntimeError(
                "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"
            ),
            "diverged": Diverged("training diverged"),
            "data": DataProblem("no images"),
        }[str(trial.evaluator["how"])]
    return judge(trial, device)
