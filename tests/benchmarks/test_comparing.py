"""What comparisons of searches have in common: how much random search may train."""

from benchmarks.comparing import Setting


def test_random_search_gets_the_steps_of_the_search_or_its_compute() -> None:
    settings = {"data": "synthetic", "device": "cpu", "batch": 8, "training": 10, "ahead": 40}
    counted = Setting(steps=60, finalists=4, trial=25, **settings)  # type: ignore[arg-type]
    assert (counted.search_steps, counted.draws) == (200, 8)
    worth = Setting(steps=60, finalists=4, trial=25, step_worth=13, **settings)  # type: ignore[arg-type]
    assert (worth.search_steps, worth.draws) == (13 * 100 + 100, 56)
