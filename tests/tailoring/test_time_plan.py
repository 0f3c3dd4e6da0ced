"""Time is divided in one place: shares add up, rivals get the same number of steps, the end is planned for."""

from dataclasses import replace

import pytest

from segtailor.tailoring.time_plan import (
    COMMAND_SECONDS,
    FIXED_SECONDS,
    FURTHER_STEPS,
    MIN_PACE,
    SEEDED_STEPS,
    SHARES,
    TrainingCost,
    closing_seconds,
    equal_time,
    expected_seconds,
    extra_training_seconds,
    pace,
    stage_seconds,
)
from tests.tailoring.test_choosing import REQUEST, chosen

SMALL, LARGE, HUGE = (
    TrainingCost(step=0.05, rest=4.0),
    TrainingCost(step=0.2, rest=6.0),
    TrainingCost(step=1.0, rest=10.0),
)


def test_shares_of_the_time_add_up() -> None:
    assert sum(SHARES.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("seconds", [180.0, 600.0, 7200.0])
def test_the_time_asked_for_is_what_is_expected_where_it_can_be_kept(seconds: float) -> None:
    plan = replace(chosen(replace(REQUEST, seconds=seconds)), planning_seconds=15.0)
    assert expected_seconds(plan) == seconds
    late = replace(plan, planning_seconds=seconds)
    least = seconds + FIXED_SECONDS + MIN_PACE * plan.effort.training_seconds + plan.effort.closing_seconds
    assert expected_seconds(late) >= least


def test_without_a_time_all_that_is_planned_is_expected() -> None:
    plan = chosen()
    assert expected_seconds(plan) == pytest.approx(1800, rel=0.02)
    assert pace(plan.effort, "search", left=None) == 1.0


def test_a_pace_spreads_what_is_left_over_all_that_is_ahead() -> None:
    effort = chosen(replace(REQUEST, seconds=600.0)).effort
    ahead = stage_seconds(effort, "teacher") + stage_seconds(effort, "train")
    assert pace(effort, "teacher", left=effort.closing_seconds + 1.5 * ahead) == pytest.approx(1.5)
    assert pace(effort, "teacher", left=0.0) == MIN_PACE
    assert pace(effort, "export", left=0.0) == 1.0


@pytest.mark.parametrize("ready", [[], [SMALL], [LARGE], [LARGE, SMALL], [HUGE, HUGE], [SMALL] * 4])
@pytest.mark.parametrize("seconds", [60.0, 200.0, 5000.0])
def test_winner_and_ready_networks_train_equally_long_and_fill_their_time(
    ready: list[TrainingCost], seconds: float
) -> None:
    shared = equal_time(SMALL, ready, seconds=seconds)
    everyone = [SMALL, *ready[: shared.ready]]
    if shared.seeds == 2:  # the first ready network stands for the best one
        everyone += [SMALL, ready[0]]
    assert sum(shared.seconds + one.rest for one in everyone) == pytest.approx(seconds)


def test_there_is_a_ready_network_if_any_and_more_if_all_get_enough_steps() -> None:
    assert equal_time(SMALL, [], seconds=100.0).ready == 0
    assert equal_time(SMALL, [HUGE, HUGE], seconds=100.0).ready == 1
    three = (SMALL, LARGE, SMALL)
    just = 3 * FURTHER_STEPS * LARGE.step + sum(one.rest for one in three)
    assert equal_time(SMALL, [LARGE, SMALL], seconds=just - 1.0).ready == 1
    assert equal_time(SMALL, [LARGE, SMALL], seconds=just + 1.0).ready == 2


def test_the_best_two_are_trained_twice_where_every_training_stays_long() -> None:
    everyone = (SMALL, LARGE, SMALL, LARGE)
    just = len(everyone) * SEEDED_STEPS * LARGE.step + sum(one.rest for one in everyone)
    assert equal_time(SMALL, [LARGE], seconds=just - 1.0).seeds == 1
    shared = equal_time(SMALL, [LARGE], seconds=just + 1.0)
    assert shared.seeds == 2
    assert sum(shared.seconds + one.rest for one in everyone) == pytest.approx(just + 1.0)
    assert equal_time(SMALL, [], seconds=10 * just).seeds == 1


def test_without_a_ready_network_its_time_is_the_winners() -> None:
    alone, beside = (equal_time(SMALL, ready, seconds=100.0).seconds for ready in ([], [SMALL]))
    assert alone >= 2 * beside


def test_no_time_at_all_leaves_the_least_training() -> None:
    shared = equal_time(SMALL, [LARGE, HUGE], seconds=-50.0)
    assert shared == (0.0, 1, 1)
    assert SMALL.steps(shared.seconds) == 2


@pytest.mark.parametrize(
    ("making", "took"), [(1.2, 15.4), (2.0, 23.9), (2.3, 25.5), (2.6, 26.2), (3.9, 29.7)]
)
def test_the_end_is_reckoned_with_as_it_was_measured(making: float, took: float) -> None:
    """Two quiet cores, export to layers: lpsnet-step0, fast-scnn, lpsnet-s, lr-aspp-mobilenetv3-large, pidnet-s."""
    assert closing_seconds(making) - COMMAND_SECONDS == pytest.approx(took, abs=4.0)
    assert closing_seconds(making, untimed=2) > closing_seconds(making, untimed=1) > closing_seconds(making)


def test_scoring_many_pictures_counts() -> None:
    few, many = (extra_training_seconds(2.0, step=0.3, batches=batches) for batches in (1.0, 1000.0))
    assert many - few == pytest.approx(999 * 0.2)
