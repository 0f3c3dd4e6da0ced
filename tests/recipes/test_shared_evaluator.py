"""Trials judged by the weights of a saved supernet: equality with the search that trained it, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from segtailor.core.errors import RunProblem, Unsupported
from segtailor.core.space import architecture_document, read_architecture
from segtailor.core.strategy import Trial, TrialResult
from segtailor.data.augment import Augment
from segtailor.recipes.evaluators import judge_by_slicing
from segtailor.recipes.search import SearchRecipe
from segtailor.runs import Context, Layout, Policy
from segtailor.strategies import Evolution, RandomSearch
from segtailor.strategies.evaluators.shared import SharedEvaluator
from segtailor.strategies.evaluators.train import TrainEvaluator
from segtailor.strategies.gradient_settings import Choice
from segtailor.strategies.saved_supernet import DESCRIPTION, WEIGHTS, load_supernet, read_facts
from segtailor.training.settings import FitSettings
from segtailor.training.state import read_state
from segtailor.verbs.search import SearchChoices, search, search_recipe
from tests.strategies.gradient_toys import OPTIONS, ToyOps, ToyOpsArchitecture, settings

DATA = "synthetic:size=32x64,train=8,val=2"


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A finished gradient search."""

    folder: Path
    result: dict[str, Any]
    around: Context

    @property
    def supernet(self) -> Path:
        return Layout(self.folder).supernet

    def trials(self, **changes: Any) -> SearchRecipe:
        shared = SharedEvaluator(supernet=str(self.supernet), recalibrate=2)
        return replace(recipe(), strategy=RandomSearch(trials=6), evaluator=shared, **changes)

    def judge(self, asked: SearchRecipe, blocks: tuple[str, ...]) -> TrialResult:
        problem = asked.problem(Context(folder=self.folder, cache=self.around.cache, device="cpu"))
        assert problem.evaluator is not None
        plain: Any = architecture_document(ToyOpsArchitecture(blocks=blocks))
        trial = Trial(id=0, architecture=plain, evaluator=problem.evaluator.settings)
        return judge_by_slicing(trial, "cpu")


def recipe(**strategy: Any) -> SearchRecipe:
    """Return a gradient search of four steps over two blocks of four operators."""
    how = settings(steps=4, choice=Choice(samples=3, recalibrate=2), **strategy)
    return SearchRecipe(
        name="toy",
        space=ToyOps(blocks=2),
        strategy=how,
        data=DATA,
        image=(32, 64),
        evaluator=TrainEvaluator(augment=Augment(crop=(32, 64)), fit=FitSettings(steps=1, batch=2)),
    )


