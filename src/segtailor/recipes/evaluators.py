"""Who judges architectures: a table of evaluators, each with the settings its workers get and the function they call.

A recipe names one. `EVALUATORS` turns the name into plain data, and everything that cannot work is refused there; the
functions `(trial, device)` below run in workers, which know nothing but that data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch

from segtailor import spaces as spaces  # registers the families in a fresh worker
from segtailor.core.codec import Json, fingerprint, from_json, to_json
from segtailor.core.errors import Unsupported
from segtailor.core.registry import Registry
from segtailor.core.space import SPACES
from segtailor.core.strategy import Evaluator, Halves, Trial, TrialResult
from segtailor.core.task import Task
from segtailor.data.cache import open_pixels
from segtailor.data.locate import locate
from segtailor.recipes.recipe import Place
from segtailor.runs.run import environment
from segtailor.search.evaluators.shared import SharedEvaluator
from segtailor.search.evaluators.train import HalvedPixels, TrainEvaluator
from segtailor.search.halves import FIT, JUDGE, HalvedTrain
from segtailor.search.saved_supernet import SupernetFacts, check_fits, read_facts
from segtailor.search.shared_judge import SharedJudge

if TYPE_CHECKING:
    from segtailor.recipes.searching import SearchRecipe


@dataclass(frozen=True, kw_only=True)
class Judging:
    """What an evaluator is made from: the recipe, where it runs, and what the data turned out to be."""

    recipe: SearchRecipe
    place: Place
    task: Task
    halves: Halves

    def evaluator(self, work: str, **settings: Json) -> Evaluator:
        """Return an evaluator whose workers find the data; its results depend on data and installed packages."""
        where: dict[str, Json] = {
            "data": self.recipe.data,
            "cache": str(self.place.cache),
            "judging": self.recipe.judging,
        }
        return Evaluator(
            work=f"{__name__}:{work}" if ":" not in work else work,
            settings={**settings, **where},
            data=fingerprint([self.halves.fingerprint, environment()["packages"]]),
        )


HALF = 0.5  # share of the training split that judges, unless a recipe says otherwise
MakeEvaluator: TypeAlias = Callable[[Judging], Evaluator]
EVALUATORS: Registry[MakeEvaluator] = Registry("evaluator")


@EVALUATORS.register("train")
def train(judging: Judging) -> Evaluator:
    """Train every architecture briefly, from scratch."""
    recipe = judging.recipe
    training = replace(recipe.training, fit=replace(recipe.training.fit, seed=recipe.seed))
    return judging.evaluator("judge_by_training", training=to_json(training))


@EVALUATORS.register("shared")
def shared(judging: Judging) -> Evaluator:
    """Give every architecture its slice of a trained supernet."""
    recipe = judging.recipe
    if recipe.shared is None:
        raise Unsupported(
            "the evaluator 'shared' slices a trained supernet, and none was named; give --supernet RUN, a finished "
            "search by gradients, or use the evaluator 'train'."
        )
    if recipe.strategy.kind == "gradient":
        raise Unsupported(
            "the evaluator 'shared' judges trials, and the strategy 'gradient' makes none: it judges with its own "
            "weights. Choose --strategy random, evolution, controller or expansion."
        )
    facts = supernet_facts(recipe.shared)
    check_fits(
        facts, space=recipe.space.build(SPACES), task=judging.task, image=recipe.image, data=judging.halves
    )
    return judging.evaluator("judge_by_slicing", shared=to_json(recipe.shared), supernet=facts.fingerprint)


def judge_by_slicing(trial: Trial, device: str) -> TrialResult:
    """Judge a trial in a worker, which loads the supernet for its first trial."""
    evaluator = from_json(SharedEvaluator, trial.evaluator["shared"], what="shared evaluator")
    weights = _sliced(evaluator, str(trial.evaluator["supernet"]), device, *_where(trial))
    return evaluator.judge(trial, weights=weights)


def supernet_facts(shared: SharedEvaluator) -> SupernetFacts:
    """Read what the supernet of an evaluator was trained for."""
    return read_facts(Path(shared.supernet))


@lru_cache(maxsize=1)  # supernets are large
def _sliced(
    evaluator: SharedEvaluator, supernet: str, device: str, data: str, folder: str, judging: float
) -> SharedJudge:
    pixels = halved_pixels(data, folder, judging)
    return evaluator.open(data=pixels, device=torch.device(device), expected=supernet)


def judge_by_training(trial: Trial, device: str) -> TrialResult:
    """Judge a trial in a worker: rebuild data and evaluator from the trial's plain settings."""
    training = from_json(TrainEvaluator, trial.evaluator["training"], what="training of the evaluator")
    return training.judge(trial, data=worker_pixels(trial), device=torch.device(device))


def worker_pixels(trial: Trial) -> HalvedPixels:
    """Return the halves that a trial's evaluator names, opened once per worker."""
    return halved_pixels(*_where(trial))


def _where(trial: Trial) -> tuple[str, str, float]:
    settings = trial.evaluator
    return str(settings["data"]), str(settings["cache"]), float(settings.get("judging", HALF))


@cache
def halved_pixels(data: str, folder: str, judging: float = HALF) -> HalvedPixels:
    """Open the two parts of a dataset's training split."""
    halved = HalvedTrain(dataset=locate(data), share=judging)
    fit, judge = (open_pixels(halved, half, Path(folder)) for half in (FIT, JUDGE))
    return HalvedPixels(halved.task, fit, judge)
