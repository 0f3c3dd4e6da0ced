"""`segtailor search`: find networks for a dataset, a device and a budget."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from segtailor.core.codec import Json as JsonValue
from segtailor.core.errors import Unsupported, UserError, unknown
from segtailor.core.ranges import check_seed, check_whole
from segtailor.core.registry import EVALUATORS, EXECUTORS, SPACES, STRATEGIES, SYSTEMS
from segtailor.core.target import parse_budget_ms
from segtailor.core.text import command, path_argument
from segtailor.runs import Context, Layout
from segtailor.verbs.options import DryRun, Json, Set, Size
from segtailor.verbs.output import Printer, emit, note, reading_result, with_display

if TYPE_CHECKING:
    from segtailor.core.strategy import Executor, Strategy
    from segtailor.costs.latency import RecipeCost
    from segtailor.data.dataset import Dataset
    from segtailor.recipes.search import RecipeEvaluator, SearchRecipe

COUNT_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
OLD_FIELDS = {  # old and new beginnings of field names in `--set`
    "training.": "evaluator.",
    "staged.": "evaluator.",
    "shared.": "evaluator.",
    "strategy.settings.": "strategy.",
    "space.settings.": "space.",
    "objective.settings.": "objective.",
}


@dataclass(frozen=True, kw_only=True)
class SearchChoices:
    """The choices that people make; what is left out stays as the recipe has it."""

    scale: Literal["small", "paper"] = "small"
    """The paper's settings, or settings that a laptop can run in minutes."""
    target: str | None = None
    """Measure latency on device/runtime/precision; without it networks cost multiply-accumulates."""
    pack: Path | None = None
    """Take latency from a device pack made by `segtailor calibrate`."""
    force: bool = False
    """Use the pack although it was made for another machine, space, target or size."""
    budget: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None
    """No network may cost more: 12ms or 60fps with --target or --pack, else e.g. 300MMACs."""
    space: str | None = None
    """Another search space (see `segtailor list spaces`)."""
    strategy: str | None = None
    """random, evolution, expansion or controller (one_shot for elastic); without it the recipe's own."""
    trials: int | None = None
    """Number of networks to judge (random, evolution, controller)."""
    steps: int | None = None
    """Number of steps (expansion)."""
    evaluator: str | None = None
    """How networks are judged: train (a short training), staged (first the decoder on stored features of the encoder,
    then all of it) or shared (weights of a supernet)."""
    supernet: Path | None = None
    """Judge with the weights of this finished gradient search; means --evaluator shared."""
    executor: str | None = None
    """serial, processes or ray."""
    workers: int | None = None
    """Trials at once; more than one means processes."""
    address: str | None = None
    """host:port of a Ray cluster; without it Ray is started here."""
    seed: int | None = None
    """Random seed of the search and its trainings."""
    start: str = "auto"
    """Where the weights of candidates come from: auto (the best at hand), none (random), a name of `segtailor list
    starts`, or the path of a bundle, a run directory or a published checkpoint."""

    def __post_init__(self) -> None:
        for name, value in (("--trials", self.trials), ("--steps", self.steps), ("--workers", self.workers)):
            if value is not None:
                check_whole(name, value, least=1)
        if self.seed is not None:
            check_seed(self.seed, name="--seed")


