"""One-shot search: shared weights first, then networks judged by them; resumable, and its front is kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from segtailor.core.errors import Unsupported, UserError
from segtailor.core.space import parse_architecture, read_architecture
from segtailor.core.strategy import SearchProblem
from segtailor.nets.bundle import load_bundle
from segtailor.recipes.search import MAX_FRONT_BUNDLES, SearchRecipe, spread
from segtailor.recipes.train import train_recipe
from segtailor.runs import Context, Layout
from segtailor.runs.run import Policy
from segtailor.spaces.dilated_residual import DilatedResidual
from segtailor.spaces.hyper_cell import HyperCell
from segtailor.spaces.starts import start_network
from segtailor.strategies import RandomSearch
from segtailor.strategies.evaluators.shared import SharedEvaluator, evenly_spaced
from segtailor.strategies.one_shot import OneShot, OneShotSearch
from segtailor.testing import check_strategy
from segtailor.verbs.search import SearchChoices, preview, search, search_recipe

DATA = "synthetic:size=32x64,train=8,val=2"


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def around(folder: Path) -> Context:
    return Context(cache=folder / "cache", device="cpu", policy=Policy(tensorboard=False))


def recipe(context: Context, *, trials: int = 5, **changes: Any) -> SearchRecipe:
    """Return a search of two steps in which a few networks are judged."""
    found = search_recipe("elastic", DATA, SearchChoices(start="none"), context=context)
    strategy = found.strategy
    assert isinstance(strategy, OneShot)
    fit = replace(strategy.fit, steps=2, batch=2, deterministic=True)
    choice = replace(strategy.choice, recalibrate=1, images=2)
    strategy = replace(strategy, fit=fit, choice=choice, trials=trials, population=3, children=2, networks=2)
    return replace(found, strategy=strategy, judging=0.5, **changes)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("one-shot")
    context = around(folder)
    result: Any = search(recipe(context), folder / "run", context=context)
    return folder, result


@pytest.mark.slow
def test_a_search_repeats_by_seed_and_resumes_after_any_step(tmp_path: Path) -> None:
    asked = recipe(around(tmp_path), trials=3)
    check_strategy(asked.strategy, asked.problem(around(tmp_path)), tmp_path / "stopped")


def test_the_front_is_kept_with_weights_that_score_what_was_judged(
    searched: tuple[Path, dict[str, Any]],
) -> None:
    folder, result = searched
    layout = Layout(folder / "run")
    members = [row["fingerprint"] for row in result["front"]]
    assert sorted(path.name for path in layout.fronts.iterdir()) == sorted(members)
    assert len(result["trials"]) == 5
    for row in result["front"]:
        model = load_bundle(layout.front(row["fingerprint"]))
        assert model.architecture == read_architecture(layout.architecture(row["fingerprint"]))
        assert model.numbers["judged"] == row["quality"]
        assert model.predict(np.zeros((32, 64, 3), np.uint8)).shape == (32, 64)


def test_a_network_of_the_front_starts_a_training_whole(searched: tuple[Path, dict[str, Any]]) -> None:
    folder, result = searched
    bundle = Layout(folder / "run").front(result["fingerprint"])
    model = load_bundle(bundle)
    fresh = load_bundle(bundle).network
    for parameter in fresh.parameters():
        torch.nn.init.zeros_(parameter)
    record, carried = start_network(fresh, str(bundle), model.task, preprocessing=model.preprocessing)
    assert record.carried == 1.0
    assert carried is not None
    assert all(torch.equal(a, b) for a, b in zip(fresh.parameters(), model.network.parameters(), strict=True))


def test_what_came_before_the_search_learns_slower_than_what_it_taught(
    searched: tuple[Path, dict[str, Any]],
) -> None:
    folder, result = searched
    bundle = Layout(folder / "run").front(result["fingerprint"])
    arch, context = load_bundle(bundle).architecture, around(folder)
    usual = train_recipe(arch, DATA, start=str(bundle), crop=(32, 64), context=context)
    usual = replace(usual, fit=replace(usual.fit, steps=1, batch=2), val_split=None)
    carried = {
        settled: {name.split(".")[1] for name in replace(usual, settled=settled).job(context).fit.carried}
        for settled in (None, "none", "imagenet")
    }
    assert carried["none"] == set()
    assert {"stem", "head", "context"} <= carried[None]
    assert "stem" in carried["imagenet"]
    assert not {"head", "context"} & carried["imagenet"]
    with pytest.raises(UserError, match="fetch pre-trained weights"):  # a recipe of somebody else
        replace(usual, settled="timm:tf_efficientnet_lite0").job(replace(context, trusted=False))


def test_its_shared_weights_judge_other_searches(searched: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = searched
    context = around(folder)
    base = recipe(context)
    shared = SharedEvaluator(supernet=str(Layout(folder / "run").supernet), recalibrate=1, images=2)
    found: Any = search(
        replace(base, strategy=RandomSearch(trials=2), evaluator=shared), folder / "again", context=context
    )
    assert len(found["trials"]) == 2
    assert found["failed"] == 0


def test_a_budget_holds_for_what_is_trained_and_for_what_is_judged(tmp_path: Path) -> None:
    free = recipe(around(tmp_path)).problem(around(tmp_path))
    job = OneShotSearch(recipe(around(tmp_path)).strategy, free)  # type: ignore[arg-type]
    costs = sorted(free.price(arch) for arch in job._supernet._trained)
    limit = costs[len(costs) // 2]
    limited = recipe(around(tmp_path), limit=limit)
    job = OneShotSearch(limited.strategy, limited.problem(around(tmp_path)))  # type: ignore[arg-type]
    assert max(free.price(arch) for arch in job._supernet._trained) <= limit
    for _ in job.steps():
        pass
    trials: Any = job.result()["trials"]
    assert max(trial["result"]["cost"] for trial in trials) <= limit


def test_a_dry_run_says_how_long_it_takes_and_what_comes_first(tmp_path: Path) -> None:
    facts: Any = preview(recipe(around(tmp_path), trials=4), context=around(tmp_path))
    assert facts["first"] == 3
    assert facts["estimate"]["seconds"] > 0
    assert "2 steps and 4 judgements" in facts["estimate"]["from"]


def test_time_ends_it_when_a_population_was_judged(tmp_path: Path) -> None:
    asked = recipe(around(tmp_path), trials=50, seconds=0.01)
    job = asked.strategy.job(asked.problem(around(tmp_path)))
    for _ in job.steps():
        pass
    trials: Any = job.result()["trials"]
    assert len(trials) == 3
    parse_architecture(job.result()["architecture"])  # type: ignore[arg-type]


@pytest.mark.parametrize("space", [DilatedResidual(), HyperCell()])
def test_other_spaces_are_refused_with_a_remedy(tmp_path: Path, space: Any) -> None:
    asked = recipe(around(tmp_path)).problem(around(tmp_path))
    with pytest.raises(Unsupported, match="use the space elastic"):
        OneShot().check(replace(asked, space=space))


@pytest.mark.parametrize(
    "changes",
    [{"networks": 0}, {"trials": 0}, {"training_share": 1.0}, {"training_share": 0.0}],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(SearchProblem):
        OneShot(**changes)


class Numbered:
    sizes = np.array([[number, 1] for number in range(10)])

    def __len__(self) -> int:
        return 10

    def pair(self, index: int) -> Any:
        return index


def test_pictures_are_evenly_spaced() -> None:
    some = evenly_spaced(Numbered(), 5)
    assert [some.pair(number) for number in range(len(some))] == [0, 2, 4, 6, 8]
    assert some.sizes[:, 0].tolist() == [0, 2, 4, 6, 8]
    assert len(evenly_spaced(Numbered(), 99)) == 10


def test_a_long_front_is_thinned_and_keeps_its_best() -> None:
    front: Any = list(range(100))
    kept = spread(front, MAX_FRONT_BUNDLES)
    assert len(kept) == MAX_FRONT_BUNDLES
    assert kept[0] == 0
    assert kept[-1] == 99
    assert kept == sorted(set(kept))
    assert spread(front[:3], MAX_FRONT_BUNDLES) == [0, 1, 2]
