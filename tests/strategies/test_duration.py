"""How long a search will take: counted steps or trials times measured ones."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from segtailor.runs import Context
from segtailor.strategies import duration
from segtailor.strategies.duration import MEASURED_STEPS, estimate, estimate_trials
from segtailor.strategies.gradient import GradientSearch
from segtailor.verbs.search import preview, search_recipe
from tests.strategies.cosearch_toys import problem, settings


class Told:
    """A search whose steps take told times on a told clock."""

    crop, batch, planned = (64, 128), 8, (60, 100, 6)

    def __init__(self) -> None:
        self.now = 0.0

    def try_pretraining(self) -> None:
        self.now += 0.5

    def try_step(self) -> None:
        self.now += 2.0

    def try_judging(self) -> None:
        self.now += 3.0


def test_the_estimate_adds_up_all_kinds_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    monkeypatch.setattr(duration.time, "perf_counter", lambda: told.now)
    found = estimate(told)  # type: ignore[arg-type]
    assert found["seconds"] == 60 * 0.5 + 100 * 2.0 + 6 * 3.0
    assert f"{MEASURED_STEPS} measured steps" in str(found["from"])
    told.crop = (512, 1024)
    assert estimate(told) == {}  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_search_tells_what_it_plans_and_can_be_tried() -> None:
    search = GradientSearch(settings(steps=3, ahead=2), problem())
    assert search.planned[:2] == (2, 3)
    assert float(str(estimate(search)["seconds"])) > 0


class ToldTrials:
    """A search by trials: opening the data takes ten seconds once, a whole trial twenty and one more for its start."""

    expected: int | None = 30
    status = "done"

    def __init__(self) -> None:
        self.now, self.opened, self.tried = 0.0, False, []

    def preview(self) -> list[Any]:
        return [SimpleNamespace(cost=cost) for cost in (3.0, 1.0, 2.0)]

    def try_trial(self, candidate: Any, *, budget: float) -> Any:
        self.tried.append(candidate.cost)
        self.now += (0 if self.opened else 10) + 1 + 20 * budget
        self.opened = True
        return SimpleNamespace(status=self.status)


def test_the_estimate_of_trials_counts_the_start_of_each_and_opens_the_data_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: Any = ToldTrials()
    monkeypatch.setattr(duration.time, "perf_counter", lambda: told.now)
    found = estimate_trials(told, batch=8, crop=(64, 128))
    assert found["seconds"] == pytest.approx(30 * 21)
    assert "for 30 trials" in str(found["from"])
    assert set(told.tried) == {2.0}  # the middle one by cost
    assert estimate_trials(told, batch=16, crop=(768, 768)) == {}
    told.status = "failed"
    assert estimate_trials(told, batch=8, crop=(64, 128)) == {}
    told.status, told.expected = "done", None
    assert estimate_trials(told, batch=8, crop=(64, 128)) == {}


def test_a_dry_run_of_a_search_by_trials_says_how_long_it_takes(tmp_path: Path) -> None:
    context = Context(cache=tmp_path, device="cpu")
    data = "synthetic:size=32x64,train=8,val=2"
    found: Any = preview(search_recipe("lpsnet", data, context=context), context=context)
    assert found["estimate"]["seconds"] > 0
    assert found["first"] >= 1
