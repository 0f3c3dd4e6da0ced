"""`segtailor train`: train a network on a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from json import dumps
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from segtailor.cli.options import Count, DryRun, Json, Positive, Seed, Size
from segtailor.cli.output import emit, reading_kept
from segtailor.cli.surroundings import Where
from segtailor.core.errors import UserError
from segtailor.core.task import KIND_FACTS
from segtailor.core.text import command, path_argument


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
    """Of initial weights, order and augmentation."""
    crop: Size | None = None
    """Size HEIGHTxWIDTH of training crops; follows from the images when left out."""
    teacher: Path | None = None
    """Bundle or shipped weights to distil from, or a folder of several, whose mean is followed."""
    recipe: str | None = None
    """A published training: auxcells (stages, two optimisers, auxiliary coefficients); it fixes the other settings."""
    scale: Literal["small", "paper"] = "small"
    """Of a published training: the paper's settings, or ones that a laptop carries out."""
    set_: Annotated[tuple[str, ...], Parameter(name="--set", negative=(), consume_multiple=True)] = ()
    """Any field of the recipe, e.g. --set fit.loss.ohem=0.7 fit.clip=5; --dry-run shows all."""

    def changes(self) -> list[str]:
        """Return the flags as changes of a recipe."""
        fit = {name: value for name, value in asdict(self).items() if name in FIT and value is not None}
        distil = [f"teacher={dumps(str(self.teacher))}", "fit.distill.kind=kl"] if self.teacher else []
        return [*(f"fit.{name}={value}" for name, value in fit.items()), *distil, *self.set_]


FIT = ("epochs", "batch", "lr", "optimiser", "precision", "seed")


def train_(
    model: str,
    *,
    data: str,
    out: Path,
    flags: Annotated[TrainFlags, Parameter(name="*")] = TrainFlags(),
    check: Annotated[bool, Parameter(help="Examine the data first; errors stop the training.")] = True,
    where: Annotated[Where, Parameter(name="*")] = Where(),
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Train a network on a dataset.

    Parameters
    ----------
    model:
        A published name or the path of an architecture file.
    data:
        A dataset, e.g. `synthetic`, `folder:PATH`, `camvid:PATH`.
    out:
        Run directory. The trained bundle is its folder `weights`.
    """
    from segtailor.api import training
    from segtailor.recipes.recipe import recipe_document

    around = where.surroundings(json=json)
    recipe: Any
    if flags.recipe is None:
        changes = flags.changes()
        recipe = training.train_recipe(model, data, crop=flags.crop, changes=changes, surroundings=around)
    elif flags.changes():
        raise UserError(
            f"--recipe {flags.recipe} fixes the settings; leave the others out, or write a recipe in Python."
        )
    else:
        recipe = training.staged_recipe(
            flags.recipe, model, data, scale=flags.scale, crop=flags.crop, surroundings=around
        )
    if dry_run:
        facts = {"run": str(out), "recipe": recipe_document(recipe)}
        emit(facts, lambda printer: printer.document(facts), json=json)
        return
    with reading_kept(out):
        result = {"run": str(out), **training.train(recipe, out, check=check, surroundings=around)}
        emit(result, lambda printer: printer.say(*_summary(result, data)), json=json)


def _summary(result: Mapping[str, Any], data: str) -> list[str]:
    if not isinstance(result["model"], str):
        raise TypeError(f"the model is {result['model']!r:.60}, no path")
    model = path_argument(result["model"])
    found = next((facts.headline for facts in KIND_FACTS.values() if facts.headline.name in result), None)
    value = result[found.name] if found is not None else None
    if found is None or not isinstance(value, float):  # nothing was held out to score on
        return [f"bundle in {result['model']}", f"next: {command('segtailor', 'bench', model)}"]
    score = f"val {found.label} {found.told(value)}, bundle in {result['model']}"
    return [score, f"next: {command('segtailor', 'eval', model, '--data', data, '--split', 'val')}"]
