"""A teacher is a larger network of the student's family; networks that are compared get the same number of steps."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from segtailor.core.space import Architecture, architecture_document, family_of
from segtailor.core.variation import sample
from segtailor.nets.bundle import load_bundle
from segtailor.recipes.recipe import parse_recipe, recipe_document
from segtailor.recipes.train import TrainRecipe, train_recipe
from segtailor.runs import Context, Quiet
from segtailor.spaces.multi_resolution import MultiResolution
from segtailor.spaces.networks import count
from segtailor.spaces.published import published
from segtailor.tailoring import training as training_stage
from segtailor.tailoring.machine import step_seconds
from segtailor.tailoring.recipe import TrainingSpeed
from segtailor.tailoring.stage import (
    ChosenNetwork,
    LengthsOutcome,
    ReadyOutcome,
    SearchOutcome,
    StageContext,
    TeacherOutcome,
    TimedNetwork,
    TrainedNetwork,
)
from segtailor.tailoring.time_plan import MIN_TRAIN_STEPS, TrainingCost
from segtailor.tailoring.training import (
    NetworkTraining,
    decide_lengths,
    larger_network,
    train_baselines,
    train_repeats,
    train_teacher,
    train_winner,
    training_recipe,
)
from tests.tailoring.test_job import recipe, stage_context

DATA = "synthetic:size=32x64,train=8,val=2,seed=0"
READY = ("lpsnet-step0", "lpsnet-step1")
NO_TEACHER = TeacherOutcome(network=None, model=None, reason="none")


def timed(network: str) -> TimedNetwork:
    return TimedNetwork(network=network, median_ms=1.0, p95_ms=1.0, making_seconds=1.0)


READY_NETWORKS = ReadyOutcome(networks=tuple(timed(name) for name in READY))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A stage that trains, the network that was chosen and the search that found it."""

    stage: StageContext
    chosen: ChosenNetwork
    searched: SearchOutcome

    def larger(self) -> tuple[str, Architecture] | None:
        return larger_network(self.stage, self.chosen, self.searched)


def case(
    folder: Path, student: Architecture, *, system: str, searched: Architecture | None = None, **changes: Any
) -> Case:
    folder.mkdir(exist_ok=True)
    files = {}
    for name, arch in (("student", student), ("teacher", searched)):
        if arch is not None:
            files[name] = str(folder / f"{name}.json")
            Path(files[name]).write_text(json.dumps(architecture_document(arch)))
    chosen = ChosenNetwork(**vars(timed("searched")), architecture=files["student"], measured=(), kept=True)
    found = SearchOutcome(
        run="search", found=(), trials=1, strategy="evolution", unit="MACs", teacher=files.get("teacher")
    )
    plan = replace(recipe(), data=DATA, system=system, crop=(32, 64))
    return Case(stage=stage_context(folder, recipe=plan, **changes), chosen=chosen, searched=found)


def times(larger: Architecture, student: Architecture) -> float:
    return count(larger, image=(32, 64)).macs / count(student, image=(32, 64)).macs


def test_a_published_relative_of_about_four_times_the_work_teaches(tmp_path: Path) -> None:
    student = published("lpsnet-s")
    found = case(tmp_path, student, system="lpsnet").larger()
    assert found is not None
    name, arch = found
    assert name.startswith("lpsnet")
    assert 2 < times(arch, student) < 8


def test_a_teacher_that_was_searched_beside_its_student_comes_first(tmp_path: Path) -> None:
    student, searched = published("fasterseg-student"), published("fasterseg-teacher")
    found = case(tmp_path, student, system="fasterseg", searched=searched).larger()
    assert found == ("searched teacher", searched)


