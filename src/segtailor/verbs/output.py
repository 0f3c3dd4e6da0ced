"""How verbs print: one JSON document for machines, or text for people. Everything else goes to stderr.

Names in text are printed literally: nothing in them is read as markup, and control characters are escaped.
"""

from __future__ import annotations

import json as json_module
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.table import Table
from rich.text import Text

from segtailor.core.errors import RunProblem
from segtailor.core.text import visible

if TYPE_CHECKING:
    from segtailor.runs import Context


class Printer:
    """Prints text for people. A line stays one line, whatever names it holds."""

    def __init__(self) -> None:
        self._console = Console(soft_wrap=True, markup=False, emoji=False, highlight=False)

    def say(self, *lines: str) -> None:
        """Print lines; a line break inside one of them belongs to a name and is escaped."""
        for line in lines:
            self._console.print(Text(visible(line)))

    def label(self, label: str, style: str, line: str) -> None:
        """Print a line that begins with a coloured word."""
        self._console.print(Text.assemble((visible(label), style), " ", visible(line)))

    def table(self, title: str | None, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print a table; columns whose name starts with '>' are right-aligned."""
        heading = None if title is None else Text(visible(title))
        table = Table(title=heading, title_justify="left", box=None, pad_edge=False)
        for column in columns:
            right = column.startswith(">")
            name = Text(visible(column.lstrip(">")))
            table.add_column(name, justify="right" if right else "left", overflow="fold")
        for row in rows:
            table.add_row(*[Text(visible(str(cell))) for cell in row])
        self._console.print(table)

    def document(self, data: Any) -> None:
        """Print JSON for reading: letters of all languages as they are, invisible characters as JSON escapes."""
        text = json_module.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
        shown = (
            character
            if visible(character, lines=True) == character
            else json_module.dumps(character).strip('"')
            for character in text
        )
        self._console.print(JSONHighlighter()(Text("".join(shown))))


def emit(data: Any, text: Callable[[Printer], None], *, json: bool) -> None:
    """Print `data` as JSON, or let `text` write for people. Under `torchrun` only the first process prints."""
    if os.environ.get("RANK", "0") != "0":
        return
    if json:
        print(json_module.dumps(data, indent=1, allow_nan=False))
    else:
        text(Printer())


@contextmanager
def reading_result(run: Path) -> Iterator[None]:
    """Around showing the result of a run: if it was finished before and cannot be shown, its file is damaged."""
    from segtailor.runs import Layout

    file = Layout(run).result
    finished = os.path.exists(file)  # noqa: PTH110 - accepts any text; a finished run is only shown
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as problem:
        if not finished:
            raise
        raise RunProblem(
            f"result {file} is damaged or of another kind of run ({type(problem).__name__}: {problem}). Restore it, or "
            "remove it and continue with `segtailor resume`."
        ) from None


def with_display(context: Context, *, json: bool) -> Context:
    """Return the context of a verb: progress goes to stderr, and the environment may name the cache folder."""
    from segtailor.runs import display_for

    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = context.cache or Path(os.environ.get("SEGTAILOR_CACHE") or user_cache / "segtailor")
    return replace(context, cache=cache, display=display_for(sys.stderr, json=json))


def note(*lines: str) -> None:
    """Tell the user something on stderr."""
    print(*map(visible, lines), sep="\n", file=sys.stderr)


def emit_planned(out: Path, files: Sequence[Path], *, json: bool) -> None:
    """Say which files a command would write into a folder."""
    facts: dict[str, Any] = {"out": str(out), "files": [str(file) for file in files]}
    emit(facts, lambda printer: printer.say(*(f"would write {file}" for file in facts["files"])), json=json)
