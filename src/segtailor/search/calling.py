"""The contract gives one name to two things: `segtailor.search` is this package and a function. So it can be called."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any


class CallablePackage(ModuleType):
    """A package that is also the function of the public interface that has its name."""

    def __call__(self, *args: Any, **choices: Any) -> Any:
        """Search, as `segtailor.verbs.search.search` does (found by name: packages know nothing above them)."""
        return import_module("segtailor.verbs.search").search(*args, **choices)
