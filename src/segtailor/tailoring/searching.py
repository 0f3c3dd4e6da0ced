"""The stages `pack` and `search`: prices on the target, and the search with a published system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from segtailor.core.codec import from_json
from segtailor.core.cost import Power, Within
from segtailor.core.errors import RunProblem
from segtailor.core.plan import Plan
from segtailor.core.registry import STRATEGIES
from segtailor.costs.assembly import CalibrationSubject
from segtailor.costs.sampling import LatencyFit, fit_space
from segtailor.recipes.search import RecipeEvaluator, SearchRecipe, fitted_to_bands
from segtailor.strategies import Controller, Evolution, Expansion, Processes, RandomSearch, Serial
from segtailor.strategies.evaluators.staged import StagedEvaluator
from segtailor.strategies.evaluators.train import TrainEvaluator
from segtailor.strategies.gradient_settings import Gradient
from segtailor.strategies.one_shot import OneShot
from segtailor.tailoring.choosing import (
    AIM_SHARE,
    DIRECTIONS,
    MIN_LIMIT_IN_SMALLEST,
    SEARCH_SHARE_OF_BUDGET,
    expands,
)
from segtailor.tailoring.machine import pretraining_share
from segtailor.tailoring.recipe import TailorRecipe
from segtailor.tailoring.selecting import search_limit
from segtailor.tailoring.stage import PackOutcome, SearchOutcome, StageContext
from segtailor.tailoring.time_plan import (
    BUDGET_SHARE,
    CHOOSE_SHARE,
    MAX_FIT_LEFT_SHARE,
    READY_SHARE,
)
from segtailor.verbs.search import for_workers, system_recipe, towards_budget, with_chosen_start

MIN_FIT_SECONDS = 2.0  # for fitting prices to whole networks
MIN_FIT_SHARE = 0.5  # of the seconds planned for it, however late it is
MIN_FITTED_SHARE = (
    0.2  # of the budget: the limit of the search, however long the stages after the network take
)
STEPS_PER_SAMPLE = 10  # steps of a supernet for each network that is drawn from it in the end and judged
MIN_SEARCH_SECONDS = 20.0
MAX_CANDIDATE_SHARE = 3.0  # seconds of a candidate's training, in its equal share of the search
STAGE1_STEPS_PER_STAGE2 = 4  # of the staged evaluator
MIN_POPULATION, MAX_POPULATION = 4, 16  # of an evolution
CANDIDATES_PER_MEMBER = 3  # of the population: two thirds of the candidates are bred
MIN_CHILDREN = 2  # of a generation
CANDIDATES_PER_CHILD = 8
MIN_SHARED_STEPS = 30  # of weights that networks share
SHARED_TRIALS = 256  # networks that are judged by them, if there is time
JUDGED_BATCHES = 3  # of images, on which each of them is judged
SHORT_STEPS, SHORT_EMA = 100, 0.9  # a long average would hold the first steps


def fit_prices(stage: StageContext) -> PackOutcome:
    """Stage `pack`: time networks spread over the space, and fit prices to them.

    Without time for that, the search counts multiply-accumulates.
    """
    recipe, left = stage.recipe, stage.before_training()
    seconds = recipe.effort.fit_seconds
    if left is not None:
        seconds = min(seconds, max(MAX_FIT_LEFT_SHARE * left, MIN_FIT_SHARE * seconds))
    if seconds < MIN_FIT_SECONDS:
        return PackOutcome(reason="no time to time networks: multiply-accumulates are counted")
    subject = CalibrationSubject(
        space=stage.space,
        image=recipe.image,
        classes=stage.classes,
        target=recipe.request.target,
        channels=stage.preprocessing.channels,
    )
    fit = fit_space(subject, seconds=seconds, includes=recipe.includes, seed=recipe.request.seed)
    limit = fitted_limit(recipe, fit, smallest_ms=fit.cost.of(smallest_plan(subject)))
    reason = (
        f"prices are fitted to {len(fit.seconds)} networks, timed in {sum(fit.seconds):.0f} seconds: each is predicted "
        f"from all others with a mean error of {fit.trust.mape:.0%} (Spearman {fit.trust.spearman:.2f})"
    )
    stage.tell(f"{reason}; networks of up to {limit:.3g} ms are searched for")
    return PackOutcome(
        reason=reason,
        fit=fit.cost,
        limit_ms=limit,
        rest_ms=fit.rest_ms,
        slow_runs=fit.slow_runs,
        seconds=fit.seconds,
        pearson=fit.trust.pearson,
        spearman=fit.trust.spearman,
        mape=fit.trust.mape,
        networks=len(fit.seconds),
    )


def fitted_limit(recipe: TailorRecipe, fit: LatencyFit, *, smallest_ms: float = 0.0) -> float:
    """Return the limit of the search in milliseconds of a fit: what the stages after the network leave of the budget.

    Where the plan has a smaller limit because larger networks could not be trained in the time, that one; but at least
    so much that the search has some choice above the smallest network.
    """
    budget = recipe.request.budget_ms
    allowed = max(BUDGET_SHARE * budget / fit.slow_runs - fit.rest_ms, MIN_FITTED_SHARE * budget)
    planned = SEARCH_SHARE_OF_BUDGET * budget
    trainable = recipe.search_limit_ms < planned
    limit = min(allowed, recipe.search_limit_ms) if trainable else allowed
    return round(max(limit, MIN_LIMIT_IN_SMALLEST * smallest_ms), 5)


def smallest_plan(subject: CalibrationSubject) -> Plan:
    """Return the plan of the network with the first option of every decision: one of the smallest."""
    arch = subject.space.architecture({one.name: 0 for one in subject.space.decisions})
    return subject.space.plan(arch, subject.shape, subject.classes)


def search(stage: StageContext, pack: PackOutcome) -> SearchOutcome:
    """Stage `search`: search networks that keep the budget."""
    recipe = search_recipe(stage, pack)
    result: Mapping[str, Any] = stage.carry_out(recipe, "search")
    members = {row["trial"]: row for row in [result, *result["front"], *result.get("family", [])]}
    document = {
        "run": str(stage.run_folder("search")),
        "found": [
            {key: row.get(key) for key in ("trial", "fingerprint", "quality", "cost")}
            for row in members.values()
            if row.get("quality") is not None
        ],
        "trials": len(result["trials"]),
        "strategy": STRATEGIES.name_of(type(recipe.strategy)),
        "unit": result["unit"],
        "teacher": result.get("roles", {}).get("teacher", {}).get("architecture"),
        "shared_steps": result.get("shared_steps"),
    }
    return from_json(SearchOutcome, document, what="result of the search", error=RunProblem)


def search_recipe(stage: StageContext, pack: PackOutcome) -> SearchRecipe:
    """Return the search: a published system with length, prices and budget for this data and target."""
    recipe = stage.recipe
    base = system_recipe(
        recipe.system, recipe.data, scale="small", context=stage.context, dataset=stage.dataset
    )
    limit = search_limit(recipe, pack)
    priced = replace(
        base,
        image=recipe.image,
        seed=recipe.request.seed,
        strategy=towards_budget(base.strategy),
        cost=pack.cost(),
        limit=limit,
    )
    if isinstance(priced.objective, Power | Within):
        priced = replace(priced, objective=replace(priced.objective, limit=limit))
    if not isinstance(priced.objective, Power) and not isinstance(priced.strategy, Gradient):
        priced = replace(priced, objective=Within(limit=limit, least=AIM_SHARE * limit))
    priced = with_chosen_start(fitted_to_bands(priced, stage.dataset), recipe.request.start)
    if isinstance(priced.strategy, Gradient):
        return for_workers(replace(priced, strategy=_gradient(stage, priced.strategy)), 1)
    if isinstance(priced.strategy, OneShot):
        return replace(priced, strategy=_one_shot(stage, priced.strategy), seconds=_search_seconds(stage))
    return _trials(stage, priced)


def _gradient(stage: StageContext, strategy: Gradient) -> Gradient:
    """Set the length of a search by gradients; the training before it is shortened or extended in proportion."""
    steps = stage.paced(stage.recipe.effort.supernet_steps)
    before = strategy.pretraining
    if before is not None:
        before_steps = max(1, round(pretraining_share(strategy) * steps))
        before = replace(before, fit=replace(before.fit, steps=before_steps))
    fit = replace(strategy.fit, steps=steps, precision=stage.recipe.precision)
    seconds = _search_seconds(stage)
    return replace(
        strategy,
        fit=fit if seconds is None else replace(fit, seconds=seconds),
        choice=replace(strategy.choice, samples=min(strategy.choice.samples, steps // STEPS_PER_SAMPLE)),
        pretraining=before,
    )


def _one_shot(stage: StageContext, strategy: OneShot) -> OneShot:
    """Set the length of a one-shot search: its steps cost as much as those of all planned candidates together.

    Where a time was asked for, that ends it.
    """
    recipe = stage.recipe
    candidate_steps = recipe.effort.candidates * stage.paced(recipe.effort.candidate_steps)
    steps = max(MIN_SHARED_STEPS, round(strategy.training_share * candidate_steps / strategy.networks))
    fit = replace(
        strategy.fit,
        steps=steps,
        batch=recipe.batch,
        lr=recipe.lr,
        precision=recipe.precision,
        ema=SHORT_EMA if steps < SHORT_STEPS else strategy.fit.ema,
    )
    augment = None if strategy.augment is None else replace(strategy.augment, crop=recipe.crop)
    images = JUDGED_BATCHES * recipe.batch
    return replace(
        strategy,
        fit=fit,
        augment=augment,
        trials=SHARED_TRIALS,
        choice=replace(strategy.choice, images=images),
    )


def _trials(stage: StageContext, priced: SearchRecipe) -> SearchRecipe:
    """Set the number of candidates, their training and their deadlines."""
    recipe, candidates = stage.recipe, stage.recipe.effort.candidates
    strategy = priced.strategy
    if isinstance(strategy, Expansion):
        few = not expands(recipe.effort)
        strategy = Evolution(trials=candidates) if few else replace(strategy, steps=candidates // DIRECTIONS)
    elif isinstance(strategy, Evolution | Controller | RandomSearch):
        strategy = replace(strategy, trials=candidates)
    if isinstance(strategy, Evolution):
        strategy = replace(
            strategy,
            population=min(MAX_POPULATION, max(MIN_POPULATION, candidates // CANDIDATES_PER_MEMBER)),
            children=max(MIN_CHILDREN, candidates // CANDIDATES_PER_CHILD),
        )
    several = recipe.workers > 1 and isinstance(priced.executor, Serial)
    seconds = _search_seconds(stage)
    trials = replace(
        priced,
        strategy=strategy,
        evaluator=_judging(stage, priced.evaluator, seconds),
        executor=Processes(workers=recipe.workers) if several else priced.executor,
        seconds=seconds,
    )
    return for_workers(trials, recipe.workers)


def _judging(stage: StageContext, evaluator: RecipeEvaluator, seconds: float | None) -> RecipeEvaluator:
    """Set how long and on what each candidate is trained; `seconds` are those of the whole search."""
    recipe, steps = stage.recipe, stage.paced(stage.recipe.effort.candidate_steps)
    each = None
    if seconds is not None:
        each = round(MAX_CANDIDATE_SHARE * seconds * recipe.workers / recipe.effort.candidates, 1)
    if isinstance(evaluator, TrainEvaluator):
        fit = replace(
            evaluator.fit, steps=steps, batch=recipe.batch, lr=recipe.lr, precision=recipe.precision
        )
        return replace(
            evaluator,
            fit=fit if each is None else replace(fit, seconds=each),
            augment=replace(evaluator.augment, crop=recipe.crop),
        )
    if isinstance(evaluator, StagedEvaluator) and evaluator.stage2 is not None:
        stage2 = replace(
            evaluator.stage2,
            steps=max(1, steps // STAGE1_STEPS_PER_STAGE2),
            batch=recipe.batch,
            precision=recipe.precision,
        )
        return replace(
            evaluator,
            stage1=replace(evaluator.stage1, steps=steps),
            stage2=stage2 if each is None else replace(stage2, seconds=each),
        )
    return evaluator


def _search_seconds(stage: StageContext) -> float | None:
    """Return how long the search may take, where a time was asked for."""
    left = stage.before_training(reserved=CHOOSE_SHARE + READY_SHARE)
    return None if left is None else round(max(left, MIN_SEARCH_SECONDS), 1)
