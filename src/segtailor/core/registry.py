"""Names to things: operators, spaces, datasets, runtimes, strategies, recipes.

What this package holds is listed in `segtailor/tables.py`, as places to import from on first use. Other packages add
theirs with `register` or `add`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from segtailor.core.errors import unknown
from segtailor.core.extensions import EXTENSIONS, Extensions

if TYPE_CHECKING:
    from segtailor.core.cost import Cost, Objective
    from segtailor.core.plan import Operator
    from segtailor.core.space import SearchSpace
    from segtailor.core.strategy import Executor, Strategy

T = TypeVar("T")
C = TypeVar("C")


class Registry(Generic[T]):
    """Names to things, in order of registration. A name that is taken raises: silent replacement hides bugs.

    Installed packages are asked for what they add when all names are listed, or when a name is not known.
    """

    def __init__(self, kind: str, *, extensions: Extensions = EXTENSIONS) -> None:
        self.kind = kind
        self._places: dict[str, str] = {}  # `module:attribute` by name
        self._things: dict[str, T] = {}  # what was imported or added so far
        self._names: dict[int, str] = {}  # by id of the thing
        self._extensions = extensions

    def fill(self, places: Mapping[str, str]) -> None:
        """List things by the place (`module:attribute`) they are imported from when they are first asked for."""
        for name, place in places.items():
            self._check_free(name, place)
            self._places[name] = place

    def register(self, name: str) -> Callable[[C], C]:
        """Decorate a class or function so that it is found under `name`."""

        def keep(thing: C) -> C:
            self.add(name, thing)  # type: ignore[arg-type]
            return thing

        return keep

    def add(self, name: str, thing: T) -> None:
        """Register `thing` under `name`."""
        self._check_free(name, thing)
        self._places[name] = f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', '')}"
        self._keep(name, thing)

    def get(self, name: str) -> T:
        """Return what is registered under `name`, or raise `UnknownName` with near matches."""
        if name not in self:
            raise unknown(self.kind, name, self._places)
        if name not in self._things:
            module, _, attribute = self._places[name].partition(":")
            self._keep(name, getattr(import_module(module), attribute))
        return self._things[name]

    def name_of(self, thing: Any) -> str:
        """Return the name a thing is registered under; a thing without a name raises `KeyError`."""
        if id(thing) not in self._names:
            place = f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', '')}"
            for name, known in self._places.items():
                if known == place and self.get(name) is thing:
                    break
            else:
                raise KeyError(f"no {self.kind} is registered as {thing!r}")
        return self._names[id(thing)]

    def names(self) -> tuple[str, ...]:
        """Return all names in order of registration."""
        self._extensions.load()
        return tuple(self._places)

    def __contains__(self, name: object) -> bool:
        if isinstance(name, str) and name not in self._places:
            self._extensions.load()
        return isinstance(name, str) and name in self._places

    def _keep(self, name: str, thing: T) -> None:
        self._things[name] = thing
        self._names[id(thing)] = name

    def _check_free(self, name: str, thing: object) -> None:
        if name in self._places:
            raise ValueError(f"{self.kind} '{name}' is registered twice: {self._places[name]} and {thing!r}")


OPERATORS: Registry[type[Operator]] = Registry("operator")
SPACES: Registry[type[SearchSpace]] = Registry("space")
FIXED: Registry[type[SearchSpace]] = Registry("family")  # hand-made networks: built and priced, not searched
STRATEGIES: Registry[type[Strategy]] = Registry("strategy")
EVALUATORS: Registry[type[Any]] = Registry("evaluator")
EXECUTORS: Registry[type[Executor]] = Registry("executor")
COSTS: Registry[type[Cost]] = Registry("cost")
OBJECTIVES: Registry[type[Objective]] = Registry("objective")
DATASETS: Registry[Callable[..., Any]] = Registry("dataset")
TASK_KINDS: Registry[Any] = Registry("task")
RUNTIMES: Registry[type[Any]] = Registry("runtime")
RECIPES: Registry[type[Any]] = Registry("recipe")
SYSTEMS: Registry[Any] = Registry("recipe")
TRAININGS: Registry[Any] = Registry("training")
