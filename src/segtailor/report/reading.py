"""From a run directory to a report: any kind of run, finished or not.

The report of a tailoring is composed here from the runs of its stages; the other kinds have a module each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from segtailor.core.errors import UserError
from segtailor.report.document import Fact, FactGroup, Report, Verdict
from segtailor.report.fields import number, text
from segtailor.report.folder import RunFolder, commands, conditions, open_run, present, stage_summary
from segtailor.report.numbers import duration, milliseconds, percent
from segtailor.report.of_calibration import calibration_report
from segtailor.report.of_search import search_report
from segtailor.report.of_training import training_report
from segtailor.report.parts import with_parts
from segtailor.runs import Layout

TAILOR = "tailor"  # the kind of run that has stages
STAGE_DEPTH = 2  # folders below a run in which the runs of its stages lie
MAX_CURVES = 8  # of a run of unknown kind
KINDS: dict[str, Callable[[RunFolder], Report]] = {
    "train": training_report,
    "search": search_report,
    "calibrate": calibration_report,
}


def report_of(folder: Path) -> Report:
    """Return the report of a run directory; what cannot be read is told in `missing`, another folder raises."""
    return _report(open_run(folder))


def plain_report(run: RunFolder) -> Report:
    """Return what every run shows, whatever its kind: curves, settings, commands."""
    names = list(dict.fromkeys(name for row in run.steps for name in row.step.metrics))
    state = "is finished" if run.finished else f"is not finished: {run.progress}"
    return Report(
        title=f"Run {run.name}",
        subtitle=run.kind,
        verdict=Verdict(sentence=f"The run {run.name} ({run.kind}) {state}."),
        training=present(run.curve(name, [(name, name)], y=name) for name in names[:MAX_CURVES]),
        conditions=conditions(run),
        commands=commands(run),
        missing=run.missing,
    )


class StageReport(NamedTuple):
    """A stage of a tailoring and its report."""

    run: RunFolder
    report: Report


def tailoring_report(run: RunFolder, stages: Sequence[StageReport]) -> Report:
    """Take networks and story from the search, quality from the last training, trust from the calibration."""
    seconds = run.seconds if run.seconds is not None else sum(stage.run.seconds or 0.0 for stage in stages)
    searched = [stage.report for stage in stages if stage.report.search is not None]
    trained = [stage.report for stage in stages if stage.report.training]
    search = searched[-1] if searched else Report(title="")
    last = trained[-1] if trained else Report(title="")
    training = next((stage.report for stage in stages if stage.run.layout.root == _recommended(run)), last)
    trusts = [stage.report.trust for stage in stages if stage.report.trust is not None]
    return Report(
        title=f"A network made to measure for {text(run.recipe, 'request', 'data') or run.name}",
        subtitle=" · ".join(
            part for part in (text(run.recipe, "request", "target"), text(run.recipe, "system")) if part
        ),
        verdict=_tailoring_verdict(run, training, seconds),
        front=search.front,
        budgets=search.budgets,
        networks=training.networks or search.networks,
        search=search.search,
        training=training.training,
        layers=search.layers,
        quality=training.quality,
        trust=trusts[-1] if trusts else None,
        stages=tuple(stage_summary(stage.run) for stage in stages),
        conditions=(*conditions(run), *_stage_settings(stages)),
        commands=commands(run),
        missing=(
            *run.missing,
            *(f"{stage.run.name}: {line}" for stage in stages for line in stage.report.missing),
        ),
    )


def stage_folders(folder: Path) -> Iterator[Path]:
    """Yield the run directories below a run, in the order they were begun."""
    reserved = {Layout(folder).checkpoints.name, Layout(folder).report.name, Layout(folder).weights.name}
    runs: list[Path] = []
    level = [folder]
    for _ in range(STAGE_DEPTH):
        level = [
            path
            for parent in level
            for path in sorted(parent.iterdir())
            if path.is_dir() and not path.is_symlink() and path.name not in reserved
        ]
        runs += [path for path in level if Layout(path).recipe.exists()]
    yield from sorted(runs, key=lambda path: (Layout(path).recipe.stat().st_mtime, path.name))


def _report(run: RunFolder) -> Report:
    report = _with_stages(run) if run.kind == TAILOR else KINDS.get(run.kind, plain_report)(run)
    try:
        return with_parts(report, run.layout.root)
    except UserError as problem:
        return replace(report, missing=(*report.missing, str(problem)))


def _with_stages(run: RunFolder) -> Report:
    stages, missing = [], []
    for folder in stage_folders(run.layout.root):
        try:
            stage = open_run(folder)
            stages.append(StageReport(stage, _report(stage) if stage.kind != TAILOR else plain_report(stage)))
        except UserError as problem:
            missing.append(str(problem))
    report = tailoring_report(run, stages)
    return replace(report, missing=(*report.missing, *missing))


def _recommended(run: RunFolder) -> Path | None:
    """Return the run that trained the network of the result."""
    model = text(run.result, "model")
    return Path(model).parent if model else None


def _tailoring_verdict(run: RunFolder, training: Report, seconds: float) -> Verdict:
    quality, latency = number(run.result, "miou"), number(run.result, "latency_ms")
    budget, p95 = number(run.result, "budget_ms"), number(run.result, "p95_ms")
    met = run.result.get("met")
    met = met if isinstance(met, bool) else None
    time = Fact(name="time", value=duration(seconds))
    if quality is None or latency is None:
        so_far = training.verdict.sentence if training.verdict else "No network has been trained yet."
        return Verdict(sentence=f"The tailoring is not finished. {so_far}", facts=(time,))
    kept = (
        ""
        if met is None or budget is None
        else f", which {'keeps' if met else 'breaks'} the budget of {milliseconds(budget)}"
    )
    target = text(run.recipe, "request", "target")
    where = f" on {target}" if target else ""
    sentence = (
        f"The network reaches {percent(quality)} mIoU and takes {milliseconds(p95 or latency)}{where}{kept}."
    )
    facts = [
        Fact(name="mIoU", value=percent(quality)),
        Fact(name="median latency", value=milliseconds(latency)),
    ]
    facts += [Fact(name="95 % within", value=milliseconds(p95))] if p95 is not None else []
    facts += [Fact(name="budget", value=milliseconds(budget))] if budget is not None else []
    return Verdict(sentence=sentence, met=met, facts=(*facts, time))


def _stage_settings(stages: Sequence[StageReport]) -> Iterator[FactGroup]:
    for stage in stages:
        groups = conditions(stage.run)
        if groups:
            yield FactGroup(title=f"Settings of {stage.run.name}", facts=groups[-1].facts)
