"""One registry class for everything that has a name: operators, spaces, datasets, runtimes, strategies, recipes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Generic, TypeVar

from segtailor.core.errors import unknown
from segtailor.core.extensions import EXTENSIONS, Extensions

T = TypeVar("T")
C = TypeVar("C")


class Registry(Generic[T]):
    """Names to things, in order of registration. A duplicate name raises: silent replacement hides bugs.

    What installed packages add is there when all names are asked for, or one that is not known. Where one took a name
    of ours before our module was imported, ours counts.
    """

    def __init__(self, kind: str, *, extensions: Extensions = EXTENSIONS) -> None:
        self.kind = kind
        self._things: dict[str, T] = {}
        self._names: dict[int, str] = {}
        self._extensions = extensions

    def register(self, name: str) -> Callable[[C], C]:
        """Decorate a class or function so that it is found under `name`."""

        def keep(thing: C) -> C:
            self.add(name, thing)  # type: ignore[arg-type]
            return thing

        return keep

    def add(self, name: str, thing: T) -> None:
        """Register `thing` under `name`."""
        if name in self._things:
            twice = f"{self.kind} '{name}' is registered twice: {self._things[name]!r} and {thing!r}"
            if _ours(self._things[name]) or not _ours(thing):
                raise ValueError(twice)
            warnings.warn(f"{twice}; the second counts.", RuntimeWarning, stacklevel=2)
        self._things[name] = thing
        self._names[id(thing)] = name

    def get(self, name: str) -> T:
        """Return what is registered under `name`, or raise `UnknownName` with near matches."""
        if name not in self:
            raise unknown(self.kind, name, self._things)
        return self._things[name]

    def name_of(self, thing: object) -> str:
        """Return the name a thing was registered under."""
        return self._names[id(thing)]

    def names(self) -> tuple[str, ...]:
        """Return all names in order of registration."""
        self._extensions.load()
        return tuple(self._things)

    def __contains__(self, name: object) -> bool:
        if isinstance(name, str) and name not in self._things:
            self._extensions.load()
        return isinstance(name, str) and name in self._things


def _ours(thing: object) -> bool:
    """Tell whether a class, function or object is defined in this package."""
    return str(getattr(thing, "__module__", "")).partition(".")[0] == __name__.partition(".")[0]
