"""How long a gradient search will take: counted steps times measured ones."""

from __future__ import annotations

import pytest

from segtailor.strategies import duration
from segtailor.strategies.duration import MEASURED_STEPS, estimate
from segtailor.strategies.gradient import GradientSearch
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


def test_a_search_tells_what_it_plans_and_can_be_tried() -> None:
    search = GradientSearch(settings(steps=3, ahead=2), problem())
    assert search.planned[:2] == (2, 3)
    assert float(str(estimate(search)["seconds"])) > 0
