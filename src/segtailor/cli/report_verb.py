"""`segtailor report`: write the page of a run, or compare several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from segtailor.cli.options import DryRun, Force, Json
from segtailor.cli.output import Printer, emit
from segtailor.cli.surroundings import Where


def report_(
    *runs: Path,
    out: Annotated[
        Path | None, Parameter(help="The HTML file; RUN/report/index.html, or comparison.html, by default.")
    ] = None,
    pictures: Annotated[
        bool,
        Parameter(
            negative=(),
            help="Predict the validation split of trainings again: confusion, worst and best pictures.",
        ),
    ] = False,
    force: Force = False,
    where: Annotated[Where, Parameter(name="*")] = Where(),
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Write the report of a run as one HTML file that needs nothing else; several runs are compared.

    Parameters
    ----------
    runs:
        Run directories, finished or not.
    """
    from segtailor.api import reporting
    from segtailor.core.errors import UserError
    from segtailor.core.ownership import is_page, refuse_overwrite

    if not runs:
        raise UserError("report needs a run directory, e.g. segtailor report runs/street.")
    page = reporting.page_of(runs, out)
    refuse_overwrite([(page, is_page)], force=force)
    if dry_run:
        result: dict[str, Any] = {
            "runs": [str(run) for run in runs],
            "report": str(page),
        }
    else:
        for run in runs if pictures else ():
            reporting.look(run, surroundings=where.surroundings(json=json))
        result = reporting.report(runs, out, force=force)
    emit(result, lambda printer: _print(printer, result), json=json)


def _print(printer: Printer, result: dict[str, Any]) -> None:
    if result.get("verdict"):
        printer.say(result["verdict"])
    if "compared" in result:
        rows = [
            [run["name"], run["kind"], run["status"], _percent(run["quality"]), _cost(run), run["seed"]]
            for run in result["compared"]
        ]
        printer.table(None, ["run", "kind", "status", ">mIoU", ">cost", ">seed"], rows)
        printer.say(f"{len(result['differing'])} settings differ")
    for line in result.get("missing", ()):
        printer.say(f"missing: {line}")
    size = f" ({result['bytes'] / 2**20:.2f} MiB)" if "bytes" in result else ""
    printer.say(f"report {result['report']}{size}")


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.2f} %"


def _cost(run: dict[str, Any]) -> str:
    from segtailor.report.numbers import amount

    return amount(run["cost"], run["unit"])