def search_(
    recipe: str,
    /,
    *,
    data: str,
    out: Path,
    image: Size | None = None,
    choices: Annotated[SearchChoices, Parameter(name="*")] = SearchChoices(),
    set_: Set = (),
    context: Annotated[Context, Parameter(name="*")] = Context(),
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Search for networks for a dataset, a device and a budget.

    Candidates are trained briefly on one half of the training split and judged on the other. After an interruption
    the same command or `segtailor resume` continues.

    Parameters
    ----------
    recipe:
        A published system: see `segtailor list recipes`.
    data:
        A dataset, e.g. `synthetic`, `folder:PATH`, `coco:PATH`, `camvid:PATH`.
    out:
        Run directory. Found networks are in its folder `architectures`, the plot in `report`.
    image:
        Size HEIGHTxWIDTH that networks are priced at; the recipe's or the images' own when left out.
    set_:
        Any field of the recipe, e.g. --set evaluator.fit.steps=200; --dry-run shows all of them.
    """
    from segtailor.recipes.recipe import recipe_document

    context = with_display(context, json=json)
    chosen = search_recipe(recipe, data, choices, image=image, changes=set_, context=context)
    if dry_run:
        facts = {"run": str(out), **preview(chosen, context=context), "recipe": recipe_document(chosen)}
        emit(facts, lambda printer: printer.document(facts), json=json)
        return
    with reading_result(out):
        outcome: dict[str, Any] = search(chosen, out, context=context)
        result = {"run": str(out), **outcome, "trials": len(outcome["trials"])}
        emit(result, lambda printer: _print(printer, result, data), json=json)


def search(
    recipe: SearchRecipe | str,
    out: str | Path,
    *,
    data: str | None = None,
    context: Context | None = None,
    **choices: Any,
) -> dict[str, JsonValue]:
    """Search in the run directory `out`, or continue what is there; settings that cannot work raise before it is made.

    `recipe` is a recipe, or the name of a published system with `data`, `image`, `changes` (`field=value`) and the
    fields of `SearchChoices`.
    """
    from segtailor.recipes.recipe import carry_out

    placed = replace(context or Context(), folder=Path(out))
    if isinstance(recipe, str):
        recipe = _recipe_of_system(recipe, data, choices, placed)
    return carry_out(recipe, placed, check=lambda job: job.preview())


def search_recipe(
    name: str,
    data: str,
    choices: SearchChoices | None = None,
    *,
    image: tuple[int, int] | None = None,
    changes: Iterable[str] = (),
    context: Context | None = None,
) -> SearchRecipe:
    """Return the recipe of a published system for a dataset, with the choices made; `changes` are `field=value`.

    `image` is the size that networks are priced at, by default the recipe's or the images' own.
    """
    from segtailor.data.locate import locate
    from segtailor.recipes.recipe import with_settings
    from segtailor.recipes.search import fitted_to_bands

    chosen = choices or SearchChoices()
    base = system_recipe(name, data, scale=chosen.scale, context=context or Context())
    cost = _cost(chosen, base.cost)
    recipe = replace(
        base,
        image=image or base.image,
        cost=cost,
        limit=base.limit if chosen.budget is None else parse_limit(chosen.budget, cost.unit),
        space=base.space if chosen.space is None else SPACES.get(chosen.space)(),
        strategy=_strategy(chosen, base.strategy),
        evaluator=_evaluator(chosen, base.evaluator),
        executor=_executor(chosen, base.executor),
        seed=base.seed if chosen.seed is None else chosen.seed,
    )
    recipe = fitted_to_bands(recipe, locate(data))
    if chosen.scale == "paper" and chosen.start == "auto" and SYSTEMS.get(name).from_scratch:
        note("start: none; the published search begins from random weights. --start gives it others.")
    else:
        recipe = with_chosen_start(recipe, chosen.start, scale=chosen.scale)
    _tell_pacing(recipe)
    return with_settings(for_workers(recipe, chosen.workers or 1), map(_with_new_name, changes))


def _tell_pacing(recipe: SearchRecipe) -> None:
    """Say so where counted operations stand in for the latency that paces an expansion."""
    from segtailor.strategies import Expansion

    if isinstance(recipe.strategy, Expansion) and recipe.cost.unit != "ms":
        note(
            f"the expansion takes its steps by {recipe.cost.unit}, which stand in for the latency of the paper and "
            "grow differently with depth, width and resolution; give --target or --pack to pace it by milliseconds."
        )


def with_chosen_start(
    recipe: SearchRecipe, start: str, *, scale: Literal["small", "paper"] = "small"
) -> SearchRecipe:
    """Return a search whose candidates begin from a start; `auto` is the best at hand.

    Decoders on a fixed encoder take it as the weights of that encoder. Of the supernets, those of
    inverted residuals take it; the others begin from random weights.
    """
    from segtailor.data.locate import locate
    from segtailor.spaces.starts import (
        AUTO,
        IMAGENET,
        NONE,
        TIMM,
        choose_space_start,
        start_warning,
        supernet_takes_starts,
    )
    from segtailor.strategies.evaluators.shared import SharedEvaluator
    from segtailor.strategies.evaluators.staged import StagedEvaluator
    from segtailor.strategies.gradient_settings import Gradient

    gradient = isinstance(recipe.strategy, Gradient)
    if isinstance(recipe.evaluator, SharedEvaluator) or (
        gradient and not supernet_takes_starts(recipe.space)
    ):
        if start not in (AUTO, NONE):
            raise Unsupported(
                f"--start {start}: the supernet of this search cannot begin from weights (only those of inverted "
                "residuals can). Search the same space with --strategy evolution, or leave --start out and start the "
                "training of what is found."
            )
        return recipe
    if isinstance(recipe.evaluator, StagedEvaluator):
        names = {NONE: "random", IMAGENET: "package"}
        weights = "timm" if start.startswith(TIMM) else names.get(start, start)
        _refuse_random_encoder(recipe, weights, scale=scale)
        return replace(recipe, evaluator=replace(recipe.evaluator, encoder_weights=weights))
    name, line = choose_space_start(start, recipe.space, locate(recipe.data).task)
    note(line)
    warning = start_warning(name)
    if warning:
        note(warning)
    return replace(recipe, start=name)


def _refuse_random_encoder(recipe: SearchRecipe, weights: str, *, scale: Literal["small", "paper"]) -> None:
    """Refuse a paper's search over decoders whose encoder nobody trained, unless just that was asked for."""
    from importlib.util import find_spec

    from segtailor.spaces.decoder_cell import DecoderCell
    from segtailor.spaces.decoder_cell.encoder_weights import MODULE, PACKAGED

    if scale != "paper" or weights != "auto" or not isinstance(recipe.space, DecoderCell):
        return
    if recipe.space.encoder == PACKAGED and find_spec(MODULE) is not None:
        return
    raise Unsupported(
        f"the published search trains decoders on a pre-trained encoder, and no weights of '{recipe.space.encoder}' "
        "are at hand. Give --start a checkpoint of it, or say --start none for a random one."
    )


def system_recipe(
    name: str,
    data: str,
    *,
    scale: Literal["small", "paper"],
    context: Context,
    dataset: Dataset | None = None,
) -> SearchRecipe:
    """Return the recipe of a published system, fitted to a dataset (`dataset`, if it is open already)."""
    from segtailor.data.cache import open_pixels
    from segtailor.data.locate import locate
    from segtailor.recipes.train import largest_crop
    from segtailor.strategies.halves import FIT, HalvedTrain

    system = SYSTEMS.get(name)
    pixels = open_pixels(HalvedTrain(dataset=dataset or locate(data)), FIT, context.cache_folder)
    height, width = pixels.sizes.max(axis=0).tolist()
    recipe: SearchRecipe = system.on(data, scale=scale, size=(height, width), crop=largest_crop(pixels))
    return recipe


def preview(recipe: SearchRecipe, *, context: Context | None = None) -> dict[str, JsonValue]:
    """Return facts about the first candidates of a search, and how long it will take where crops are small."""
    from segtailor.costs.latency import TargetLatency
    from segtailor.strategies.duration import estimate, estimate_one_shot, estimate_trials
    from segtailor.strategies.evaluators.staged import StagedEvaluator
    from segtailor.strategies.evaluators.train import TrainEvaluator
    from segtailor.strategies.gradient import GradientSearch
    from segtailor.strategies.one_shot import OneShotSearch
    from segtailor.strategies.trials import TrialSearch

    job = recipe.job(context or Context())
    if isinstance(job.search, GradientSearch):  # it has no candidates
        measured = estimate(job.search)
        return {"estimate": measured} if measured else {}
    if isinstance(recipe.cost, TargetLatency):
        return {}
    first = job.preview()
    facts: dict[str, JsonValue] = {
        "first": len(first),
        "cheapest": min(item.cost for item in first),
        "unit": recipe.cost.unit,
    }
    evaluator, measured = recipe.evaluator, {}
    if isinstance(job.search, OneShotSearch):
        measured = estimate_one_shot(job.search)
    if isinstance(job.search, TrialSearch):
        if isinstance(evaluator, TrainEvaluator):
            measured = estimate_trials(job.search, batch=evaluator.fit.batch, crop=evaluator.augment.crop)
        elif isinstance(evaluator, StagedEvaluator):
            measured = estimate_trials(job.search, batch=evaluator.stage1.batch, crop=evaluator.features.crop)
    return {**facts, "estimate": measured} if measured else facts


def parse_limit(text: str, unit: str) -> float:
    """Read a budget in the unit of a cost: `12ms`, `60fps`, or for counted costs `300M`, `1.5GMACs`."""
    if unit == "ms":
        return parse_budget_ms(text)
    form = rf"([+-]?\d{{1,30}}(?:\.\d{{1,30}})?)\s*([kmgt]?)\s*(?:{unit})?"
    match = re.fullmatch(form, text.strip(), re.IGNORECASE)
    if match is not None and float(match[1]) <= 0:
        raise UserError(
            f"budget '{text}' is not above zero: write for example 300M{unit}, or add --target (or --pack) for "
            "a budget in milliseconds."
        )
    if match is None:
        raise UserError(
            f"budget '{text}' does not fit a cost in {unit}: write for example 300M{unit}, or add --target "
            "(or --pack) for a budget in milliseconds."
        )
    return float(match[1]) * COUNT_SCALES[match[2].lower()]


def for_workers(recipe: SearchRecipe, workers: int) -> SearchRecipe:
    """Let a controller ask for as many networks at a time as there are workers, and early stopping compare as many."""
    from segtailor.strategies import Controller
    from segtailor.strategies.evaluators.staged import StagedEvaluator

    strategy, evaluator = recipe.strategy, recipe.evaluator
    if isinstance(strategy, Controller):
        strategy = replace(strategy, batch=max(strategy.batch, workers))
    if isinstance(evaluator, StagedEvaluator) and evaluator.early_stop is not None:
        stop = replace(evaluator.early_stop, every=max(evaluator.early_stop.every, workers))
        evaluator = replace(evaluator, early_stop=stop)
    return replace(recipe, strategy=strategy, evaluator=evaluator)


def towards_budget(strategy: Strategy) -> Strategy:
    """Let the cost weight of a gradient search adapt to the budget, unless the recipe steers the cost itself.

    A budget counts the whole network, so the cost term has to count the whole network too (`whole`): otherwise only the
    parts that it counts would shrink. AutoRTNet's own cost leaves the aggregation cell out.
    """
    from segtailor.strategies.gradient_settings import Gradient
    from segtailor.systems.system import ADAPT

    if not isinstance(strategy, Gradient):
        return strategy
    cost = strategy.cost
    steered = cost.adapt > 0 or cost.window is not None or cost.weight == 0
    return strategy if steered else replace(strategy, cost=replace(cost, adapt=ADAPT, whole=True))


def _recipe_of_system(name: str, data: str | None, choices: dict[str, Any], context: Context) -> SearchRecipe:
    """Return the recipe that the arguments of `search` describe."""
    if data is None:
        raise UserError(f"recipe '{name}' needs data; give for example data='synthetic'.")
    image, changes = choices.pop("image", None), choices.pop("changes", ())
    known = [item.name for item in fields(SearchChoices)]
    for choice in choices:
        if choice not in known:
            raise unknown("choice of a search", choice, [*known, "image", "changes"])
    chosen = SearchChoices(**choices)
    return search_recipe(name, data, chosen, image=image, changes=changes, context=context)


def _cost(chosen: SearchChoices, cost: RecipeCost) -> RecipeCost:
    from segtailor.costs.latency import PackLatency, TargetLatency

    if chosen.pack is not None:
        return PackLatency(pack=str(chosen.pack), target=chosen.target, force=chosen.force)
    return cost if chosen.target is None else TargetLatency(target=chosen.target)


def _strategy(chosen: SearchChoices, strategy: Strategy) -> Strategy:
    if chosen.strategy is not None:
        known = [name for name in STRATEGIES.names() if name != "gradient"]
        own = STRATEGIES.name_of(type(strategy))
        if chosen.strategy == "gradient" and own != "gradient":
            raise Unsupported(
                "--strategy gradient: a search by gradients needs a supernet and settings of its own, which this "
                "recipe does not have. Use `segtailor search fasterseg`, `autortnet` or `squeezenas`, or one of the "
                f"strategies {', '.join(known)}."
            )
        if chosen.strategy not in (*known, own):
            raise unknown("strategy", chosen.strategy, known)
        if chosen.strategy != STRATEGIES.name_of(type(strategy)):
            strategy = STRATEGIES.get(chosen.strategy)()
    for name in ("trials", "steps"):
        value = getattr(chosen, name)
        if value is None:
            continue
        if not hasattr(strategy, name):
            other = {"trials": "steps", "steps": "trials"}[name]
            remedy = (
                f"it counts {other}: give --{other}" if hasattr(strategy, other) else "its number is fixed"
            )
            kind = STRATEGIES.name_of(type(strategy))
            raise UserError(f"--{name}: strategy '{kind}' has no such setting; {remedy}.")
        strategy = replace(strategy, **{name: value})  # type: ignore[type-var]
    return strategy if chosen.budget is None else towards_budget(strategy)


def _evaluator(chosen: SearchChoices, evaluator: RecipeEvaluator) -> RecipeEvaluator:
    """Return the recipe's own evaluator, or another one with the same augmentation."""
    from segtailor.strategies.evaluators.shared import SharedEvaluator
    from segtailor.strategies.evaluators.staged import StagedEvaluator
    from segtailor.strategies.evaluators.train import SHORT_FIT, TrainEvaluator

    kind = chosen.evaluator or ("shared" if chosen.supernet else EVALUATORS.name_of(type(evaluator)))
    if kind not in EVALUATORS:
        raise unknown("evaluator", kind, EVALUATORS.names())
    if kind == "shared":
        if chosen.supernet is None:
            raise Unsupported(
                "the evaluator 'shared' slices a trained supernet, and none was named; give --supernet RUN, a finished "
                "gradient search, or use the evaluator 'train'."
            )
        return SharedEvaluator(supernet=_supernet_folder(chosen.supernet))
    if kind == "train" and isinstance(evaluator, StagedEvaluator):
        return TrainEvaluator(augment=evaluator.augment, fit=SHORT_FIT)
    if kind == "staged" and isinstance(evaluator, TrainEvaluator):
        augment = evaluator.augment
        return StagedEvaluator(features=augment, augment=augment, judge=augment.crop)
    return evaluator


def _supernet_folder(run: Path) -> str:
    """Return the folder of a run's supernet, or the folder itself; absolute, because workers may start elsewhere."""
    inside = Layout(run).supernet
    return str((inside if inside.is_dir() else run).absolute())


def _executor(chosen: SearchChoices, executor: Executor) -> Executor:
    several = chosen.workers is not None and chosen.workers > 1
    usual = EXECUTORS.name_of(type(executor))
    implied = "ray" if chosen.address else "processes" if several and usual == "serial" else usual
    kind = chosen.executor or implied
    if kind == "serial" and several:
        raise UserError(
            f"workers: the executor 'serial' has one, {chosen.workers} were asked; use --executor processes or ray."
        )
    if kind != usual:
        executor = EXECUTORS.get(kind)()
    given = {
        name: value
        for name, value in (("workers", chosen.workers), ("address", chosen.address))
        if value is not None and hasattr(executor, name)
    }
    return replace(executor, **given) if given else executor  # type: ignore[type-var]


def _with_new_name(change: str) -> str:
    """Return a setting `field=value` with the new name of its field."""
    for old, new in OLD_FIELDS.items():
        if change.startswith(old):
            return new + change.removeprefix(old)
    return change


def _print(printer: Printer, result: dict[str, Any], data: str) -> None:
    unit, measure = result["unit"], f">{result.get('measure', 'mIoU')} %"
    name = "family" if "family" in result else "front"
    rows = [[_origin(row), *_figures(row), row["fingerprint"]] for row in result[name]]
    printer.table(None, [name, measure, f">cost in {unit}", "architecture"], rows)
    count = result.get("failed", 0)  # missing in gradient searches of earlier versions
    failed = f", {count} of them failed" if count else ""
    best = f"{100 * result['quality']:.1f} % at {result['cost']:.4g} {unit}, {result['architecture']}"
    architecture, out = path_argument(result["architecture"]), path_argument(result["run"] + "-trained")
    printer.say(
        "",
        f"{result['trials']} trials{failed}; best: {best}",
        f"plot {result['report']}",
        f"next: {command('segtailor', 'train', architecture, '--data', data, '--out', out)}",
    )
    if Layout(Path(result["run"])).fronts.is_dir():
        run = path_argument(result["run"])
        printer.say(f"the front has weights: {command('segtailor', 'export', run, '--budget', '8ms')}")
    for warning in result.get("warnings", ()):
        printer.say(f"note: {warning}")


def _figures(row: dict[str, Any]) -> list[str]:
    quality = "failed" if row["quality"] is None else f"{100 * row['quality']:.1f}"
    return [quality, f"{row['cost']:.4g}"]


def _origin(row: dict[str, Any]) -> str:
    """Return where a member of the front or family comes from."""
    if "step" not in row:
        return f"trial {row['trial']}"
    grown = f": {row['direction']} x {row['k']}" if "direction" in row else ": start"
    return f"step {row['step']}{grown}"