def test_where_nothing_published_fits_a_network_of_the_space_is_drawn(tmp_path: Path) -> None:
    space = MultiResolution(layers=8, ratios=(1, 2, 3), stem_ratios=(2, 3), head_ratios=(2, 3))
    rng = Random(0)
    student = min((sample(space, rng) for _ in range(16)), key=lambda arch: count(arch, image=(32, 64)).macs)
    found = case(tmp_path, student, system="fasterseg").larger()
    assert found is not None
    name, arch = found
    assert name.startswith("drawn")
    assert family_of(arch) == family_of(student)
    assert 1.5 <= times(arch, student) <= 12
    assert case(tmp_path, student, system="fasterseg").larger() == found


def test_the_largest_network_of_all_has_no_teacher(tmp_path: Path) -> None:
    assert case(tmp_path, published("squeezenas-mac-xlarge"), system="squeezenas").larger() is None


@pytest.mark.slow
def test_a_teacher_with_no_time_to_learn_leaves_it_to_its_student(tmp_path: Path) -> None:
    usual = case(tmp_path, published("lpsnet-s"), system="lpsnet", pace=1e-6)
    request = replace(usual.stage.recipe.request, seconds=2000.0)
    hurried = replace(usual.stage, recipe=replace(usual.stage.recipe, request=request))
    found = train_teacher(hurried, usual.chosen, usual.searched)
    assert found.model is None
    assert "could be trained for 2 steps only" in str(found.reason)
    assert not hurried.begun("teacher")


@pytest.mark.parametrize(("lead", "used"), [(0.05, True), (0.01, False), (-0.2, False)])
def test_only_a_teacher_that_is_clearly_better_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lead: float, used: bool
) -> None:
    usual = case(tmp_path, published("lpsnet-s"), system="lpsnet")
    steps: dict[str, int] = {}

    def scored(_: object, name: str, training: NetworkTraining, recipe: TrainRecipe) -> TrainedNetwork:
        steps[training.folder] = recipe.fit.steps or 0
        miou = 0.4 + lead if training.folder == "teacher" else 0.4
        return TrainedNetwork(
            network=name, run="r", model="m", steps=recipe.fit.steps or 0, miou=miou, params=1
        )

    monkeypatch.setattr(training_stage, "_trained", scored)
    found = train_teacher(usual.stage, usual.chosen, usual.searched)
    assert steps["teacher"] == steps["teacher-check"] > 0
    assert (found.model is not None) == used
    assert used or "by more than the noise" in str(found.reason)


@pytest.mark.parametrize("folder", ["plain", 'with "quotes"', "back\\slash", "it's", 'ends with \\"'])
def test_a_teacher_may_lie_in_a_folder_of_any_name(tmp_path: Path, folder: str) -> None:
    place = rivals(tmp_path).stage
    teacher = str(tmp_path / folder / "weights")
    training = NetworkTraining(folder="train", model=published("lpsnet-step0"), teacher=teacher)
    found = training_recipe(place, training, 10)
    assert found.teacher == teacher
    assert found.fit.distill is not None
    assert parse_recipe(recipe_document(found), what="recipe") == found


def test_a_winner_is_trained_with_a_teacher_whose_folder_has_quotes_and_backslashes(tmp_path: Path) -> None:
    usual = rivals(tmp_path / 'a "quoted" \\ folder')
    first = train_baselines(
        usual.stage, NO_TEACHER, LengthsOutcome(steps=1, networks=READY[:1]), trained(steps=1)
    ).networks[0]
    teacher = TeacherOutcome(network="lpsnet-step0", model=first.model)
    found = train_winner(usual.stage, usual.chosen, teacher, LengthsOutcome(steps=1, networks=()))
    kept = json.loads((Path(found.run) / "recipe.json").read_text())
    assert kept["teacher"] == first.model


