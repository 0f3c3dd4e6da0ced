"""The errors a user can fix. A message says what was asked, why not, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MAX_NAME_CHARACTERS = 100  # of an unknown name that are compared and shown
MAX_NAMES_LISTED = 50  # known names in an error


class UserError(Exception):
    """Something the user can fix: the command line prints the message without a traceback and exits with 1.

    A message is one line; `more` are further lines, such as a list. A line break inside a line is part of a name.
    """

    def __init__(self, message: str = "", *more: str) -> None:
        super().__init__("\n".join((message, *more)))
        self.lines = (message, *more)


class InvalidArchitecture(UserError):
    """An architecture that cannot be built; the message names the field and what is allowed."""


class UnknownName(UserError):
    """A name that no registry holds; the message lists near matches."""


class Unsupported(UserError):
    """A combination that cannot work, refused before any work starts."""


class MissingCost(UserError):
    """A cost table without the entry that was asked for."""


class DataProblem(UserError):
    """Data that cannot be used without changes."""


class Diverged(UserError):
    """A training whose loss or gradients were not finite for too many steps."""


class RunProblem(UserError):
    """A run directory that cannot be used: another recipe, another process, damaged or full."""


class Interrupted(Exception):
    """The user stopped a run; it was saved and can be resumed."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """Build the error for an unknown `name`, with near matches or, if there are none, the known names."""
    names, name = (
        sorted(known),
        name[:MAX_NAME_CHARACTERS],
    )  # comparing a long text takes minutes
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {_either(near)}?" if near else f"known: {_listed(names)}."
    return UnknownName(f"no {kind} is called '{name}'; {hint}")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMES_LISTED} more" if len(names) > MAX_NAMES_LISTED else ""
    return (", ".join(names[:MAX_NAMES_LISTED]) or "none") + more


def _either(names: list[str]) -> str:
    return " or ".join(f"'{name}'" for name in names)
