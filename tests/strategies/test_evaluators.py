"""Short training as an evaluator: halves, budget, seed, and a search that trains its candidates in processes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from segtailor.core.codec import from_json, to_json
from segtailor.core.cost import Within
from segtailor.core.errors import DataProblem, UnknownName
from segtailor.core.plan import Plan, Shape
from segtailor.core.space import architecture_document
from segtailor.core.strategy import Evaluator, Problem, Trial, TrialResult
from segtailor.data.augment import Augment
from segtailor.data.cache import open_pixels
from segtailor.data.locate import locate
from segtailor.spaces import published
from segtailor.spaces.scalable_path import ScalablePath
from segtailor.strategies import Expansion, Processes
from segtailor.strategies.evaluators.train import TrainEvaluator
from segtailor.strategies.halves import FIT, JUDGE, HalvedPixels, HalvedTrain
from segtailor.training.settings import FitSettings

DATA = "synthetic:size=32x64,train=9,val=4"
EVALUATOR = TrainEvaluator(augment=Augment(crop=(32, 64)), fit=FitSettings(steps=8, batch=2, lr=0.05))
TRIAL = Trial(id=3, architecture=architecture_document(published("lpsnet-step0")), seed=5)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def pixels(tmp_path_factory: pytest.TempPathFactory) -> HalvedPixels:
    halved, cache = HalvedTrain(dataset=locate(DATA)), tmp_path_factory.mktemp("cache")
    return HalvedPixels(halved.task, open_pixels(halved, FIT, cache), open_pixels(halved, JUDGE, cache))


def test_the_halves_are_disjoint_parts_of_train_only() -> None:
    dataset = locate(DATA)
    halves = HalvedTrain(dataset=dataset).halves()
    fit, judge = ({item.name for item in half} for half in (halves.fit, halves.judge))
    assert len(halves.fit) + len(halves.judge) == 9
    assert not fit & judge
    assert fit | judge == {item.name for item in dataset.samples("train")}


def test_a_search_cannot_ask_for_validation() -> None:
    with pytest.raises(UnknownName, match="no split is called 'val'"):
        HalvedTrain(dataset=locate(DATA)).samples("val")


def test_the_fingerprint_of_the_halves_follows_seed_and_data() -> None:
    def fingerprint(data: str, seed: int) -> str:
        return HalvedTrain(dataset=locate(data), seed=seed).halves().fingerprint

    same = fingerprint(DATA, 0)
    assert same == fingerprint(DATA, 0)
    assert len({same, fingerprint(DATA, 1), fingerprint(DATA.replace("train=9", "train=8"), 0)}) == 3


def test_one_image_cannot_be_halved() -> None:
    with pytest.raises(DataProblem, match="cannot be divided"):
        HalvedTrain(dataset=locate(DATA.replace("train=9", "train=1"))).halves()


def test_a_trial_repeats_by_seed_and_is_scored_on_the_other_half(pixels: HalvedPixels) -> None:
    first, second = (EVALUATOR.judge(TRIAL, data=pixels, device=CPU) for _ in range(2))
    assert first == second
    assert first.status == "done"
    assert first.quality is not None
    assert 0 < first.quality < 1
    assert EVALUATOR.judge(replace(TRIAL, seed=6), data=pixels, device=CPU).quality != first.quality


def test_the_budget_is_a_share_of_the_steps(pixels: HalvedPixels) -> None:
    half = EVALUATOR.judge(replace(TRIAL, budget=0.5), data=pixels, device=CPU)
    least = EVALUATOR.judge(replace(TRIAL, budget=0.01), data=pixels, device=CPU)
    assert (half.metrics["steps"], least.metrics["steps"]) == (4, 1)


def test_epochs_count_the_half_that_trains(pixels: HalvedPixels) -> None:
    by_epoch = replace(EVALUATOR, fit=FitSettings(epochs=2, batch=2))
    result = by_epoch.judge(TRIAL, data=pixels, device=CPU)
    assert result.metrics["steps"] == 2 * int(np.ceil(len(pixels.fit) / 2))


def test_the_reparameterised_form_trains_too(pixels: HalvedPixels) -> None:
    branched = replace(EVALUATOR, reparameterise=True)
    assert branched.judge(TRIAL, data=pixels, device=CPU).status == "done"


def test_settings_survive_json(tmp_path: Path) -> None:
    assert from_json(TrainEvaluator, to_json(EVALUATOR), what="evaluator") == EVALUATOR


@dataclass(frozen=True, kw_only=True)
class Macs:
    unit: str = "MACs"

    def of(self, plan: Plan) -> float:
        return plan.macs()


def evaluate(trial: Trial, device: str) -> TrialResult:
    """Judge a trial in a worker, from plain settings as a recipe's worker does."""
    settings = dict(trial.evaluator)
    data = worker_pixels(settings.pop("data"), settings.pop("cache"))
    evaluator = from_json(TrainEvaluator, settings, what="evaluator")
    return evaluator.judge(trial, data=data, device=torch.device(device))


@cache
def worker_pixels(data: str, folder: str) -> HalvedPixels:
    halved = HalvedTrain(dataset=locate(data))
    fit, judge = (open_pixels(halved, half, Path(folder)) for half in (FIT, JUDGE))
    return HalvedPixels(halved.task, fit, judge)


@pytest.mark.slow
def test_an_expansion_trains_its_candidates_in_parallel(tmp_path: Path) -> None:
    data = DATA.replace("train=9", "train=16")
    halved = HalvedTrain(dataset=locate(data))
    short = TrainEvaluator(augment=Augment(crop=(32, 64)), fit=FitSettings(steps=6, batch=4, lr=0.05))
    settings = {**to_json(short), "data": data, "cache": str(tmp_path)}
    problem = Problem(
        space=ScalablePath(),
        cost=Macs(),
        objective=Within(limit=math.inf),
        task=halved.task,
        image=Shape(3, 32, 64),
        data=halved.halves(),
        evaluator=Evaluator(work=evaluate, settings=settings, data=halved.halves().fingerprint),
        executor=Processes(workers=2),
    )
    job = Expansion(steps=2).job(problem)
    for _ in job.steps():
        pass
    found: Any = job.result()
    assert found["failed"] == 0
    assert [member["step"] for member in found["family"]] == [0, 1, 2]
    assert len({item["result"]["quality"] for item in found["trials"]}) > 5  # trained, not made up
    assert all(0 <= item["result"]["quality"] <= 1 for item in found["trials"])