def searched(folder: Path, **strategy: Any) -> Trained:
    around = Context(cache=folder / "cache", device="cpu", policy=Policy(tensorboard=False))
    result: Any = search(recipe(**strategy), folder / "run", context=around)
    return Trained(folder=folder / "run", result=result, around=around)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return searched(tmp_path_factory.mktemp("shared"))


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A supernet that lost its unlikely candidates."""
    return searched(tmp_path_factory.mktemp("pruned"), remove_below=0.24)


def test_a_trial_scores_what_the_search_that_trained_the_weights_scored(trained: Trained) -> None:
    found = read_architecture(Path(trained.result["architecture"]))
    again = trained.judge(trained.trials(), found.blocks)
    assert again.quality == pytest.approx(trained.result["quality"], abs=1e-9)


def test_a_saved_supernet_holds_the_weights_of_the_last_checkpoint(trained: Trained) -> None:
    newest = max(Layout(trained.folder).checkpoints.iterdir())
    wanted = read_state(newest)[0]["supernet"]
    loaded: Any = load_supernet(trained.supernet, read_facts(trained.supernet))
    assert loaded.state_dict().keys() == wanted.keys()
    assert all(torch.equal(value, wanted[name]) for name, value in loaded.state_dict().items())


@pytest.mark.parametrize("strategy", [RandomSearch(trials=6), Evolution(trials=8, population=4)])
def test_every_trial_strategy_searches_with_shared_weights(
    strategy: RandomSearch | Evolution, trained: Trained, tmp_path: Path
) -> None:
    asked = replace(trained.trials(), strategy=strategy)
    found: Any = search(asked, tmp_path / "run", context=trained.around)
    assert found["failed"] == 0
    assert len(found["trials"]) == strategy.trials
    assert 0 <= found["quality"] <= 1


def test_results_are_kept_for_the_same_weights_only(
    trained: Trained, pruned: Trained, tmp_path: Path
) -> None:
    asked = trained.trials()
    first: Any = search(asked, tmp_path / "one", context=trained.around)
    second: Any = search(asked, tmp_path / "two", context=trained.around)
    assert all(row["result"]["cached"] for row in second["trials"])
    assert [row["result"]["quality"] for row in first["trials"]] == [
        row["result"]["quality"] for row in second["trials"]
    ]
    other = replace(asked, evaluator=SharedEvaluator(supernet=str(pruned.supernet), recalibrate=2))
    third: Any = search(other, tmp_path / "three", context=trained.around)
    assert not any(row["result"]["cached"] for row in third["trials"])


def test_removed_candidates_are_never_asked_for_and_fail_when_they_are(
    pruned: Trained, tmp_path: Path
) -> None:
    left = read_facts(pruned.supernet).remaining
    gone = next((name, index) for name in left for index in range(4) if index not in left[name])
    found: Any = search(pruned.trials(), tmp_path / "run", context=pruned.around)
    assert found["failed"] == 0
    position = int(gone[0].removeprefix("block"))
    assert all(row["architecture"]["blocks"][position] != OPTIONS[gone[1]] for row in found["trials"])
    blocks = [OPTIONS[left[name][0]] for name in left]
    blocks[position] = OPTIONS[gone[1]]
    result = pruned.judge(pruned.trials(), tuple(blocks))
    assert result.status == "failed"
    assert f"{gone[0]}: '{OPTIONS[gone[1]]}' was removed from the supernet" in str(result.reason)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"space": ToyOps(blocks=3)}, r"space: .*'blocks': 2.* there, .*3"),
        ({"data": "synthetic:size=32x64,train=9,val=2"}, r"data: .*fingerprint \w+ there"),
        ({"image": (64, 64)}, "image: 32x64 there, 64x64 asked"),
        ({"strategy": recipe().strategy}, "makes none.*--strategy random"),
    ],
)
def test_a_supernet_of_something_else_is_refused_with_the_difference(
    change: dict[str, Any], words: str, trained: Trained, tmp_path: Path
) -> None:
    with pytest.raises(Unsupported, match=words):
        search(replace(trained.trials(), **change), tmp_path / "run", context=trained.around)


def test_a_folder_without_a_supernet_and_damaged_weights_are_explained(
    trained: Trained, tmp_path: Path
) -> None:
    absent = replace(trained.trials(), evaluator=SharedEvaluator(supernet=str(tmp_path)))
    with pytest.raises(RunProblem, match=f"no {DESCRIPTION}.*segtailor resume"):
        search(absent, tmp_path / "run", context=trained.around)
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in (DESCRIPTION, WEIGHTS):
        (copy / name).write_bytes((trained.supernet / name).read_bytes())
    (copy / WEIGHTS).write_bytes((copy / WEIGHTS).read_bytes()[:-1])
    with pytest.raises(RunProblem, match="damaged or of another search"):
        load_supernet(copy, read_facts(copy))


def test_the_flag_takes_a_run_and_means_the_evaluator(trained: Trained) -> None:
    choices = SearchChoices(supernet=trained.folder, strategy="evolution", trials=4)
    found = search_recipe("squeezenas", DATA, choices, context=trained.around)
    assert found.evaluator == SharedEvaluator(supernet=str(trained.supernet.absolute()))
