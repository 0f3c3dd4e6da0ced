"""Every space with every trial strategy, two steps each; combinations that cannot work fail in `check`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

from segtailor import spaces
from segtailor.core.cost import Within
from segtailor.core.errors import Unsupported
from segtailor.core.plan import Plan, Shape, count
from segtailor.core.registry import SPACES
from segtailor.core.space import parse_architecture, plan_of
from segtailor.core.strategy import Evaluator, Problem, Trial, TrialResult
from segtailor.core.task import Task
from segtailor.strategies import Controller, Evolution, Expansion, RandomSearch, Serial

FAMILIES = [name for name in SPACES.names() if name in vars(spaces)]
STRATEGIES = {
    "random": RandomSearch(trials=2),
    "evolution": Evolution(trials=4, population=2),
    "expansion": Expansion(steps=2),
    "controller": Controller(trials=2, hidden=8, layers=1, warmup=1),
}
REFUSED = {("decoder_cell", "expansion")}
SIZE = Shape(3, 64, 128)


@dataclass(frozen=True, kw_only=True)
class Macs:
    unit: str = "MACs"

    def of(self, plan: Plan) -> float:
        return float(plan.deployed().macs())


def judge(trial: Trial, device: str) -> TrialResult:
    """Take more parameters for better, less and less so."""
    params = count(plan_of(parse_architecture(dict(trial.architecture)), SIZE, 4)).params
    return trial.done(1 - 1 / math.log(10 + params))


def asked(family: str, limit: float | None = None) -> Problem:
    return Problem(
        space=SPACES.get(family)(),
        cost=Macs(),
        objective=Within(limit=limit or math.inf),
        task=Task(classes=("a", "b", "c", "d")),
        image=SIZE,
        evaluator=Evaluator(work=judge),
        executor=Serial(),
        limit=limit,
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_space_is_searched_by_every_trial_strategy_or_refused_with_a_remedy(
    family: str, strategy: str
) -> None:
    settings: Any = STRATEGIES[strategy]
    if (family, strategy) in REFUSED:
        with pytest.raises(Unsupported, match=r"no ordered decision.*Use evolution"):
            settings.check(asked(family))
        return
    settings.check(asked(family))
    job = settings.job(asked(family))
    for _ in job.steps():
        pass
    found = job.result()
    best = parse_architecture(found["architecture"])
    assert Macs().of(plan_of(best, SIZE, 4)) == found["cost"]
    assert found["failed"] == 0
    assert len(found["trials"]) >= 2
    if strategy == "expansion":
        costs = [member["cost"] for member in found["family"]]
        assert costs == sorted(set(costs))
        assert len(costs) == 3


@pytest.mark.parametrize("family", FAMILIES)
def test_evolution_keeps_a_budget_in_every_space(family: str) -> None:
    first = RandomSearch(trials=5).job(asked(family))
    for _ in first.steps():
        pass
    results: Any = first.result()["trials"]
    limit = sorted(item["result"]["cost"] for item in results)[2]
    job = Evolution(trials=6, population=3).job(asked(family, limit))
    for _ in job.steps():
        pass
    kept: Any = job.result()["trials"]
    assert max(item["result"]["cost"] for item in kept) <= limit
