"""`segtailor train`: train a network on a dataset."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from segtailor.cli.options import DryRun, Json, Size
from segtailor.cli.output import emit
from segtailor.cli.surroundings import Cache, Device, surroundings


def train_(
    model: str,
    /,
    *,
    data: str,
    out: Path,
    epochs: int | None = None,
    batch: int | None = None,
    lr: float | None = None,
    optimiser: Literal["sgd", "adamw"] | None = None,
    precision: Literal["fp32", "bf16", "fp16"] | None = None,
    seed: int | None = None,
    crop: Size | None = None,
    teacher: Annotated[Path | None, Parameter(help="Bundle to distil from.")] = None,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", negative=())] = (),
    check: Annotated[bool, Parameter(help="Examine the data first; errors stop the training.")] = True,
    cache: Cache = None,
    device: Device = None,
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
    epochs:
        Passes over the training split.
    batch:
        Images per step, over all processes.
    lr:
        Learning rate at the start.
    crop:
        Size HEIGHTxWIDTH of training crops; follows from the images when left out.
    set_:
        Any field of the recipe, e.g. `--set fit.loss.ohem=true` (see --dry-run for all of them).
    """
    from segtailor.api import training
    from segtailor.recipes.recipe import recipe_document

    around = surroundings(cache=cache, device=device, json=json)
    given = {
        "epochs": epochs, "batch": batch, "lr": lr, "optimiser": optimiser, "precision": precision, "seed": seed,
    }  # fmt: skip
    fit = replace(
        training.FitSettings(), **{name: value for name, value in given.items() if value is not None}
    )
    changes = [*set_, *([f"teacher={teacher}", "fit.distill.kind=kl"] if teacher else [])]
    recipe = training.train_recipe(model, data, fit=fit, crop=crop, changes=changes, surroundings=around)
    if dry_run:
        facts = {"run": str(out), "recipe": recipe_document(recipe)}
        emit(facts, lambda console: console.print_json(data=facts), json=json)
        return
    result = {"run": str(out), **training.train(recipe, out, check=check, surroundings=around)}
    emit(result, lambda console: console.print(_summary(result, data), highlight=False), json=json)


def _summary(result: dict[str, object], data: str) -> str:
    miou = result.get("miou")
    score = f"val mIoU {100 * miou:.1f} %, " if isinstance(miou, float) else ""
    return f"{score}bundle in {result['model']}\nnext: segtailor eval {result['model']} --data {data} --split val"
