"""What a search did over time, from its journal and result: rewards, expansion path, probabilities, depths."""

from __future__ import annotations

from typing import Any

from segtailor.core.codec import from_json
from segtailor.core.errors import UserError
from segtailor.core.space import SPACES
from segtailor.report.document import Chart, DecisionStory, ExpansionStep, SearchStory, Series
from segtailor.report.fields import at, number, rows, table, text, whole
from segtailor.report.folder import RunFolder, present
from segtailor.report.numbers import duration

SEARCHES = {
    "random": "Networks drawn at random were judged one by one.",
    "evolution": "The best networks were changed and crossed, generation by generation.",
    "expansion": "A small network was grown step by step, each time where that gained most quality per cost.",
    "study": "A given list of networks was judged side by side.",
    "gradient": "All candidates were trained in one supernet, and gradients moved the probability of each choice.",
}


def search_story(run: RunFolder, *, trials: list[dict[str, Any]], unit: str) -> SearchStory:
    """Return the story of any search; parts that do not apply are empty."""
    kind = text(run.recipe, "strategy", "kind")
    by_gradient = bool(rows(run.result, "trajectory")) or kind == "gradient"
    charts = _gradient_charts(run, unit) if by_gradient else _trial_charts(trials, unit)
    told = SEARCHES.get(kind, f"The strategy '{kind}' was used.")
    amount = f"{len(trials)} networks were judged in full" if trials else "No network was judged in full"
    return SearchStory(
        summary=f"{told} {amount} in {duration(run.seconds)}.",
        charts=charts,
        decisions=_decisions(run),
        path=_path(run),
        unit=unit,
        warnings=_warnings(run),
    )


def _warnings(run: RunFolder) -> tuple[str, ...]:
    found = at(run.result, "warnings")
    return tuple(line for line in found if isinstance(line, str)) if isinstance(found, list) else ()


def _trial_charts(trials: list[dict[str, Any]], unit: str) -> tuple[Chart, ...]:
    if not trials:
        return ()
    x = tuple(float(row["id"]) for row in trials)
    quality = tuple(100 * float(row["result"]["quality"]) for row in trials)
    best = tuple(max(quality[: index + 1]) for index in range(len(quality)))
    cost = tuple(float(row["result"]["cost"]) for row in trials)
    return (
        Chart(
            title="Reward by trial",
            x_name="trial",
            y_name="mIoU in %",
            series=(Series(name="best so far", x=x, y=best), Series(name="each trial", x=x, y=quality)),
        ),
        Chart(
            title="Cost by trial",
            x_name="trial",
            y_name=unit,
            series=(Series(name="each trial", x=x, y=cost),),
            dots=True,
        ),
    )


def _gradient_charts(run: RunFolder, unit: str) -> tuple[Chart, ...]:
    known = list(dict.fromkeys(name for row in run.steps for name in row.step.metrics))

    def starting(prefix: str) -> list[tuple[str, str]]:
        return [
            (name, name.removeprefix(prefix).replace("_", " ")) for name in known if name.startswith(prefix)
        ]

    return present(
        [
            run.curve("Expected depth", starting("expected_"), y="blocks"),
            run.curve(
                "Indecision: entropy of the choices",
                starting("entropy_"),
                y="1 undecided, 0 decided",
            ),
            run.curve("Expected cost", [("cost", "expected cost")], y=unit),
            run.curve("Loss of the supernet", [("loss", "loss")], y="loss"),
            run.curve("Quality of the likeliest network", [("quality", "mIoU")], y="mIoU in %", factor=100),
            run.curve("Candidates left", [("candidates", "candidates")], y="operators"),
        ]
    )


def _decisions(run: RunFolder) -> tuple[DecisionStory, ...]:
    """Return how the probabilities of the first role moved."""
    marks = rows(run.result, "trajectory")
    roles = table(marks[0], "roles") if marks else {}
    if not roles:
        return ()
    role, found = next(iter(roles)), []
    places = tuple(number(mark, "step") or 0.0 for mark in marks)
    options = _options(run)
    for name in table(roles, role, "probabilities"):
        shares = tuple(_row(mark, role, name) for mark in marks)
        width = len(shares[0])
        if width > 1 and all(len(row) == width for row in shares):
            known = options.get(name, ())
            names = known if len(known) == width else tuple(f"option {index}" for index in range(width))
            found.append(DecisionStory(name=name, options=names, at=places, shares=shares))
    return tuple(found)


def _row(mark: dict[str, Any], role: str, name: str) -> tuple[float, ...]:
    row = at(mark, "roles", role, "probabilities", name)
    return (
        tuple(float(value) for value in row if isinstance(value, int | float))
        if isinstance(row, list)
        else ()
    )


def _options(run: RunFolder) -> dict[str, tuple[str, ...]]:
    """Return the names of the options of every decision of the space."""
    kind = text(run.recipe, "space", "kind")
    try:
        space = from_json(SPACES.get(kind), table(run.recipe, "space", "settings"), what=f"space '{kind}'")
        return {row.name: tuple(str(option) for option in row.options) for row in space.decisions}
    except UserError:
        return {}


def _path(run: RunFolder) -> tuple[ExpansionStep, ...]:
    found = []
    for member in rows(run.result, "family"):
        quality, cost = number(member, "quality"), number(member, "cost")
        if quality is None or cost is None:
            continue
        times = whole(member, "k")
        direction = text(member, "direction").replace("_", " ") or "start"
        found.append(
            ExpansionStep(
                step=whole(member, "step") or 0,
                direction=f"{direction} × {times}" if times and times > 1 else direction,
                quality=quality,
                cost=cost,
            )
        )
    return tuple(found)