@pytest.mark.parametrize(
    ("steps", "seconds", "ema", "limit"),
    [(399, None, 0.98, None), (400, 0.2, 0.999, 1.0), (9, 3.14159, 0.98, 3.1), (2500, None, 0.999, None)],
)
def test_a_training_has_the_settings_of_the_plan(
    tmp_path: Path, steps: int, seconds: float | None, ema: float, limit: float | None
) -> None:
    place = rivals(tmp_path).stage
    plan = place.recipe
    training = NetworkTraining(folder="train", model=published("lpsnet-step0"))
    found = training_recipe(place, training, steps, seconds=seconds, least_steps=5)
    fit = found.fit
    rate = plan.lr if steps == 2500 else 2 * plan.lr  # short trainings learn faster
    assert (fit.steps, fit.batch, fit.lr, fit.optimiser) == (steps, plan.batch, rate, "adamw")
    assert (fit.weight_decay, fit.ema, fit.seconds) == (0.01, ema, limit)
    assert fit.least_steps == (1 if seconds is None else 5)
    assert (found.augment.crop, found.val_split, found.reparameterise) == (plan.crop, "val", True)
    assert (found.teacher, fit.distill) == (None, None)


def rivals(folder: Path, *, left: float | None = None) -> Case:
    usual = case(folder, published("lpsnet-step0"), system="lpsnet", left=left)
    request = replace(usual.stage.recipe.request, seconds=None if left is None else 200.0)
    plan = replace(usual.stage.recipe, request=request, image=(32, 64), batch=2)
    return replace(usual, stage=replace(usual.stage, recipe=plan))


def trained(steps: int) -> TrainedNetwork:
    return TrainedNetwork(network="searched", run="r", model="m", steps=steps, miou=0.5, params=1)


def lengths(usual: Case) -> LengthsOutcome:
    return decide_lengths(usual.stage, usual.chosen, READY_NETWORKS, NO_TEACHER)


def test_without_a_time_all_rivals_are_trained_as_planned(tmp_path: Path) -> None:
    usual = rivals(tmp_path)
    assert lengths(usual) == LengthsOutcome(steps=usual.stage.recipe.effort.train_steps, networks=READY)


@pytest.mark.slow
def test_with_a_time_all_rivals_train_equally_long(tmp_path: Path) -> None:
    patient = lengths(rivals(tmp_path, left=3000.0))
    assert patient.networks == READY
    assert patient.steps > MIN_TRAIN_STEPS
    spent = sum((patient.seconds or 0.0) + cost.rest for cost in patient.costs_seconds or ())
    assert 2900 < spent < 3000


