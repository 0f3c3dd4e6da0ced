"""Settings follow from facts, and each says why."""

from dataclasses import dataclass, replace
from typing import Literal

import pytest

from segtailor.core.errors import UnknownName, UserError
from segtailor.core.registry import RUNTIMES
from segtailor.core.target import parse_target
from segtailor.tailoring.choosing import (
    choose,
    expands,
    largest_trainable,
    typical_macs,
    usual_batch,
    usual_crop,
    usual_effort,
)
from segtailor.tailoring.facts import DataFacts
from segtailor.tailoring.machine import SizeRange
from segtailor.tailoring.recipe import TailorRecipe, TailorRequest, TrainingSpeed
from segtailor.tailoring.tailor import parse_request, parse_seconds
from segtailor.tailoring.time_plan import ENOUGH_STEPS, SHARES, stage_seconds

FACTS = DataFacts(
    images=367, validation=101, classes=11, usual=(360, 480), smallest=(360, 480), largest=(360, 480)
)
REQUEST = TailorRequest(data="folder:x", target="cpu/onnxruntime/fp32", budget_ms=20.0)


@dataclass(frozen=True, kw_only=True)
class Described:
    """A machine as it is told, not measured."""

    accelerator: bool = False
    base: float = 0.05
    per_gmac: float = 0.02
    supernet_step: float | None = None
    workers: int = 2

    @property
    def precision(self) -> Literal["fp32", "bf16"]:
        return "bf16" if self.accelerator else "fp32"

    def speed(self, crop: tuple[int, int], batch: int) -> TrainingSpeed:
        assert min(*crop, batch) >= 1
        return TrainingSpeed(base=self.base, per_gmac=self.per_gmac)

    def macs_per_ms(self, image: tuple[int, int], milliseconds: float) -> float:
        assert min(*image, milliseconds) > 0
        return 5e7

    def sizes(self, crop: tuple[int, int]) -> SizeRange:
        return SizeRange(100.0 * crop[0] * crop[1], 20_000.0 * crop[0] * crop[1])

    def supernet(self) -> float | None:
        return self.supernet_step


def chosen(request: TailorRequest = REQUEST, facts: DataFacts = FACTS, **kind: float) -> TailorRecipe:
    return choose(request, facts, Described(**kind), data=request.data)  # type: ignore[arg-type]


def test_every_choice_has_a_reason_in_one_line() -> None:
    settings = chosen().choices
    assert {choice.setting for choice in settings} >= {"image", "classes", "batch", "crop", "lr", "training"}
    for choice in settings:
        assert choice.reason
        assert "\n" not in choice.reason
        assert len(choice.reason) < 120


def test_the_network_is_made_for_the_usual_size_unless_one_is_asked_for() -> None:
    assert chosen().image == (360, 480)
    assert chosen(replace(REQUEST, image=(96, 128))).image == (96, 128)


@pytest.mark.parametrize("size", [(17, 23), (64, 64), (361, 479), (720, 960), (1080, 1920), (4000, 3000)])
@pytest.mark.parametrize("accelerator", [False, True])
def test_a_crop_is_a_multiple_of_32_and_never_larger_than_the_machine_likes(
    size: tuple[int, int], accelerator: bool
) -> None:
    facts = replace(FACTS, usual=size, smallest=size, largest=size)
    height, width = usual_crop(facts, size, Described(accelerator=accelerator))
    assert height % 32 == width % 32 == 0
    assert height * width <= (768 * 1024 if accelerator else 128 * 256)
    assert height <= max(32, size[0])
    assert width <= max(32, size[1])


@pytest.mark.parametrize("images", [1, 3, 8, 9, 40, 367, 100_000])
def test_a_batch_leaves_four_steps_per_pass_where_it_can(images: int) -> None:
    batch = usual_batch(replace(FACTS, images=images), Described())
    assert 2 <= batch <= 8
    assert batch == 2 or 4 * batch <= images


@pytest.mark.parametrize("seconds", [60.0, 270.0, 1800.0, 7200.0, 86_400.0])
def test_the_plan_fits_the_time(seconds: float) -> None:
    step = TrainingSpeed(base=0.05, per_gmac=0.02).step(2e9)
    effort = usual_effort(seconds, step)
    spent = (
        effort.fit_seconds
        + effort.candidates * (effort.candidate_steps * step + 1.5)
        + 4 * step * effort.teacher_steps
        + 7 / 3 * step * (1 + effort.baselines) * effort.train_steps
    )
    assert spent <= 1.05 * seconds or seconds <= 270.0  # very short plans have their least
    assert effort.train_steps >= 20


