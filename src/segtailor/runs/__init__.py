"""Run any job in a directory: journal, checkpoints, resume, lock, progress."""

from segtailor.runs.context import Context
from segtailor.runs.display import Display, Lines, Quiet, Terminal, display_for
from segtailor.runs.journal import Journal, Logged, entries, read_steps
from segtailor.runs.layout import Layout, read_recipe, read_result
from segtailor.runs.run import check_place, execute
from segtailor.runs.session import Policy

__all__ = [
    "Context",
    "Display",
    "Journal",
    "Layout",
    "Lines",
    "Logged",
    "Policy",
    "Quiet",
    "Terminal",
    "check_place",
    "display_for",
    "entries",
    "execute",
    "read_recipe",
    "read_result",
    "read_steps",
]
