"""A teacher is a larger relative of its student; trainings are as long as time allows, and all rivals' as long."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from segtailor.core.space import Architecture, architecture_document, family_of
from segtailor.core.variation import sample
from segtailor.recipes.train import train_recipe
from segtailor.runs import Context, Quiet
from segtailor.spaces.multi_resolution import MultiResolution
from segtailor.spaces.networks import count
from segtailor.spaces.published import published
from segtailor.tailoring.context import Context
from segtailor.tailoring.pacing import LEAST_STEPS
from segtailor.tailoring.settings import Speed
from segtailor.tailoring.speed import step_seconds
from segtailor.tailoring.training import baselines, larger, lengths, teacher, train
from tests.tailoring.test_job import recipe

DATA = "synthetic:size=32x64,train=8,val=2,seed=0"
READY = ("lpsnet-step0", "lpsnet-step1")


def context(
    folder: Path, student: Architecture, *, system: str, searched: Architecture | None = None
) -> Context:
    files = {}
    for name, arch in (("student", student), ("teacher", searched)):
        files[name] = folder / f"{name}.json"
        if arch is not None:
            files[name].write_text(json.dumps(architecture_document(arch)))
    outcomes = {
        "choose": {"architecture": str(files["student"]), "making_seconds": 1.0},
        "ready": {"networks": [{"network": name, "making_seconds": 1.0} for name in READY]},
        "teacher": {"model": None},
        "search": {"teacher": str(files["teacher"]) if searched is not None else None},
    }
    plan = replace(recipe(), data=DATA, system=system, crop=(32, 64))
    around = Context(cache=folder / "cache", device="cpu")
    return Context(recipe=plan, folder=folder, around=around, outcomes=outcomes)


def times(larger: Architecture, student: Architecture) -> float:
    return count(larger, image=(32, 64)).macs / count(student, image=(32, 64)).macs


def test_a_published_relative_of_about_four_times_the_work_teaches(tmp_path: Path) -> None:
    student = published("lpsnet-s")
    found = larger(context(tmp_path, student, system="lpsnet"))
    assert found is not None
    name, arch = found
    assert name.startswith("lpsnet")
    assert 2 < times(arch, student) < 8


def test_a_teacher_that_was_searched_beside_its_student_comes_first(tmp_path: Path) -> None:
    student, searched = published("fasterseg-student"), published("fasterseg-teacher")
    found = larger(context(tmp_path, student, system="fasterseg", searched=searched))
    assert found == ("searched teacher", searched)


def test_where_nothing_published_fits_a_network_of_the_space_is_drawn(tmp_path: Path) -> None:
    space = MultiResolution(layers=8, ratios=(1, 2, 3), stem_ratios=(2, 3), head_ratios=(2, 3))
    rng = Random(0)
    student = min((sample(space, rng) for _ in range(16)), key=lambda arch: count(arch, image=(32, 64)).macs)
    found = larger(context(tmp_path, student, system="fasterseg"))
    assert found is not None
    name, arch = found
    assert name.startswith("drawn")
    assert family_of(arch) == family_of(student)
    assert 1.5 <= times(arch, student) <= 12
    assert larger(context(tmp_path, student, system="fasterseg")) == found


def test_the_largest_network_of_all_has_no_teacher(tmp_path: Path) -> None:
    assert larger(context(tmp_path, published("squeezenas-mac-xlarge"), system="squeezenas")) is None


@pytest.mark.slow
def test_a_teacher_with_no_time_to_learn_leaves_it_to_its_student(tmp_path: Path) -> None:
    place = context(tmp_path, published("lpsnet-s"), system="lpsnet")
    request = replace(place.recipe.request, seconds=200.0)
    hurried = replace(place, recipe=replace(place.recipe, request=request), pace=1e-6)
    found = teacher(hurried)
    assert found["model"] is None
    assert "would learn for 2 steps only" in found["reason"]
    assert not hurried.begun("teacher")


def rivals(folder: Path, *, left: float | None = None, **decided: object) -> Context:
    place = context(folder, published("lpsnet-step0"), system="lpsnet")
    request = replace(place.recipe.request, seconds=None if left is None else 200.0)
    plan = replace(place.recipe, request=request, image=(32, 64), batch=2)
    trained = {"steps": decided.get("steps")}
    outcomes = {**place.outcomes, "lengths": decided, "train": trained}
    return replace(place, recipe=plan, left=left, outcomes=outcomes)


def test_without_a_time_all_rivals_are_trained_as_planned(tmp_path: Path) -> None:
    place = rivals(tmp_path)
    assert lengths(place) == {"steps": place.recipe.effort.train_steps, "networks": list(READY)}


@pytest.mark.slow
def test_with_a_time_probes_of_all_rivals_decide_on_one_length(tmp_path: Path) -> None:
    patient = lengths(rivals(tmp_path, left=3000.0))
    assert patient["networks"] == list(READY)
    assert patient["steps"] > LEAST_STEPS
    spent = sum(cost["step"] * patient["steps"] + cost["rest"] for cost in patient["costs_seconds"])
    assert 2900 < spent < 3000


class Heard(Quiet):
    """Keeps what is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def message(self, text: str) -> None:
        self.told.append(text)


