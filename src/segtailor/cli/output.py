"""How verbs print: one JSON document for machines, or text for people. Everything else goes to stderr."""

from __future__ import annotations

import json as json_module
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from segtailor.core.errors import RunProblem


def emit(data: Any, text: Callable[[Console], None], *, json: bool) -> None:
    """Print `data` as JSON, or let `text` write for people. Of processes under `torchrun` only the first speaks."""
    if os.environ.get("RANK", "0") != "0":
        return
    if json:
        print(json_module.dumps(data, indent=1, allow_nan=False))
    else:
        text(Console(soft_wrap=True))


@contextmanager
def reading_kept(run: Path) -> Iterator[None]:
    """Show the result of a run: where it was kept from before and does not hold what it should, it is damaged."""
    from segtailor.runs import Layout

    file = Layout(run).result
    kept = os.path.exists(file)  # noqa: PTH110 - bears any text; if so, nothing is worked on, only shown
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as problem:
        if not kept:
            raise
        raise RunProblem(
            f"result {file} is damaged or of another kind of run ({type(problem).__name__}: {problem}). Restore it, or "
            "remove it and go on with `segtailor resume`."
        ) from None


def table(title: str | None, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """Build a table; columns whose name starts with '>' are right-aligned."""
    built = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        right = column.startswith(">")
        built.add_column(column.lstrip(">"), justify="right" if right else "left", overflow="fold")
    for row in rows:
        built.add_row(*[str(cell) for cell in row])
    return built


def note(message: str) -> None:
    """Tell the user something on stderr."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(message, markup=False)
