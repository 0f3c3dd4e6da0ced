"""Random and evolution: known answers, budgets, exhausted spaces, ranks."""

from __future__ import annotations

import inspect
import subprocess
import sys
from statistics import mean
from typing import Any

import pytest

import segtailor
import segtailor.strategies
from segtailor.core.codec import adapter, from_json, to_json
from segtailor.core.cost import Within
from segtailor.core.errors import Unsupported
from segtailor.core.plan import Shape
from segtailor.core.registry import STRATEGIES
from segtailor.core.shipped import shipped
from segtailor.core.space import family_of
from segtailor.core.strategy import Candidate, Judged, Problem, SearchProblem, TrialResult
from segtailor.core.task import Task
from segtailor.costs import Macs
from segtailor.spaces.dilated_residual import DilatedResidual
from segtailor.spaces.elastic import Elastic
from segtailor.spaces.inverted_residual import InvertedResidual
from segtailor.spaces.networks import known_architectures, resolve
from segtailor.spaces.published import published
from segtailor.spaces.scalable_path import ScalablePath
from segtailor.strategies import Evolution, Expansion, Halving, RandomSearch
from segtailor.strategies.candidates import ArchitecturePrices
from segtailor.strategies.front import crowding, dominates, layers, pareto, survivors
from tests.strategies import planted
from tests.strategies.planted import Planted, best_within, problem, quality_of

TRIALS = 300
LIMIT = 50.0
NOISE = 0.003


def outcome(strategy: Any, asked: Problem) -> dict[str, Any]:
    job = strategy.job(asked)
    for _ in job.steps():
        pass
    return dict(job.result())


def true_quality(result: dict[str, Any]) -> float:
    return quality_of(tuple(result["architecture"]["architecture"]["picks"]))


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(Evolution(trials=TRIALS), id="evolution", marks=pytest.mark.slow),
        pytest.param(Expansion(steps=40), id="expansion"),
    ],
)
def test_a_strategy_finds_the_planted_best_and_beats_random_at_equal_trials(strategy: Any) -> None:
    best = best_within(LIMIT, Planted())
    close = better = 0
    for seed in range(10):
        asked = problem(limit=LIMIT, seed=seed, noise=NOISE)
        found = outcome(strategy, asked)
        drawn = RandomSearch(trials=len(found["trials"])).begin(asked, ArchitecturePrices(asked)).ask()
        luck = max(quality_of(item.architecture.picks) for item in drawn)  # even if noise never misled it
        close += true_quality(found) >= 0.98 * best
        better += true_quality(found) > luck
    assert close >= 9
    assert better >= 9


@pytest.mark.slow
def test_few_children_at_a_time_make_the_most_of_few_trials() -> None:
    def found(strategy: Any) -> float:
        asked = (problem(limit=LIMIT, seed=seed, noise=NOISE) for seed in range(12))
        return mean(true_quality(outcome(strategy, one)) for one in asked) / best_within(LIMIT, Planted())

    chance = found(RandomSearch(trials=48))
    whole = found(Evolution(trials=48, population=12, focus=1.0))
    assert found(Evolution(trials=48, population=12, focus=1.0, children=4)) > max(whole, chance + 0.02)


@pytest.mark.parametrize(("children", "sizes"), [(None, [6, 6, 3]), (4, [6, 4, 4, 1]), (20, [6, 9])])
def test_a_first_generation_fills_the_population_and_later_ones_have_children(
    children: int | None, sizes: list[int]
) -> None:
    asked = problem()
    state = Evolution(trials=15, population=6, children=children).begin(asked, ArchitecturePrices(asked))
    seen = []
    while batch := state.ask():
        seen.append(len(batch))
        state.tell([judged(quality_of(item.architecture.picks), item.cost, item=item) for item in batch])
    assert seen == sizes


@pytest.mark.parametrize(
    "strategy", [RandomSearch(trials=30), Evolution(trials=40, population=8), Expansion(steps=4)]
)
def test_a_search_repeats_by_seed_and_differs_between_seeds(strategy: Any) -> None:
    def searched(seed: int) -> list[tuple[str, int, float]]:
        found = outcome(strategy, problem(seed=seed, noise=0.05))
        return [(item["fingerprint"], item["seed"], item["result"]["quality"]) for item in found["trials"]]

    assert searched(1) == searched(1)
    assert searched(1) != searched(2)


@pytest.mark.parametrize("strategy", [RandomSearch(trials=30), Evolution(trials=60, population=8)])
def test_every_trial_is_new_and_within_the_budget(strategy: Any) -> None:
    found = outcome(strategy, problem(limit=30.0))
    prints = [item["fingerprint"] for item in found["trials"]]
    assert len(set(prints)) == len(prints) == strategy.trials
    assert max(item["result"]["cost"] for item in found["trials"]) <= 30


@pytest.mark.parametrize("strategy", [RandomSearch(trials=3), Evolution(trials=3)])
def test_a_tight_budget_is_met_although_chance_rarely_meets_it(strategy: Any) -> None:
    assert outcome(strategy, problem(limit=8.0))["cost"] <= 8  # a random network costs 58 on average


@pytest.mark.parametrize("strategy", [RandomSearch(), Evolution()])
def test_a_budget_that_no_architecture_meets_names_the_cheapest_seen(strategy: Any) -> None:
    with pytest.raises(
        SearchProblem, match=r"no architecture within 5 ch in \d+ draws; the cheapest seen costs \d+"
    ):
        outcome(strategy, problem(limit=5.0))


@pytest.mark.parametrize("strategy", [RandomSearch(trials=99), Evolution(trials=99, population=3)])
def test_an_exhausted_space_ends_the_search(strategy: Any) -> None:
    found = outcome(strategy, problem(space=Planted(options=2, decisions_count=3)))
    assert len(found["trials"]) == 8


