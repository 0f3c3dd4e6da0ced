"""The report of a tailoring, composed from the runs of its stages; parts kept in its folder win over these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from segtailor.report.document import Fact, FactGroup, Report, Verdict
from segtailor.report.fields import number, text
from segtailor.report.folder import RunFolder
from segtailor.report.numbers import duration, milliseconds, percent
from segtailor.report.surroundings import commands, conditions, stage
from segtailor.runs import Layout

DEPTH = 2  # folders below the run in which the runs of its stages lie


class Told(NamedTuple):
    """A stage and what it shows."""

    run: RunFolder
    report: Report


def tailoring_report(run: RunFolder, stages: Sequence[Told]) -> Report:
    """Compose: networks and story of the search, quality of the last training, trust of the calibration."""
    seconds = run.seconds if run.seconds is not None else sum(told.run.seconds or 0.0 for told in stages)
    searched = [told.report for told in stages if told.report.search is not None]
    trained = [told.report for told in stages if told.report.training]
    search = searched[-1] if searched else Report(title="")
    last = trained[-1] if trained else Report(title="")
    training = next((told.report for told in stages if told.run.layout.root == _recommended(run)), last)
    trusted = [told.report.trust for told in stages if told.report.trust is not None]
    return Report(
        title=f"A network made to measure for {text(run.recipe, 'request', 'data') or run.name}",
        subtitle=" · ".join(
            part for part in (text(run.recipe, "request", "target"), text(run.recipe, "system")) if part
        ),
        verdict=_verdict(run, training, seconds),
        front=search.front,
        networks=training.networks or search.networks,
        search=search.search,
        training=training.training,
        layers=search.layers,
        quality=training.quality,
        trust=trusted[-1] if trusted else None,
        stages=tuple(stage(told.run) for told in stages),
        conditions=_conditions(run, stages),
        commands=commands(run),
        missing=(
            *run.missing,
            *(f"{told.run.name}: {line}" for told in stages for line in told.report.missing),
        ),
    )


def _recommended(run: RunFolder) -> Path | None:
    """Return the run that trained the network of the result."""
    model = text(run.result, "model")
    return Path(model).parent if model else None


def stage_folders(folder: Path) -> Iterator[Path]:
    """Yield the run directories below a run, in the order they were begun."""
    reserved = {Layout(folder).checkpoints.name, Layout(folder).report.name, Layout(folder).weights.name}
    found: list[Path] = []
    level = [folder]
    for _ in range(DEPTH):
        level = [
            path
            for parent in level
            for path in sorted(parent.iterdir())
            if path.is_dir() and not path.is_symlink() and path.name not in reserved
        ]
        found += [path for path in level if Layout(path).recipe.exists()]
    yield from sorted(found, key=lambda path: (Layout(path).recipe.stat().st_mtime, path.name))


def _verdict(run: RunFolder, training: Report, seconds: float) -> Verdict:
    quality, latency = number(run.result, "miou"), number(run.result, "latency_ms")
    budget, slow = number(run.result, "budget_ms"), number(run.result, "p95_ms")
    met = run.result.get("met")
    met = met if isinstance(met, bool) else None
    time = Fact(name="time", value=duration(seconds))
    if quality is None or latency is None:
        far = training.verdict.sentence if training.verdict else "No network has been trained yet."
        return Verdict(sentence=f"The tailoring is not finished. {far}", facts=(time,))
    kept = (
        ""
        if met is None or budget is None
        else f", which {'keeps' if met else 'breaks'} the budget of {milliseconds(budget)}"
    )
    target = text(run.recipe, "request", "target")
    where = f" on {target}" if target else ""
    sentence = (
        f"The network reaches {percent(quality)} mIoU and takes {milliseconds(slow or latency)}{where}{kept}."
    )
    facts = [
        Fact(name="mIoU", value=percent(quality)),
        Fact(name="median latency", value=milliseconds(latency)),
    ]
    facts += [Fact(name="95 % within", value=milliseconds(slow))] if slow is not None else []
    facts += [Fact(name="budget", value=milliseconds(budget))] if budget is not None else []
    return Verdict(sentence=sentence, met=met, facts=(*facts, time))


def _conditions(run: RunFolder, stages: Sequence[Told]) -> tuple[FactGroup, ...]:
    own = conditions(run)
    settings = [
        FactGroup(title=f"Settings of {told.run.name}", facts=conditions(told.run)[-1].facts)
        for told in stages
        if conditions(told.run)
    ]
    return (*own, *settings)
