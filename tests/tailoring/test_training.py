"""A teacher is a larger relative of its student, and trainings are as long as time allows."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from segtailor.api.networks import count, published
from segtailor.api.training import Surroundings, train_recipe
from segtailor.core.sampling import sample
from segtailor.core.space import Architecture, architecture_document, family_of
from segtailor.spaces.multi_resolution import MultiResolution
from segtailor.tailoring.context import Context
from segtailor.tailoring.settings import Speed
from segtailor.tailoring.speed import step_seconds
from segtailor.tailoring.training import larger, teacher
from tests.tailoring.test_job import recipe

DATA = "synthetic:size=32x64,train=8,val=2,seed=0"


def context(
    folder: Path, student: Architecture, *, system: str, searched: Architecture | None = None
) -> Context:
    files = {}
    for name, arch in (("student", student), ("teacher", searched)):
        files[name] = folder / f"{name}.json"
        if arch is not None:
            files[name].write_text(json.dumps(architecture_document(arch)))
    outcomes = {
        "choose": {"architecture": str(files["student"])},
        "search": {"teacher": str(files["teacher"]) if searched is not None else None},
    }
    plan = replace(recipe(), data=DATA, system=system, crop=(32, 64))
    around = Surroundings(cache=folder / "cache", device="cpu")
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


def test_a_speed_says_both_how_long_work_takes_and_how_much_fits() -> None:
    speed = Speed(base=0.02, per_gmac=0.1)
    assert speed.step(2e9) == pytest.approx(0.22)
    assert speed.macs(0.22) == pytest.approx(2e9)
    assert speed.macs(0.01) == 0


def test_a_probe_takes_a_few_steps_and_leaves_nothing(tmp_path: Path) -> None:
    around = Surroundings(cache=tmp_path / "cache", device="cpu")
    plan = train_recipe(
        "lpsnet-step0", DATA, crop=(32, 64), changes=["fit.batch=2", "fit.steps=100000"], surroundings=around
    )
    assert 0 < step_seconds(plan, around) < 1
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
