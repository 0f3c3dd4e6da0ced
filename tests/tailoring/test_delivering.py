"""The contract: one measurement where that is enough, more where the machine may have been busy, all of them told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import segtailor
from segtailor.core.task import Task
from segtailor.data.cache import open_pixels
from segtailor.data.locate import locate
from segtailor.nets.bundle import Model, save_bundle
from segtailor.runs import Context
from segtailor.tailoring import delivering
from segtailor.tailoring.context import Context
from segtailor.tailoring.delivering import contract, recommend, trivial_miou
from tests.tailoring.test_job import recipe

CLASSES = 3


def context(folder: Path, budget_ms: float) -> Context:
    network = segtailor.create("lpsnet-step0", classes=CLASSES)
    task = Task(classes=tuple(f"class {number}" for number in range(CLASSES)))
    save_bundle(folder / "weights", Model(network=network, task=task))
    plan = recipe()
    request = replace(plan.request, target="cpu/eager/fp32?threads=1", budget_ms=budget_ms)
    small = replace(plan, request=request, image=(32, 64), timing_seconds=0.01)
    outcomes = {"recommend": {"model": str(folder / "weights")}, "int8": {"kept": False}}
    around = Context(cache=folder / "cache", device="cpu")
    return Context(recipe=small, folder=folder, around=around, outcomes=outcomes)


@pytest.mark.parametrize(("budget_ms", "met"), [(10_000.0, True), (1e-6, False)])
def test_what_is_clear_is_measured_once(tmp_path: Path, budget_ms: float, met: bool) -> None:
    found = contract(context(tmp_path, budget_ms))
    assert found["met"] is met
    assert found["tries_p95_ms"] == [found["p95_ms"]]
    assert "times" not in found["sentence"]


@pytest.mark.slow
@pytest.mark.parametrize(("searched", "winner"), [(0.4, "searched"), (0.2, "lpsnet-step0")])
def test_the_best_network_within_the_budget_is_recommended_whoever_made_it(
    tmp_path: Path, searched: float, winner: str
) -> None:
    place = context(tmp_path, 10_000.0)
    model = place.outcomes["recommend"]["model"]
    ready = {"network": "lpsnet-step0", "model": model, "miou": 0.3}
    own = {"network": "searched", "model": model, "miou": searched}
    trained = {"train": own, "baselines": {"networks": [ready]}}
    unchecked = replace(place.recipe, least_gain=None)
    found = recommend(replace(place, recipe=unchecked, outcomes=trained))
    assert (found["network"], found["best_ready"]) == (winner, "lpsnet-step0")
    assert found["worth"] is (winner == "searched")
    assert all(0 < row["median_ms"] <= row["p95_ms"] for row in found["networks"])


@pytest.mark.slow
def test_a_close_miss_is_measured_again_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivering, "PAUSE", 0.0)
    usual = contract(context(tmp_path, 10_000.0))["median_ms"]
    found = contract(context(tmp_path, 0.6 * usual))
    if found["met"]:
        pytest.skip("this machine just became twice as fast")
    assert found["p95_ms"] == min(found["tries_p95_ms"])
    assert len(found["tries_p95_ms"]) == delivering.TRIES
    assert f"measured {delivering.TRIES} times" in found["sentence"]
    late = contract(replace(context(tmp_path, 0.6 * usual), left=-1.0))
    assert late["tries_p95_ms"] == [late["p95_ms"]]


SCENES = "synthetic:size=32x64,train=4,val=6,seed=0"


@pytest.mark.parametrize(("share", "enough"), [(0.0, False), (0.05, False), (0.2, True), (0.9, True)])
def test_what_is_not_far_better_than_one_class_everywhere_is_not_delivered(
    tmp_path: Path, share: float, enough: bool
) -> None:
    """`share` of the way from one class everywhere to perfect labels."""
    place = context(tmp_path, 10_000.0)
    place = replace(place, recipe=replace(place.recipe, data=SCENES))
    trivial = trivial_miou(SCENES, place.around.cache)
    model = place.outcomes["recommend"]["model"]
    own = {"network": "searched", "model": model, "miou": trivial + share * (1 - trivial), "steps": 7}
    found = recommend(replace(place, outcomes={"train": own, "baselines": {"networks": []}}))
    assert (found.get("stop") is None) is enough
    if not enough:
        assert found["stop"].startswith("Not enough time: after 7 steps of training the best network reaches")


def test_one_class_everywhere_scores_the_share_of_that_class_over_the_number_of_classes(
    tmp_path: Path,
) -> None:
    pixels = open_pixels(locate(SCENES), "val", tmp_path)
    labels = np.concatenate([pixels.pair(index).labels.ravel() for index in range(len(pixels))])
    labels = labels[labels != 255]
    counts = np.bincount(labels)
    there = int((counts > 0).sum())
    assert trivial_miou(SCENES, tmp_path) == pytest.approx(counts.max() / counts.sum() / there)
