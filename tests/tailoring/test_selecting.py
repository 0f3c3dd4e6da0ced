"""Which networks are trained: those that keep the budget as timed; what was timed before is not timed again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from segtailor.core.space import architecture_document, family_of, fingerprint_of
from segtailor.costs.fitted import FittedLatency
from segtailor.costs.work import Work
from segtailor.runs import Layout
from segtailor.spaces.networks import count, resolve
from segtailor.spaces.published import published
from segtailor.tailoring.selecting import (
    MAX_OTHER_WORK,
    MAX_RELATIVE_WORK,
    choose,
    expected_ms,
    find_ready,
    worth_timing,
)
from segtailor.tailoring.stage import (
    ChosenNetwork,
    FastestOutcome,
    FoundNetwork,
    PackOutcome,
    SearchOutcome,
    StageContext,
    TimedCandidate,
    TimedNetwork,
)
from segtailor.tailoring.time_plan import BUDGET_SHARE
from tests.tailoring.test_job import recipe, stage_context

WINNER = "lpsnet-step1"
IMAGE = (32, 64)
NO_PACK = PackOutcome(reason="no time")


def timed(network: str, p95_ms: float) -> TimedNetwork:
    return TimedNetwork(network=network, median_ms=p95_ms, p95_ms=p95_ms, making_seconds=1.0)


def fastest(**known: float) -> FastestOutcome:
    """Ready networks of known latency."""
    rows = tuple(timed(name.replace("_", "-"), p95_ms) for name, p95_ms in known.items())
    return FastestOutcome(**vars(rows[0]), networks=rows, possible=True, stop=None)


def winner(folder: Path) -> ChosenNetwork:
    """A searched network that takes a millisecond."""
    file = folder / "winner.json"
    file.write_text(json.dumps(architecture_document(published(WINNER))))
    row = replace(timed("searched", 1.1), median_ms=1.0)
    return ChosenNetwork(**vars(row), architecture=str(file), measured=(), kept=True)


def stage(folder: Path, *, budget_ms: float, wanted: int = 2) -> StageContext:
    plan = recipe()
    request = replace(plan.request, target="cpu/eager/fp32?threads=1", budget_ms=budget_ms)
    effort = replace(plan.effort, baselines=wanted)
    plan = replace(plan, request=request, image=IMAGE, timing_seconds=0.01, effort=effort)
    return stage_context(folder, recipe=plan)


@pytest.mark.parametrize("budget_ms", [0.5, 2.0, 10.0])
def test_only_networks_that_may_keep_the_budget_are_timed(tmp_path: Path, budget_ms: float) -> None:
    likely = max(1.0, budget_ms) * count(WINNER, image=IMAGE).macs
    for name in worth_timing(stage(tmp_path, budget_ms=budget_ms), winner(tmp_path)):
        relative = family_of(resolve(name)) == family_of(published(WINNER))
        limit = MAX_RELATIVE_WORK if relative else MAX_OTHER_WORK
        assert count(name, image=IMAGE, classes=11).macs <= 1.05 * limit * likely


def test_the_best_expected_of_the_networks_known_to_keep_the_budget_is_taken_without_timing(
    tmp_path: Path,
) -> None:
    known = fastest(lpsnet_step0=0.3, lpsnet_step1=0.9)
    one = find_ready(stage(tmp_path, budget_ms=1.0, wanted=1), known, winner(tmp_path))
    assert one.networks == (known.networks[1],)
    tight = find_ready(stage(tmp_path, budget_ms=0.5), known, winner(tmp_path))
    assert tight.networks[0] == known.networks[0]


def test_none_is_taken_where_none_keeps_the_budget_or_none_is_wanted(tmp_path: Path) -> None:
    known = fastest(lpsnet_step0=0.3, lpsnet_step1=0.9)
    assert find_ready(stage(tmp_path, budget_ms=1e-3), known, winner(tmp_path)).networks == ()
    assert find_ready(stage(tmp_path, budget_ms=1.0, wanted=0), known, winner(tmp_path)).networks == ()


def test_networks_that_start_whole_come_before_those_that_start_from_nothing(tmp_path: Path) -> None:
    def order(start: str) -> list[str]:
        begun = stage(tmp_path, budget_ms=200.0)
        request = replace(begun.recipe.request, start=start)
        begun = replace(begun, recipe=replace(begun.recipe, request=request))
        return worth_timing(begun, winner(tmp_path))

    started, random = order("auto"), order("none")
    assert sorted(started) == sorted(random)
    assert started[0] == "auxcells-arch0-lite0"  # its whole encoder knows ImageNet
    assert random.index("pidnet-s") < random.index("auxcells-arch0-lite0")
    assert started.index("lr-aspp-mobilenetv3-large") < random.index("lr-aspp-mobilenetv3-large")
    assert [name for name in started if "lpsnet" in name] == [name for name in random if "lpsnet" in name]


def test_the_best_expected_network_comes_first_whoever_made_it(tmp_path: Path) -> None:
    rows = fastest(auxcells_arch0_lite0=0.5, pidnet_s=0.5, ddrnet_23_slim=0.5)
    begun = stage(tmp_path, budget_ms=200.0)
    begun = replace(begun, recipe=replace(begun.recipe, request=replace(begun.recipe.request, start="auto")))
    for wanted, names in ((1, ["auxcells-arch0-lite0"]), (2, ["auxcells-arch0-lite0", "pidnet-s"])):
        effort = replace(begun.recipe.effort, baselines=wanted)
        found = find_ready(
            replace(begun, recipe=replace(begun.recipe, effort=effort)), rows, winner(tmp_path)
        )
        assert [row.network for row in found.networks] == names


def ms(name: str) -> float:
    return count(name, image=IMAGE).macs / 1e6


@dataclass(frozen=True, kw_only=True)
class KnownTarget(StageContext):
    """A target of known speed instead of a measured one: so many multiply-accumulates per millisecond."""

    macs_per_ms: float = 1e6

    def timed(self, network: str, model: str) -> TimedNetwork:
        p95_ms = count(resolve(model), image=self.recipe.image).macs / self.macs_per_ms
        return replace(timed(network, p95_ms), median_ms=0.9 * p95_ms)


@dataclass(frozen=True, kw_only=True)
class DisturbedTarget(KnownTarget):
    """A target on which other programs slow down some runs of the first two timings."""

    timings: list[int] = field(default_factory=list)

    def timed(self, network: str, model: str) -> TimedNetwork:
        self.timings.append(1)
        row = super().timed(network, model)
        return replace(row, p95_ms=10 * row.p95_ms) if len(self.timings) < 3 else row


def searched(folder: Path, *names: str, cost_of: Callable[[str], float] = ms) -> SearchOutcome:
    """What a search found, best first, with the price of each."""
    layout = Layout(folder / "search")
    layout.architectures.mkdir(parents=True)
    (folder / "stages").mkdir()
    rows = []
    for number, name in enumerate(names):
        fingerprint = fingerprint_of(published(name))
        document = architecture_document(published(name))
        layout.architecture(fingerprint).write_text(json.dumps(document))
        quality = 0.5 - 0.1 * number
        cost = cost_of(name)
        rows.append(FoundNetwork(trial=number, fingerprint=fingerprint, quality=quality, cost=cost))
    return SearchOutcome(
        run=str(layout.root), found=tuple(rows), trials=9, strategy="evolution", unit="MACs", teacher=None
    )


def known_target(folder: Path, budget_ms: float, kind: type[KnownTarget] = KnownTarget) -> KnownTarget:
    plan = replace(recipe(), system="lpsnet", image=IMAGE)
    plan = replace(plan, request=replace(plan.request, budget_ms=budget_ms))
    usual = stage_context(folder, recipe=plan)
    return kind(recipe=plan, context=usual.context, dataset=usual.dataset)


def test_the_best_that_keeps_the_budget_as_timed_is_chosen(tmp_path: Path) -> None:
    place = known_target(tmp_path, 1.1 * ms("lpsnet-s"))
    found = choose(place, fastest(lpsnet_step0=0.1), NO_PACK, searched(tmp_path, "lpsnet-l", "lpsnet-s"))
    assert (found.trial, found.kept, found.network) == (1, True, "searched")
    assert [row.trial for row in found.measured] == [0, 1]


@pytest.mark.parametrize("share", [0.8, 0.4, 0.2])
def test_networks_that_miss_the_budget_are_replaced_by_smaller_ones_that_keep_it(
    tmp_path: Path, share: float
) -> None:
    budget_ms = share * ms("lpsnet-m")
    place, candidates = known_target(tmp_path, budget_ms), searched(tmp_path, "lpsnet-l", "lpsnet-m")
    found = choose(place, fastest(lpsnet_step0=0.1), NO_PACK, candidates)
    assert found.kept
    assert (found.network, found.trial, found.quality) == ("searched", None, None)
    assert found.p95_ms <= BUDGET_SHARE * budget_ms
    assert found.p95_ms >= 0.3 * budget_ms  # and not by being tiny
    assert found.fingerprint == fingerprint_of(resolve(found.architecture))


def test_where_no_network_of_the_space_keeps_the_budget_a_ready_one_takes_its_place(tmp_path: Path) -> None:
    place, candidates = known_target(tmp_path, 1e-3), searched(tmp_path, "lpsnet-l")
    found = choose(place, fastest(lpsnet_step0=5e-4), NO_PACK, candidates)
    assert (found.network, found.architecture, found.kept) == ("lpsnet-step0", "lpsnet-step0", True)
    assert choose(place, fastest(lpsnet_step0=1.0), NO_PACK, candidates).kept is False


def test_a_network_of_which_only_some_runs_were_too_slow_is_timed_again(tmp_path: Path) -> None:
    place = known_target(tmp_path, 1.1 * ms("lpsnet-s"), DisturbedTarget)
    assert isinstance(place, DisturbedTarget)
    found = choose(place, fastest(lpsnet_step0=0.1), NO_PACK, searched(tmp_path, "lpsnet-s"))
    assert (found.trial, found.kept, len(place.timings)) == (0, True, 3)


@dataclass(frozen=True, kw_only=True)
class BusyTarget(KnownTarget):
    """A target that is four times as slow, in all runs, while the first networks are timed."""

    timings: list[str] = field(default_factory=list)
    slow: int = 1

    def timed(self, network: str, model: str) -> TimedNetwork:
        self.timings.append(model)
        row = super().timed(network, model)
        factor = 4.0 if len(self.timings) <= self.slow else 1.0
        return replace(row, median_ms=factor * row.median_ms, p95_ms=factor * row.p95_ms)


FIT = PackOutcome(
    reason="a test",
    fit=FittedLatency(target="cpu/eager/fp32?threads=1", us=Work(dense=1e3, pointwise=1e3, depthwise=1e3)),
    slow_runs=1.0,
    rest_ms=0.0,
)


def test_a_network_timed_in_a_busy_moment_is_timed_again_if_its_price_keeps_the_budget(
    tmp_path: Path,
) -> None:
    place = known_target(tmp_path, 1.1 * ms("lpsnet-s"), BusyTarget)
    found = choose(place, fastest(lpsnet_step0=0.1), FIT, searched(tmp_path, "lpsnet-s", "lpsnet-step0"))
    assert (found.trial, found.kept) == (0, True)
    assert found.used == pytest.approx(1 / 1.1, rel=1e-3)
    assert found.unused is None


def test_candidates_whose_price_is_far_above_the_budget_are_not_timed(tmp_path: Path) -> None:
    place = known_target(tmp_path, 1.1 * ms("lpsnet-s"))
    candidates = searched(tmp_path, "lpsnet-l", "lpsnet-m", "lpsnet-s", "lpsnet-step0")
    found = choose(place, fastest(lpsnet_step0=0.1), FIT, candidates)
    assert [row.trial for row in found.measured] == [2]
    assert found.trial == 2


def test_prices_that_are_too_high_are_corrected_by_what_was_measured(tmp_path: Path) -> None:
    """Of prices three times too high, the small network alone seems to fit: its time shows that a better one does."""
    place = known_target(tmp_path, 1.1 * ms("lpsnet-s"))
    candidates = searched(tmp_path, "lpsnet-l", "lpsnet-s", "lpsnet-step0", cost_of=lambda name: 3 * ms(name))
    found = choose(place, fastest(lpsnet_step0=0.1), FIT, candidates)
    assert found.trial == 1
    assert found.used == pytest.approx(1 / 1.1, rel=1e-3)


def test_prices_that_are_too_low_cost_few_timings(tmp_path: Path) -> None:
    place = known_target(tmp_path, 1.1 * ms("lpsnet-step1"))
    names = ("lpsnet-l", "lpsnet-m", "lpsnet-s", "lpsnet-step1", "lpsnet-step0")
    candidates = searched(tmp_path, *names, cost_of=lambda name: 0.01 * ms(name))
    found = choose(place, fastest(lpsnet_step0=0.1), FIT, candidates)
    assert len(found.measured) == 2
    assert found.trial == 3


def test_a_network_that_uses_little_of_the_budget_says_so_and_why(tmp_path: Path) -> None:
    place = known_target(tmp_path, 10 * ms("lpsnet-step0"))
    found = choose(place, fastest(lpsnet_step0=0.1), FIT, searched(tmp_path, "lpsnet-step0"))
    assert found.used == pytest.approx(0.1)
    assert found.unused is not None
    assert "10% of it" in found.unused
    assert "no larger candidate was judged better" in found.unused


@pytest.mark.parametrize(("rest_ms", "cost", "expected"), [(0.0, 2.0, 4.0), (1.0, 2.0, 3.0), (0.0, 0.5, 1.0)])
def test_the_time_of_one_network_predicts_that_of_others(
    rest_ms: float, cost: float, expected: float
) -> None:
    row = TimedCandidate(
        **vars(timed("searched", 2.0)), architecture="a.json", trial=0, fingerprint="a", quality=0.5, cost=1.0
    )
    pack = replace(FIT, rest_ms=rest_ms)
    assert expected_ms(cost, pack, [row]) == pytest.approx(expected)
    assert expected_ms(cost, pack, []) == pytest.approx(rest_ms + cost)
    assert expected_ms(cost, NO_PACK, []) is None


@dataclass(frozen=True, kw_only=True)
class CrowdedTarget(KnownTarget):
    """A target on which other programs interrupt one of ten runs, whatever the network."""

    def timed(self, network: str, model: str) -> TimedNetwork:
        row = super().timed(network, model)
        return replace(row, min_ms=0.8 * row.median_ms, p95_ms=1000.0 + row.p95_ms)


def test_where_slow_runs_hit_every_network_the_best_one_by_the_median_is_chosen(tmp_path: Path) -> None:
    place = known_target(tmp_path, 1.1 * ms("lpsnet-s"), CrowdedTarget)
    candidates = searched(tmp_path, "lpsnet-l", "lpsnet-s", "lpsnet-step0")
    found = choose(place, fastest(lpsnet_step0=1000.0), FIT, candidates)
    assert (found.trial, found.kept) == (1, False)
    assert len(found.measured) <= 4  # and no time is lost on smaller ones


@pytest.mark.parametrize(
    ("limit_ms", "reason"),
    [(0.02, "could not be trained well in the time"), (1e9, "no larger candidate was judged better")],
)
def test_the_time_is_the_reason_only_where_it_left_networks_of_the_space_out(
    tmp_path: Path, limit_ms: float, reason: str
) -> None:
    place = known_target(tmp_path, 10 * ms("lpsnet-step0"))
    place = replace(place, recipe=replace(place.recipe, search_limit_ms=0.02 * ms("lpsnet-step0")))
    pack = replace(FIT, limit_ms=limit_ms)
    found = choose(place, fastest(lpsnet_step0=0.1), pack, searched(tmp_path, "lpsnet-step0"))
    assert reason in str(found.unused)
