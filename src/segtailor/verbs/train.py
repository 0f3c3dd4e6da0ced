"""`segtailor train`: train a network on a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from segtailor.core.codec import Json as JsonValue
from segtailor.core.errors import Unsupported, UserError
from segtailor.core.registry import TRAININGS
from segtailor.core.task import KIND_FACTS
from segtailor.core.text import command, path_argument
from segtailor.runs import Context, Layout
from segtailor.verbs.options import Count, DryRun, Json, Positive, Seed, Set, Size
from segtailor.verbs.output import emit, note, reading_result, with_display

if TYPE_CHECKING:
    from segtailor.core.space import Architecture
    from segtailor.recipes.train import StagedTrainRecipe, TrainRecipe

MAX_CHECKED = 2000  # samples per split that are examined before training starts
FIT_FLAGS = ("epochs", "batch", "lr", "optimiser", "precision", "seed")


@dataclass(frozen=True, kw_only=True)
class TrainFlags:
    """The settings that people change most; `--set` reaches all others."""

    epochs: Count | None = None
    """Passes over the training split."""
    batch: Count | None = None
    """Images per step, over all processes."""
    lr: Positive | None = None
    """Learning rate at the start."""
    optimiser: Literal["sgd", "adam", "adamw"] | None = None
    """Which optimiser."""
    precision: Literal["fp32", "bf16", "fp16"] | None = None
    """Number format of the forward and backward pass."""
    seed: Seed | None = None
    """Random seed of initial weights, order and augmentation."""
    crop: Size | None = None
    """Size HEIGHTxWIDTH of training crops; follows from the images when left out."""
    teacher: str | None = None
    """What to distil from: a bundle, shipped weights, a folder of several bundles, whose mean is used, an ONNX file
    that gives logits, package.module:function, or imagenet or timm:MODEL, which first learn the classes of the data."""
    start: str = "auto"
    """Where weights come from: auto (the best at hand), none (random), a name of `segtailor list starts`, or the path
    of a bundle, a run directory or a published checkpoint."""
    recipe: str | None = None
    """A published training: fasterseg, autortnet, auxcells, squeezenas or lpsnet (schedule, crop, losses, stages as in
    the paper); it fixes the other settings."""
    scale: Literal["small", "paper"] = "small"
    """Of a published training: the paper's settings, or settings that a laptop can run."""
    set_: Set = ()
    """Any field of the recipe, e.g. --set fit.loss.ohem=0.7 fit.clip=5; --dry-run shows all."""

    @property
    def fit(self) -> dict[str, Any]:
        """The flags that are fields of `FitSettings`."""
        given = {name: getattr(self, name) for name in FIT_FLAGS}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def fixed_by_recipe(self) -> bool:
        """Whether a flag was given that a published training fixes."""
        return bool(self.fit or self.set_)


