"""`segtailor search`: find networks for a dataset, a device and a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from segtailor.cli.options import DryRun, Json, Size
from segtailor.cli.output import Printer, emit, reading_kept
from segtailor.cli.surroundings import Where
from segtailor.core.text import command, path_argument
from segtailor.recipes.choices import SearchChoices


def search_(
    recipe: str,
    /,
    *,
    data: str,
    out: Path,
    image: Size | None = None,
    choices: Annotated[SearchChoices, Parameter(name="*")] = SearchChoices(),
    set_: Annotated[tuple[str, ...], Parameter(name="--set", negative=(), consume_multiple=True)] = (),
    where: Annotated[Where, Parameter(name="*")] = Where(),
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Search networks for a dataset, a device and a budget.

    Candidates are trained briefly on one half of the training split and judged on the other. Interrupted, the same
    command or `segtailor resume` goes on.

    Parameters
    ----------
    recipe:
        A published system or study: see `segtailor list recipes`.
    data:
        A dataset, e.g. `synthetic`, `folder:PATH`, `camvid:PATH`.
    out:
        Run directory. Found networks are in its folder `architectures`, the plot in `report`.
    image:
        Size HEIGHTxWIDTH that networks are priced at; the recipe's or the images' own when left out.
    set_:
        Any field of the recipe, e.g. --set training.fit.steps=200; --dry-run shows all of them.
    """
    from segtailor.api import searching
    from segtailor.recipes.recipe import recipe_document

    around = where.surroundings(json=json)
    asked = searching.search_recipe(recipe, data, choices, image=image, changes=set_, surroundings=around)
    if dry_run:
        facts = {
            "run": str(out),
            **searching.preview(asked, surroundings=around),
            "recipe": recipe_document(asked),
        }
        emit(facts, lambda printer: printer.document(facts), json=json)
        return
    with reading_kept(out):
        found: dict[str, Any] = searching.search(asked, out, surroundings=around)
        result = {"run": str(out), **found, "trials": len(found["trials"])}
        emit(result, lambda printer: _print(printer, result, data), json=json)


def _print(printer: Printer, result: dict[str, Any], data: str) -> None:
    unit, measure = result["unit"], f">{result.get('measure', 'mIoU')} %"
    if "study" in result:
        rows = [[row["entrant"], *_figures(row)] for row in result["study"]]
        printer.table(None, ["entrant", measure, f">cost in {unit}"], rows)
    else:
        name = "family" if "family" in result else "front"
        rows = [[_how(row), *_figures(row), row["fingerprint"]] for row in result[name]]
        printer.table(None, [name, measure, f">cost in {unit}", "architecture"], rows)
    count = result.get("failed", 0)  # earlier searches by gradients did not say
    failed = f", {count} of them failed" if count else ""
    best = f"{100 * result['quality']:.1f} % at {result['cost']:.4g} {unit}, {result['architecture']}"
    found, out = path_argument(result["architecture"]), path_argument(result["run"] + "-trained")
    printer.say(
        "",
        f"{result['trials']} trials{failed}; best: {best}",
        f"plot {result['report']}",
        f"next: {command('segtailor', 'train', found, '--data', data, '--out', out)}",
    )
    for warning in result.get("warnings", ()):
        printer.say(f"note: {warning}")


def _figures(row: dict[str, Any]) -> list[str]:
    quality = "failed" if row["quality"] is None else f"{100 * row['quality']:.1f}"
    return [quality, f"{row['cost']:.4g}"]


def _how(row: dict[str, Any]) -> str:
    """Say where a member comes from."""
    if "step" not in row:
        return f"trial {row['trial']}"
    grown = f": {row['direction']} x {row['k']}" if "direction" in row else ": start"
    return f"step {row['step']}{grown}"
