"""From a run directory to a report: any kind of run, finished or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import segtailor.spaces  # noqa: F401 - registers the families that runs may name
from segtailor.core.errors import UserError
from segtailor.report.document import Report, Verdict
from segtailor.report.folder import RunFolder, open_run, present
from segtailor.report.of_calibration import calibration_report
from segtailor.report.of_search import search_report
from segtailor.report.of_tailoring import Told, stage_folders, tailoring_report
from segtailor.report.of_training import training_report
from segtailor.report.parts import with_parts
from segtailor.report.surroundings import commands, conditions

TAILOR = "tailor"  # the kind of run that has stages
OFTEN = 8  # curves of a run of unknown kind


def report_of(folder: Path) -> Report:
    """Return the report of a run directory; what cannot be read is said in `missing`, a foreign folder raises."""
    run = open_run(folder)
    return _told(run)


def plain_report(run: RunFolder) -> Report:
    """Return what every run shows, whatever its kind: curves, settings, commands."""
    names = list(dict.fromkeys(name for row in run.steps for name in row.step.metrics))
    state = "is finished" if run.finished else f"is not finished: {run.progress}"
    return Report(
        title=f"Run {run.name}",
        subtitle=run.kind,
        verdict=Verdict(sentence=f"The run {run.name} ({run.kind}) {state}."),
        training=present(run.curve(name, [(name, name)], y=name) for name in names[:OFTEN]),
        conditions=conditions(run),
        commands=commands(run),
        missing=run.missing,
    )


def _told(run: RunFolder) -> Report:
    report = _tailored(run) if run.kind == TAILOR else KINDS.get(run.kind, plain_report)(run)
    try:
        return with_parts(report, run.layout.root)
    except UserError as problem:
        return replace(report, missing=(*report.missing, str(problem)))


def _tailored(run: RunFolder) -> Report:
    stages, missing = [], []
    for folder in stage_folders(run.layout.root):
        try:
            stage = open_run(folder)
            stages.append(Told(stage, _told(stage) if stage.kind != TAILOR else plain_report(stage)))
        except UserError as problem:
            missing.append(str(problem))
    report = tailoring_report(run, stages)
    return replace(report, missing=(*report.missing, *missing))


KINDS: dict[str, Callable[[RunFolder], Report]] = {
    "train": training_report,
    "search": search_report,
    "calibrate": calibration_report,
}
