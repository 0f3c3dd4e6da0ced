"""Installed packages that add things by name: found by their entry points, imported when a name is first looked for."""

from __future__ import annotations

import inspect
import threading
import warnings
from importlib.metadata import EntryPoint, entry_points

GROUP = "segtailor.extensions"


class Extensions:
    """Imports every package that has an entry point of a group, once; each registers what it holds.

    An entry point names a module, whose import registers, or a function without arguments that does.
    """

    def __init__(self, group: str = GROUP) -> None:
        self._group = group
        self._begun = False
        self._lock = threading.RLock()  # reentrant: an extension may look names up while it is imported

    def load(self) -> None:
        """Import them, if that has not been done; one that fails is told in a warning and left out."""
        with self._lock:
            if self._begun:
                return
            self._begun = True
            for point in entry_points(group=self._group):
                _load(point)


EXTENSIONS = Extensions()


def _load(point: EntryPoint) -> None:
    try:
        found = point.load()
        if inspect.isfunction(found):
            found()
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - a stranger's code may fail in any way
        package = point.dist.name if point.dist is not None else point.value
        warnings.warn(
            f"extension '{point.name}' of package '{package}' is left out: {type(problem).__name__}: {problem}. "
            "Mend or uninstall it.",
            RuntimeWarning,
            stacklevel=2,
        )
