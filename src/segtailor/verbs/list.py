"""`segtailor list`: the names of everything of a kind."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal

from segtailor.core.registry import DATASETS, OPERATORS, SPACES, STRATEGIES, SYSTEMS, Registry
from segtailor.core.shipped import shipped
from segtailor.core.task import KIND_FACTS
from segtailor.spaces.networks import describe, shipped_record
from segtailor.spaces.published import architectures, baselines, published_record
from segtailor.verbs.options import Json
from segtailor.verbs.output import emit


def list_(
    what: Literal[
        "architectures",
        "baselines",
        "weights",
        "starts",
        "spaces",
        "recipes",
        "strategies",
        "operators",
        "datasets",
        "tasks",
        "runtimes",
        "targets",
    ],
    *,
    json: Json = False,
) -> None:
    """List the names of everything of a kind.

    Parameters
    ----------
    what:
        Which kind.
    """
    if what == "starts":
        _list_starts(json=json)
        return
    names = describe_all(what)
    emit(
        [name for name, _ in names],
        lambda printer: printer.table(None, ["name", "what it is"], names),
        json=json,
    )


def _list_starts(*, json: bool) -> None:
    """List the weights that trainings can start from: more is known of them than a name and a line."""
    from segtailor.core.codec import to_json
    from segtailor.spaces.starts import starts

    rows = starts()
    columns = ["name", "families", "learnt from", "licence", "usable here"]
    cells = [
        (
            row.name,
            ", ".join(row.families),
            row.learnt_from,
            row.licence,
            "yes" if row.usable else f"no: {row.remark}",
        )
        for row in rows
    ]
    emit([to_json(row) for row in rows], lambda printer: printer.table(None, columns, cells), json=json)


def describe_all(what: str) -> list[tuple[str, str]]:
    """Return (name, description) of everything of a kind."""
    return _KINDS[what]()


def _published(names: Sequence[str]) -> list[tuple[str, str]]:
    rows = []
    for name in names:
        record = published_record(name)
        rows.append((name, f"{record['family']}; {record['origin'].get('where', '')}"))
    return rows


def _weights() -> list[tuple[str, str]]:
    rows = []
    for name in shipped():
        facts, origin = describe(name), shipped_record(name)["provenance"]
        data = f"{origin.get('data', 'unknown data')} ({origin.get('train_split', 'train')})"
        rows.append((name, f"{facts['family']}, {facts['params'] / 1e6:.2f} M parameters; trained on {data}"))
    return rows


def _summaries(registry: Registry[Any]) -> list[tuple[str, str]]:
    return [(name, (inspect.getdoc(registry.get(name)) or "").split("\n")[0]) for name in registry.names()]


def _systems() -> list[tuple[str, str]]:
    return [(name, SYSTEMS.get(name).summary) for name in SYSTEMS.names()]


def _runtimes() -> list[tuple[str, str]]:
    from segtailor.targets import describe_runtimes

    return describe_runtimes()


def _targets() -> list[tuple[str, str]]:
    from segtailor.targets import describe_targets

    return describe_targets()


_KINDS: dict[str, Callable[[], list[tuple[str, str]]]] = {
    "architectures": lambda: _published(architectures()),
    "baselines": lambda: _published(baselines()),
    "weights": _weights,
    "spaces": lambda: _summaries(SPACES),
    "operators": lambda: _summaries(OPERATORS),
    "recipes": _systems,
    "strategies": lambda: _summaries(STRATEGIES),
    "datasets": lambda: _summaries(DATASETS),
    "runtimes": _runtimes,
    "targets": _targets,
    "tasks": lambda: [(name, facts.summary) for name, facts in KIND_FACTS.items()],
}
