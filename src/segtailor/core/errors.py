"""The errors a user can fix. A message says what was asked, why not, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST_NAME = 100  # characters of an unknown name that are looked at and told
MOST_NAMES = 50  # known names that an error lists


class UserError(Exception):
    """Something the user can fix: the command line prints the message without a traceback and exits with 1.

    A message is one line; `more` are further lines, such as a list. Line breaks inside a line belong to names.
    """

    def __init__(self, message: str = "", *more: str) -> None:
        super().__init__("\n".join((message, *more)))
        self.lines = (message, *more)


class InvalidArchitecture(UserError):
    """An architecture that no space can build; the message names the field and what is allowed."""


class UnknownName(UserError):
    """A name that no registry holds; the message lists near matches."""


class Unsupported(UserError):
    """A combination that cannot work, refused before any work starts."""


class MissingCost(UserError):
    """A cost table without the entry that was asked for."""


class DataProblem(UserError):
    """Data that cannot be used as it is."""


class Diverged(UserError):
    """A training whose loss or gradients were no numbers any more."""


class RunProblem(UserError):
    """A run directory that cannot be used: another recipe, another process, damaged or full."""


class Interrupted(Exception):
    """The user stopped a run; it was saved and can be resumed."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """Build the error for an unknown `name`, with near matches or, failing those, every known name."""
    names, name = sorted(known), name[:LONGEST_NAME]  # looking for near matches of a long text takes minutes
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {_either(near)}?" if near else f"known: {_listed(names)}."
    return UnknownName(f"no {kind} is called '{name}'; {hint}")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return (", ".join(names[:MOST_NAMES]) or "none") + more


def _either(names: list[str]) -> str:
    return " or ".join(f"'{name}'" for name in names)
