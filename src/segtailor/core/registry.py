"""One registry class for everything that has a name: operators, spaces, datasets, runtimes, strategies, recipes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from segtailor.core.errors import unknown

T = TypeVar("T")
C = TypeVar("C")


class Registry(Generic[T]):
    """Names to things, in order of registration. A duplicate name raises: silent replacement hides bugs."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._things: dict[str, T] = {}
        self._names: dict[int, str] = {}

    def register(self, name: str) -> Callable[[C], C]:
        """Decorate a class or function so that it is found under `name`."""

        def keep(thing: C) -> C:
            self.add(name, thing)  # type: ignore[arg-type]
            return thing

        return keep

    def add(self, name: str, thing: T) -> None:
        """Register `thing` under `name`."""
        if name in self._things:
            raise ValueError(
                f"{self.kind} '{name}' is registered twice: {self._things[name]!r} and {thing!r}"
            )
        self._things[name] = thing
        self._names[id(thing)] = name

    def get(self, name: str) -> T:
        """Return what is registered under `name`, or raise `UnknownName` with near matches."""
        try:
            return self._things[name]
        except KeyError:
            raise unknown(self.kind, name, self._things) from None

    def name_of(self, thing: object) -> str:
        """Return the name a thing was registered under."""
        return self._names[id(thing)]

    def names(self) -> tuple[str, ...]:
        """Return all names in order of registration."""
        return tuple(self._things)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._things
