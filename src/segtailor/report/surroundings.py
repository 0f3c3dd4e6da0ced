"""What every report of a run ends with: machine, versions, settings, and the commands to do it again."""

from __future__ import annotations

from segtailor.core.text import command, path_argument
from segtailor.report.document import Command, Fact, FactGroup, StageSummary
from segtailor.report.fields import flat, table
from segtailor.report.folder import RunFolder

HIDDEN = ("kind", "architecture")  # of a recipe: the network is drawn
ELSEWHERE = "again"  # the folder of a repetition


def conditions(run: RunFolder) -> tuple[FactGroup, ...]:
    """Return machine, versions and all settings of a run."""
    machine = [
        Fact(name=name, value=value) for name, value in flat(_without(run.environment, "packages")) if name
    ]
    versions = [
        Fact(name=name, value=value) for name, value in flat(table(run.environment, "packages")) if name
    ]
    settings = [
        Fact(name=name, value=value)
        for name, value in flat(_without(run.recipe, *HIDDEN))
        if name and not name.startswith(("strategy.settings.entrants", "strategy.settings.match"))
    ]
    seeds = [fact for fact in settings if fact.name.rpartition(".")[2] == "seed"]
    groups = (
        ("Machine", machine),
        ("Versions", versions),
        ("Seeds", seeds),
        (f"Settings of {run.kind}", settings),
    )
    return tuple(FactGroup(title=title, facts=tuple(facts)) for title, facts in groups if facts)


def commands(run: RunFolder, *more: Command) -> tuple[Command, ...]:
    """Return the commands that repeat a run exactly, go on with it, and make this page."""
    folder, recipe = path_argument(run.layout.root), path_argument(run.layout.recipe)
    again = Command(
        text=f"mkdir {ELSEWHERE} && {command('cp', recipe, f'{ELSEWHERE}/')}\nsegtailor resume {ELSEWHERE}",
        note="The same work once more, with every setting and seed, in another folder:",
    )
    on = Command(text=command("segtailor", "resume", folder), note="Go on where it stopped:")
    page = Command(text=command("segtailor", "report", folder), note="This page:")
    return (*(() if run.finished else (on,)), again, *more, page)


def stage(run: RunFolder) -> StageSummary:
    """Return a run as one stage of a larger one."""
    failed = run.ended.startswith("error")
    status = "done" if run.finished else "failed" if failed else "unfinished"
    note = "" if run.finished else run.progress
    return StageSummary(name=f"{run.name} ({run.kind})", status=status, seconds=run.seconds, note=note)


def _without(data: dict[str, object], *names: str) -> dict[str, object]:
    return {key: value for key, value in data.items() if key not in names}
