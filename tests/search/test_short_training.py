"""An expansion that really trains its candidates, in two processes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from segtailor.core.codec import to_json
from segtailor.core.cost import Within
from segtailor.core.plan import Plan, Shape
from segtailor.core.strategy import Evaluator, Problem
from segtailor.data.augment import Augment
from segtailor.data.locate import locate
from segtailor.search import Expansion, Processes
from segtailor.search.evaluators.train import TrainEvaluator
from segtailor.search.halves import HalvedTrain
from segtailor.spaces.scalable_path import ScalablePath
from segtailor.training.settings import FitSettings

DATA = "synthetic:size=32x64,train=16,val=4"


@dataclass(frozen=True, kw_only=True)
class Macs:
    unit: str = "MACs"

    def of(self, plan: Plan) -> float:
        return plan.macs()


@pytest.mark.slow
def test_an_expansion_trains_its_candidates_in_parallel(tmp_path: Path) -> None:
    halved = HalvedTrain(dataset=locate(DATA))
    short = TrainEvaluator(augment=Augment(crop=(32, 64)), fit=FitSettings(steps=6, batch=4, lr=0.05))
    settings = {**to_json(short), "data": DATA, "cache": str(tmp_path)}
    problem = Problem(
        space=ScalablePath(),
        cost=Macs(),
        objective=Within(limit=math.inf),
        task=halved.task,
        image=Shape(3, 32, 64),
        data=halved.halves(),
        evaluator=Evaluator(
            work="tests.search.short_training:evaluate", settings=settings, data=halved.halves().fingerprint
        ),
        executor=Processes(devices=("cpu", "cpu")),
    )
    job = Expansion(steps=2).job(problem)
    for _ in job.steps():
        pass
    found: Any = job.result()
    assert found["failed"] == 0
    assert [member["step"] for member in found["family"]] == [0, 1, 2]
    assert len({item["result"]["quality"] for item in found["trials"]}) > 5  # trained, not made up
    assert all(0 <= item["result"]["quality"] <= 1 for item in found["trials"])
