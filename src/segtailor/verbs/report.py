"""`segtailor report`: write the report of a run, or the comparison of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from segtailor.core.atomic import write_text
from segtailor.core.codec import Json as JsonValue
from segtailor.core.errors import UserError
from segtailor.core.ownership import is_page, refuse_overwrite
from segtailor.core.task import KIND_FACTS
from segtailor.report.comparison import compare
from segtailor.report.document import Quality, Report
from segtailor.report.folder import open_run
from segtailor.report.html import render, render_comparison, sections
from segtailor.report.inspecting import examine, inspect
from segtailor.report.parts import kept_parts, save_parts
from segtailor.report.reading import report_of
from segtailor.runs import Context, Layout
from segtailor.verbs.options import DryRun, Force, Json
from segtailor.verbs.output import Printer, emit, with_display

PAGE = "index.html"
COMPARISON = "comparison.html"


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
    context: Annotated[Context, Parameter(name="*")] = Context(),
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Write the report of a run as one HTML file that needs nothing else; several runs are compared.

    Parameters
    ----------
    runs:
        Run directories, finished or not.
    """
    if not runs:
        raise UserError("report needs a run directory, e.g. segtailor report runs/street.")
    page = page_of(runs, out)
    refuse_overwrite([(page, is_page)], force=force)
    if dry_run:
        result: dict[str, Any] = {"runs": [str(run) for run in runs], "report": str(page)}
    else:
        for run in runs if pictures else ():
            inspect_run(run, context=with_display(context, json=json))
        result = report(runs, out, force=force)
    emit(result, lambda printer: _print(printer, result), json=json)


def page_of(runs: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Return where the report of these runs goes: into the run, or for several runs into the current folder."""
    if out is not None:
        return Path(out)
    return Layout(Path(runs[0])).report / PAGE if len(runs) == 1 else Path(COMPARISON)


def report(
    runs: Sequence[str | Path], out: str | Path | None = None, *, force: bool = False
) -> dict[str, JsonValue]:
    """Write the report of one run, or the comparison of several, as one HTML file; return where and what it says.

    A file of that name that is no report of ours is replaced only by `force`.
    """
    if not runs:
        raise UserError("no run was given; name one or more run directories.")
    folders = [Path(run) for run in runs]
    page = page_of(runs, out)
    refuse_overwrite([(page, is_page)], force=force)
    if out is None and len(folders) == 1:
        Layout(folders[0]).refuse_links(Layout(folders[0]).report)
    if len(folders) == 1:
        return {"runs": [str(folders[0])], **write_report(report_of(folders[0]), page)}
    comparison = compare(folders)
    best = comparison.best()
    size = _write(page, render_comparison(comparison))
    return {
        "runs": [str(folder) for folder in folders],
        "report": str(page),
        "bytes": size,
        "title": comparison.title,
        "verdict": f"{best.name} has the highest quality" if best else None,
        "sections": [place for place, _ in comparison.sections()],
        "missing": [line for run in comparison.runs for line in run.report.missing],
        "compared": [
            {
                "name": run.name,
                "kind": run.kind,
                "status": run.status,
                "quality": run.quality,
                "cost": run.cost,
                "unit": run.unit,
                "seconds": run.seconds,
                "seed": run.seed,
            }
            for run in comparison.runs
        ],
        "differing": [setting.name for setting in comparison.settings("differs")],
    }


def inspect_run(run: str | Path, *, context: Context | None = None) -> Quality:
    """Predict the validation split with what a run trained; keep confusion and pictures with the run."""
    from segtailor.data.cache import open_pixels
    from segtailor.data.locate import locate
    from segtailor.nets.bundle import load_bundle
    from segtailor.tasks.examining import PredictionExaminer
    from segtailor.training.device import pick_device

    folder, context = Path(run), context or Context()
    recipe = open_run(folder).recipe
    Layout(folder).refuse_links(Layout(folder).report)
    if recipe.get("kind") != "train" or not recipe.get("val_split"):
        raise UserError(
            f"{folder} is no training with a validation split, so there are no pictures to show; leave --pictures out."
        )
    model = load_bundle(Layout(folder).weights)
    model.network.to(pick_device(context.device))
    split = str(recipe["val_split"])
    pixels = open_pixels(locate(str(recipe["data"])), split, context.cache_folder)
    names, note = pixels.names, f"Split '{split}', whole images."
    if KIND_FACTS[model.task.kind].labelled:
        quality = inspect(model.predict, pixels, task=model.task, names=names, note=note)
    else:
        quality = examine(PredictionExaminer(model.predict, model.task), pixels, names=names, note=note)
    save_parts(folder, replace(kept_parts(folder), quality=quality))
    return quality


def write_report(report: Report, page: Path) -> dict[str, JsonValue]:
    """Write a report as one HTML file; return where and what it says."""
    return {
        "report": str(page),
        "bytes": _write(page, render(report)),
        "title": report.title,
        "verdict": report.verdict.sentence if report.verdict else None,
        "sections": [place for place, _ in sections(report)],
        "missing": list(report.missing),
    }


def _write(page: Path, text: str) -> int:
    if page.is_dir():
        raise UserError(f"{page} is a folder; give a file, e.g. --out {page / PAGE}.")
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise UserError(f"{page.parent} cannot be made ({problem.strerror}); choose another --out.") from None
    write_text(page, text, what="report")
    return len(text.encode(errors="backslashreplace"))


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