def test_a_space_of_one_architecture_is_searched_in_one_trial() -> None:
    found = outcome(Evolution(trials=9), problem(space=Planted(options=1, decisions_count=2)))
    assert len(found["trials"]) == 1


@pytest.mark.parametrize(
    "strategy", [RandomSearch(trials=6), Evolution(trials=6, population=3), Expansion(steps=2)]
)
def test_a_search_of_which_every_trial_fails_says_why(strategy: Any) -> None:
    with pytest.raises(SearchProblem, match="failed, most often with: MemoryError: out of memory"):
        outcome(strategy, problem(work=planted.fail))


def test_a_problem_without_evaluator_is_refused_before_any_work() -> None:
    asked = Problem(**{**vars(problem()), "evaluator": None})
    for strategy in (RandomSearch(), Evolution(), Expansion()):
        with pytest.raises(Unsupported, match="needs an evaluator and an executor"):
            strategy.job(asked)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomSearch(trials=0), "trials: 0 is too small"),
        (lambda: Evolution(population=1), "population: 1 is too small"),
        (lambda: Evolution(children=0), "children: 0 is too small"),
        (lambda: Evolution(mutation=1.5), "mutation: 1.5 is no probability"),
        (lambda: Expansion(steps=0), "steps: 0 is too small"),
        (lambda: Halving(rungs=(0.5, 0.25)), "ascending"),
        (lambda: Halving(keep=1.0), "keep: 1.0"),
        (lambda: problem(limit=-1.0), "limit: -1.0 ch is no budget"),
    ],
)
def test_impossible_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(SearchProblem, match=message):
        make()


@pytest.mark.parametrize("name", STRATEGIES.names())
def test_settings_of_every_strategy_survive_json(name: str) -> None:
    kind: Any = STRATEGIES.get(name)
    settings = kind()
    assert from_json(kind, to_json(settings), what=name) == settings
    assert adapter(kind).json_schema()


def judged(quality: float | None, cost: float, number: int = 0, *, item: Candidate | None = None) -> Judged:
    status = "failed" if quality is None else "done"
    result = TrialResult(id=number, status=status, quality=quality, cost=cost)
    return Judged(candidate=item or Candidate(architecture=None, cost=cost), result=result)


POINTS = [
    judged(q, c, i) for i, (q, c) in enumerate([(5, 5), (3, 1), (4, 6), (None, 0), (4, 3), (3, 2), (5, 5)])
]


def test_layers_peel_off_front_by_front_with_failures_last() -> None:
    assert layers(POINTS) == [[0, 1, 4, 6], [2, 5], [3]]


def test_the_front_lists_undominated_trials_once_cheapest_first() -> None:
    assert [(item.quality, item.cost) for item in pareto(POINTS)] == [(3, 1), (4, 3), (5, 5)]
    assert pareto([judged(None, 1)]) == []


def test_dominance_needs_one_strict_advantage() -> None:
    assert dominates(judged(1, 1), judged(1, 2))
    assert not dominates(judged(1, 1), judged(1, 1))
    assert not dominates(judged(2, 2), judged(1, 1))
    assert not dominates(judged(None, 0), judged(0, 9))


def test_the_ends_of_a_layer_are_loneliest_and_survive_first() -> None:
    row = [judged(q, q) for q in (0, 1, 2, 9, 10)]
    lonely = crowding(row, range(5))
    assert lonely[0] == lonely[4] == float("inf")
    assert lonely[3] == lonely[2] > lonely[1]
    assert {item.quality for item in survivors(row, 3)} == {0, 10, 2}


def test_search_of_the_package_is_a_plain_function_whatever_was_imported_before() -> None:
    assert inspect.isfunction(segtailor.search)
    assert segtailor.search.__module__ == "segtailor.verbs.search"
    assert inspect.ismodule(segtailor.strategies)
    assert not callable(segtailor.strategies)


def test_importing_the_strategies_imports_neither_torch_nor_ray() -> None:
    program = "import sys, segtailor.strategies; sys.exit(bool({'torch', 'ray'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_evolution_begins_with_known_networks_that_use_most_of_the_budget() -> None:
    space = Elastic()
    known = known_architectures(space)
    assert all(space.architecture(space.picks(arch)) == arch for arch in known)
    cost, image = Macs(), Shape(3, 64, 128)
    sizes = sorted(cost.of(space.plan(arch, image, 3)) for arch in known)
    limit = sizes[len(sizes) // 2]
    problem = Problem(
        space=space, cost=cost, objective=Within(limit=limit), task=Task(classes=("a", "b", "c")), image=image,
        limit=limit, known=known,
    )  # fmt: skip
    first = Evolution(population=8).begin(problem, ArchitecturePrices(problem)).ask()
    begun = [item for item in first if item.architecture in known]
    assert len(begun) >= 4
    assert [item.cost for item in begun[:4]] == sorted(
        (size for size in sizes if size <= limit), reverse=True
    )[:4]
    alone = Evolution(population=8, known=0.0).begin(problem, ArchitecturePrices(problem)).ask()
    assert len([item for item in alone if item.architecture in known]) < 4


def test_published_and_shipped_networks_of_a_family_are_known_to_its_space() -> None:
    assert published("lpsnet-s") in known_architectures(ScalablePath())
    for space in (DilatedResidual(), Elastic()):
        known = known_architectures(space)
        networks = [resolve(name) for name in shipped()]
        assert [
            arch for arch in networks if isinstance(arch, space.architecture_type) and arch not in known
        ] == []
    assert {"camvid-fast", "camvid-cpu"} <= set(shipped())
    assert all(
        family_of(arch) == "inverted_residual"
        for arch in known_architectures(InvertedResidual(frame="small"))
    )