def train_(
    model: str,
    *,
    data: str,
    out: Path,
    flags: Annotated[TrainFlags, Parameter(name="*")] = TrainFlags(),
    check: Annotated[bool, Parameter(help="Examine the data first; errors stop the training.")] = True,
    context: Annotated[Context, Parameter(name="*")] = Context(),
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Train a network on a dataset.

    Parameters
    ----------
    model:
        A published name or the path of an architecture file.
    data:
        A dataset, e.g. `synthetic`, `folder:PATH`, `coco:PATH`, `camvid:PATH`.
    out:
        Run directory. The trained bundle is its folder `weights`.
    """
    from segtailor.recipes.recipe import recipe_document
    from segtailor.recipes.train import is_probe

    context = with_display(context, json=json)
    recipe = _flagged_recipe(model, data, flags, context)
    _tell_start(recipe, flags.start)
    if flags.teacher is not None and is_probe(flags.teacher):
        note(f"teacher: {flags.teacher} learns the classes of the data first, in {out}-teacher.")
    if dry_run:
        facts = {"run": str(out), "recipe": recipe_document(recipe)}
        emit(facts, lambda printer: printer.document(facts), json=json)
        return
    with reading_result(out):
        result = {"run": str(out), **train(recipe, out, check=check, context=context)}
        emit(result, lambda printer: printer.say(*_summary(result, data)), json=json)


def train(
    recipe: TrainRecipe | StagedTrainRecipe | str | Path | Architecture,
    out: str | Path,
    *,
    data: str | None = None,
    changes: Iterable[str] = (),
    check: bool = True,
    context: Context | None = None,
) -> dict[str, JsonValue]:
    """Train in the run directory `out`, or continue what is there; errors in the data raise before it starts.

    `recipe` is a recipe, or a network (name, architecture or its file) with `data` and `changes` (`field=value`).
    """
    from segtailor.data import doctor
    from segtailor.data.locate import locate
    from segtailor.recipes.recipe import carry_out, with_settings
    from segtailor.recipes.train import StagedTrainRecipe, TrainRecipe, is_probe, probe_recipe, train_recipe

    if not isinstance(recipe, TrainRecipe | StagedTrainRecipe):
        if data is None:
            raise UserError(f"training '{recipe}' needs data; give for example data='synthetic'.")
        recipe = with_settings(train_recipe(recipe, data, context=context), changes)
    if check and not Layout(Path(out)).recipe.exists():
        doctor.examine(partial(locate, recipe.data), limit=MAX_CHECKED).raise_for_errors()
    placed = replace(context or Context(), folder=Path(out))
    if isinstance(recipe, TrainRecipe) and recipe.teacher is not None and is_probe(recipe.teacher):
        beside = placed.folder.parent / f"{placed.folder.name}-teacher"
        learnt = carry_out(probe_recipe(recipe), replace(placed, folder=beside))
        recipe = replace(recipe, teacher=str(learnt["model"]))
    return carry_out(recipe, placed)


def published_training(
    name: str,
    model: str | Path | Architecture,
    data: str | Sequence[str],
    *,
    scale: Literal["small", "paper"] = "small",
    crop: tuple[int, int] | None = None,
    start: str = "auto",
    teacher: str | Path | None = None,
    context: Context | None = None,
) -> StagedTrainRecipe:
    """Return the training recipe of a published system; `data` may name one dataset per stage where it has several.

    `teacher` is a bundle to distil from, for trainings that do. At the paper's scale `auto` starts from what the paper
    starts from: random weights for FasterSeg, pre-trained ones for the others, whose absence is told.
    """
    from segtailor.data.large import open_samples
    from segtailor.data.locate import locate
    from segtailor.recipes.train import MAX_CROP, largest_crop
    from segtailor.spaces.networks import resolve
    from segtailor.spaces.starts import AUTO, NONE, choose_start
    from segtailor.systems.training import Asked, PublishedTraining

    training: PublishedTraining = TRAININGS.get(name)
    if teacher is not None and not training.teacher:
        raise Unsupported(
            f"the training '{name}' has no distillation; leave --teacher out, or train without --recipe."
        )
    names = [data] if isinstance(data, str) else list(data)
    dataset = locate(names[-1])
    size = crop or MAX_CROP  # a paper's crop is its own
    if crop is None and scale == "small":
        size = largest_crop(open_samples(dataset, "train", (context or Context()).cache_folder))
    val = "val" if "val" in dataset.splits else None
    arch = resolve(model)
    from_scratch = training.begins == "scratch" and start == AUTO
    chosen = NONE if from_scratch else choose_start(start, arch, dataset.task)[0]
    unstarted = chosen == NONE and start != NONE and scale == "paper"
    if unstarted and training.begins == "imagenet":
        note(
            f"the training '{name}' was published with ImageNet pre-training, and no such weights are at hand for this "
            "network: it starts from random weights. Give --start a bundle or checkpoint that was pre-trained."
        )
    if unstarted and training.begins == "encoder":
        raise Unsupported(
            f"the training '{name}' begins from a pre-trained encoder, and none is at hand for this network. Give "
            "--start a checkpoint of the encoder, or say --start none to train from random weights."
        )
    asked = Asked(
        data=tuple(names),
        crop=size,
        scale=scale,
        val_split=val,
        start=chosen,
        teacher=None if teacher is None else str(teacher),
    )
    return training.recipe(arch, asked)


def _flagged_recipe(
    model: str, data: str, flags: TrainFlags, context: Context
) -> TrainRecipe | StagedTrainRecipe:
    """Return the recipe that the flags describe."""
    from segtailor.recipes.recipe import with_settings
    from segtailor.recipes.train import train_recipe
    from segtailor.training.distill import DistillSettings

    if flags.recipe is not None:
        if flags.fixed_by_recipe:
            raise UserError(
                f"--recipe {flags.recipe} fixes the settings; leave the others out, or write a recipe in Python."
            )
        return published_training(
            flags.recipe,
            model,
            data,
            scale=flags.scale,
            crop=flags.crop,
            start=flags.start,
            teacher=flags.teacher,
            context=context,
        )
    recipe = train_recipe(model, data, crop=flags.crop, start=flags.start, context=context)
    recipe = replace(recipe, fit=replace(recipe.fit, **flags.fit))
    if flags.teacher is not None:
        distilled = replace(recipe.fit, distill=DistillSettings(kind="kl"))
        recipe = replace(recipe, teacher=flags.teacher, fit=distilled)
    return with_settings(recipe, flags.set_)


def _tell_start(recipe: TrainRecipe | StagedTrainRecipe, asked: str) -> None:
    """Say in one line where the weights come from."""
    from segtailor.data.locate import locate
    from segtailor.recipes.train import TrainRecipe
    from segtailor.spaces.starts import NONE, choose_start, start_warning

    first = recipe if isinstance(recipe, TrainRecipe) else recipe.stages[0]
    task = locate(first.data).task
    name, line = choose_start(asked, first.architecture, task)
    if first.start != name:  # set by --set
        name, line = choose_start(first.start or NONE, first.architecture, task)
    note(line)
    warning = start_warning(name)
    if warning:
        note(warning)


def _summary(result: Mapping[str, Any], data: str) -> list[str]:
    if not isinstance(result["model"], str):
        raise TypeError(f"the model is {result['model']!r:.60}, which is no path")
    model = path_argument(result["model"])
    headline = next((facts.headline for facts in KIND_FACTS.values() if facts.headline.name in result), None)
    value = result[headline.name] if headline is not None else None
    if headline is None or not isinstance(value, float):  # nothing was held out to score on
        return [f"bundle in {result['model']}", f"next: {command('segtailor', 'bench', model)}"]
    score = f"val {headline.label} {headline.told(value)}, bundle in {result['model']}"
    return [score, f"next: {command('segtailor', 'eval', model, '--data', data, '--split', 'val')}"]