class Heard(Quiet):
    """Keeps the messages."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


@pytest.mark.slow
def test_a_training_that_would_be_too_short_is_extended_past_the_time_and_that_is_told(
    tmp_path: Path,
) -> None:
    usual, heard = rivals(tmp_path, left=21.0), Heard()
    watched = replace(usual.stage, context=replace(usual.stage.context, display=heard))
    found = lengths(replace(usual, stage=watched))
    assert (found.steps, found.networks) == (MIN_TRAIN_STEPS, ())
    assert "after the time asked for: it is extended" in heard.messages[-1]
    assert found.seconds is not None
    assert found.seconds > 0
    assert found.stop is None


@pytest.mark.slow
def test_a_machine_far_too_slow_for_any_training_stops_and_says_what_time_it_needs(tmp_path: Path) -> None:
    found = lengths(rivals(tmp_path, left=-500.0))
    assert found.steps == 0
    assert f"Not enough time: {MIN_TRAIN_STEPS} steps of training" in str(found.stop)
    assert "Give --time " in str(found.stop)


def test_ready_networks_are_trained_as_long_as_the_winner_was_not_as_long_as_was_planned(
    tmp_path: Path,
) -> None:
    planned = LengthsOutcome(steps=5, networks=READY)
    found = train_baselines(rivals(tmp_path).stage, NO_TEACHER, planned, trained(steps=3))
    assert {row.steps for row in found.networks} == {3}


def test_the_winner_and_the_ready_networks_are_trained_for_as_many_steps(tmp_path: Path) -> None:
    usual, planned = rivals(tmp_path), LengthsOutcome(steps=3, networks=READY)
    winner = train_winner(usual.stage, usual.chosen, NO_TEACHER, planned)
    found = train_baselines(usual.stage, NO_TEACHER, planned, winner)
    assert tuple(row.network for row in found.networks) == READY
    assert {row.steps for row in found.networks} == {3} == {winner.steps}
    assert found.left_out == ()


def test_the_winner_and_the_best_ready_network_are_trained_with_a_second_seed(tmp_path: Path) -> None:
    usual, planned = rivals(tmp_path), LengthsOutcome(steps=3, networks=READY, seeds=2)
    place = usual.stage
    winner = train_winner(place, usual.chosen, NO_TEACHER, planned)
    ready = train_baselines(place, NO_TEACHER, planned, winner)
    best = max(ready.networks, key=lambda row: row.miou)
    found = train_repeats(place, usual.chosen, NO_TEACHER, planned, winner, ready).networks
    assert [row.network for row in found] == [winner.network, best.network]
    for repeated, first in zip(found, (winner, best), strict=True):
        assert repeated.steps == first.steps
        before, after = (load_bundle(Path(row.model)).network.state_dict() for row in (first, repeated))
        assert any(not torch.equal(before[name], after[name]) for name in before)
    once = replace(planned, seeds=1)
    assert train_repeats(place, usual.chosen, NO_TEACHER, once, winner, ready).networks == ()
    late = replace(
        rivals(tmp_path, left=-100.0).stage, context=replace(place.context, folder=tmp_path / "late")
    )
    costs = tuple(TrainingCost(step=20.0) for _ in range(3))
    timed = replace(planned, seconds=80.0, making_seconds=1.0, costs_seconds=costs)
    assert train_repeats(late, usual.chosen, NO_TEACHER, timed, winner, ready).networks == ()


@pytest.mark.parametrize(("left", "steps"), [(1000.0, [6, 3]), (110.0, [6]), (65.0, [3])])
def test_on_a_machine_that_became_slow_the_second_ready_network_goes_before_the_length(
    tmp_path: Path, left: float, steps: list[int]
) -> None:
    """Steps are said to cost 20 s, or 40 s and 30 s at the end: two ready networks, one, or not even one fit.

    Half as many steps again are allowed, if they turn out to be quicker; here they are.
    """
    costs = (*(TrainingCost(step=20.0) for _ in range(2)), TrainingCost(step=40.0, rest=30.0))
    planned = LengthsOutcome(steps=4, networks=READY, seconds=80.0, making_seconds=1.0, costs_seconds=costs)
    place = rivals(tmp_path, left=left).stage
    found = train_baselines(place, NO_TEACHER, planned, trained(steps=4))
    assert [row.steps for row in found.networks] == steps
    assert found.left_out == READY[len(steps) :]
    late = replace(place, left=-100.0)  # resumed, with no time left: what began counts
    again = train_baselines(late, NO_TEACHER, planned, trained(steps=4))
    assert [row.steps for row in again.networks] == steps
    assert [row.seconds for row in again.networks] == [row.seconds for row in found.networks]


def test_a_speed_says_both_how_long_work_takes_and_how_much_fits() -> None:
    speed = TrainingSpeed(base=0.02, per_gmac=0.1)
    assert speed.step(2e9) == pytest.approx(0.22)
    assert speed.macs(0.22) == pytest.approx(2e9)
    assert speed.macs(0.01) == 0


@pytest.mark.slow
def test_a_probe_takes_a_few_steps_and_leaves_nothing(tmp_path: Path) -> None:
    context = Context(cache=tmp_path / "cache", device="cpu")
    plan = train_recipe("lpsnet-step0", DATA, crop=(32, 64), context=context)
    plan = replace(plan, fit=replace(plan.fit, batch=2, steps=100_000))
    assert 0 < step_seconds(plan, context) < 1
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
