"""`segtailor list`: names of what there is."""

from __future__ import annotations

from typing import Literal

from segtailor.api import catalogue
from segtailor.cli.options import Json
from segtailor.cli.output import emit


def list_(
    what: Literal[
        "architectures",
        "baselines",
        "weights",
        "spaces",
        "recipes",
        "strategies",
        "operators",
        "datasets",
        "tasks",
        "runtimes",
        "targets",
        "studies",
    ],
    *,
    json: Json = False,
) -> None:
    """Name what there is.

    Parameters
    ----------
    what:
        Which names.
    """
    rows = catalogue.rows(what)
    emit(
        [name for name, _ in rows],
        lambda printer: printer.table(None, ["name", "what it is"], rows),
        json=json,
    )