def test_candidates_are_as_large_as_the_budget_lets_them_be() -> None:
    sizes = SizeRange(least=1e6, most=1e9)
    small, large, huge = (typical_macs(limit, sizes) for limit in (1.0, 1e8, 1e12))
    assert (small, large, huge) == (1e6, pytest.approx(0.6 * 1e8), 1e9)


def test_a_search_by_gradients_gets_the_steps_that_fit_its_share() -> None:
    request = replace(REQUEST, recipe="squeezenas", seconds=600.0)
    plan = chosen(request, supernet_step=0.5)
    share = stage_seconds(plan.effort, "search")
    assert 0.8 * share < 0.5 * plan.effort.supernet_steps <= share
    assert any(f"{plan.effort.supernet_steps} steps" in choice.value for choice in plan.choices)
    assert chosen(replace(request, recipe="lpsnet")).effort.supernet_steps == 0


@pytest.mark.parametrize("recipe", ["auto", "fasterseg"])
def test_prices_are_fitted_however_short_the_time(recipe: str) -> None:
    plan = chosen(replace(REQUEST, recipe=recipe, seconds=180.0), supernet_step=0.5)
    assert plan.effort.fit_seconds > 10
    assert {choice.setting: choice.value for choice in plan.choices}["latency"] == "fitted"


def test_more_time_means_more_work_of_every_kind() -> None:
    short, long = (
        usual_effort(seconds, TrainingSpeed(base=0.05, per_gmac=0.02).step(2e9)) for seconds in (600, 6000)
    )
    for name in ("candidate_steps", "teacher_steps", "train_steps", "candidates"):
        assert getattr(long, name) >= getattr(short, name)
    assert expands(long)


def test_a_network_that_cannot_be_trained_in_the_time_is_not_searched_for() -> None:
    hurried = chosen(replace(REQUEST, seconds=180.0), per_gmac=0.3)
    patient = chosen(replace(REQUEST, seconds=36_000.0), per_gmac=0.3)
    assert 0 < hurried.search_limit_ms < patient.search_limit_ms == 0.75 * REQUEST.budget_ms
    assert any("--time" in choice.reason for choice in hurried.choices if choice.setting == "largest")
    speed = TrainingSpeed(base=0.05, per_gmac=0.02)
    most = largest_trainable(600.0, speed)
    assert SHARES["train"] * 600 / (2 * speed.step(most)) == pytest.approx(ENOUGH_STEPS)


def test_the_search_keeps_slack_for_what_comes_after_the_network() -> None:
    assert chosen().search_limit_ms < REQUEST.budget_ms


def test_an_unknown_recipe_is_refused_with_near_names() -> None:
    with pytest.raises(UnknownName, match="lpsnet"):
        chosen(replace(REQUEST, recipe="lpsnets"))


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("2h", 7200), ("1.5 h", 5400), ("10min", 600)]
)
def test_times_are_read(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "two hours", "5", "-3m", "3d"])
def test_a_time_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UserError, match="30m"):
        parse_seconds(text)


def test_data_of_ones_own_needs_a_budget() -> None:
    with pytest.raises(UserError, match="--budget"):
        parse_request("folder:x", "cpu/onnxruntime/fp32", None)


def test_three_minutes_are_the_least_time() -> None:
    with pytest.raises(UserError, match="3m"):
        parse_request("folder:x", "cpu/onnxruntime/fp32", "20ms", time="100s")


@pytest.mark.parametrize("budget", ["0ms", "-3ms", "fast", 0.0])
def test_a_budget_that_is_none_is_refused(budget: str | float) -> None:
    with pytest.raises(UserError, match="budget"):
        parse_request("folder:x", "cpu/onnxruntime/fp32", budget)


def test_a_runtime_that_is_not_here_is_refused_before_any_work() -> None:
    with pytest.raises(UserError, match="nosuch"):
        parse_request("folder:x", "cpu/nosuch/fp32", "20ms")


def test_a_budget_in_eight_bits_is_taken_where_files_can_have_them() -> None:
    for runtime in ("onnxruntime", "ncnn"):
        target = parse_target(f"cpu/{runtime}/int8")
        reason = RUNTIMES.get(runtime)().available(target)
        if reason is not None:
            pytest.skip(reason)
        assert parse_request("folder:x", str(target), "20ms").target == str(target)