@pytest.mark.slow
def test_a_training_that_would_be_too_short_is_extended_past_the_time_and_that_is_told(
    tmp_path: Path,
) -> None:
    place, heard = rivals(tmp_path, left=21.0), Heard()
    found = lengths(replace(place, around=replace(place.around, display=heard)))
    assert (found["steps"], found["networks"]) == (LEAST_STEPS, [])
    assert "after the time asked for: it is extended" in heard.told[-1]
    assert found["seconds"] > 0
    assert "stop" not in found


@pytest.mark.slow
def test_a_machine_far_too_slow_for_any_training_stops_and_says_what_time_it_needs(tmp_path: Path) -> None:
    found = lengths(rivals(tmp_path, left=-500.0))
    assert found["steps"] == 0
    assert f"Not enough time: {LEAST_STEPS} steps of training" in found["stop"]
    assert "Give --time " in found["stop"]


def test_ready_networks_are_trained_as_long_as_the_winner_was_not_as_long_as_was_planned(
    tmp_path: Path,
) -> None:
    place = rivals(tmp_path, steps=5, networks=list(READY))
    place = replace(place, outcomes={**place.outcomes, "train": {"steps": 3}})
    assert {row["steps"] for row in baselines(place)["networks"]} == {3}


def test_the_winner_and_the_ready_networks_are_trained_for_as_many_steps(tmp_path: Path) -> None:
    place = rivals(tmp_path, steps=3, networks=list(READY))
    found = baselines(place)
    assert [row["network"] for row in found["networks"]] == list(READY)
    assert {row["steps"] for row in found["networks"]} == {3} == {train(place)["steps"]}
    assert found["left_out"] == []


@pytest.mark.parametrize(("left", "steps"), [(1000.0, [4, 4]), (170.0, [4]), (65.0, [2])])
def test_on_a_machine_that_became_slow_the_second_ready_network_goes_before_the_length(
    tmp_path: Path, left: float, steps: list[int]
) -> None:
    """Steps are said to cost 20 s, or 60 s: two ready networks, one, or not even one fit what is left."""
    costs = [{"step": step, "rest": 0.0} for step in (20.0, 20.0, 60.0)]
    place = rivals(
        tmp_path, left=left, steps=4, networks=list(READY), making_seconds=1.0, costs_seconds=costs
    )
    found = baselines(place)
    assert [row["steps"] for row in found["networks"]] == steps
    assert found["left_out"] == list(READY[len(steps) :])
    again = baselines(replace(place, left=-100.0))  # resumed, with no time left: what began counts
    assert [row["steps"] for row in again["networks"]] == steps


def test_a_speed_says_both_how_long_work_takes_and_how_much_fits() -> None:
    speed = Speed(base=0.02, per_gmac=0.1)
    assert speed.step(2e9) == pytest.approx(0.22)
    assert speed.macs(0.22) == pytest.approx(2e9)
    assert speed.macs(0.01) == 0


@pytest.mark.slow
def test_a_probe_takes_a_few_steps_and_leaves_nothing(tmp_path: Path) -> None:
    around = Context(cache=tmp_path / "cache", device="cpu")
    plan = train_recipe(
        "lpsnet-step0", DATA, crop=(32, 64), changes=["fit.batch=2", "fit.steps=100000"], surroundings=around
    )
    assert 0 < step_seconds(plan, around) < 1
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
