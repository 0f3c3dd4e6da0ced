"""What there is, by kind, with one line each: the content of `segtailor list`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from segtailor import spaces
from segtailor.core.plan import OPERATORS
from segtailor.core.registry import Registry
from segtailor.core.shipped import shipped
from segtailor.core.space import SPACES
from segtailor.core.task import KIND_FACTS


def rows(what: str) -> list[tuple[str, str]]:
    """Return (name, description) of everything of a kind."""
    return _KINDS[what]()


def _published(names: Sequence[str]) -> list[tuple[str, str]]:
    found = []
    for name in names:
        record = spaces.published_record(name)
        found.append((name, f"{record['family']}; {record['origin'].get('where', '')}"))
    return found


def _weights() -> list[tuple[str, str]]:
    from segtailor.api.networks import describe, shipped_record

    found = []
    for name in shipped():
        facts, origin = describe(name), shipped_record(name)["provenance"]
        data = f"{origin.get('data', 'unknown data')} ({origin.get('train_split', 'train')})"
        found.append(
            (name, f"{facts['family']}, {facts['params'] / 1e6:.2f} M parameters; trained on {data}")
        )
    return found


def _summaries(registry: Registry[Any]) -> list[tuple[str, str]]:
    return [(name, (inspect.getdoc(registry.get(name)) or "").split("\n")[0]) for name in registry.names()]


def _datasets() -> list[tuple[str, str]]:
    from segtailor.data.locate import DATASETS

    return _summaries(DATASETS)


def _strategies() -> list[tuple[str, str]]:
    import segtailor.search
    import segtailor.search.gradient_settings  # noqa: F401 - registers them
    from segtailor.core.strategy import STRATEGIES

    return _summaries(STRATEGIES)


def _recipes() -> list[tuple[str, str]]:
    import segtailor.recipes.auxcells_studies
    import segtailor.recipes.dilated
    import segtailor.recipes.gradient_systems
    import segtailor.recipes.lpsnet  # noqa: F401 - registers its systems
    from segtailor.recipes.systems import SYSTEMS

    return _summaries(SYSTEMS)


def _runtimes() -> list[tuple[str, str]]:
    from segtailor.targets import describe_runtimes

    return describe_runtimes()


def _targets() -> list[tuple[str, str]]:
    from segtailor.targets import describe_targets

    return describe_targets()


def _studies() -> list[tuple[str, str]]:
    from segtailor.costs.studies import STUDIES

    return [(name, f"{STUDIES.get(name).title}; {STUDIES.get(name).source}") for name in STUDIES.names()]


_KINDS: dict[str, Callable[[], list[tuple[str, str]]]] = {
    "architectures": lambda: _published(spaces.architectures()),
    "baselines": lambda: _published(spaces.baselines()),
    "weights": _weights,
    "spaces": lambda: _summaries(SPACES),
    "operators": lambda: _summaries(OPERATORS),
    "recipes": _recipes,
    "strategies": _strategies,
    "datasets": _datasets,
    "runtimes": _runtimes,
    "studies": _studies,
    "targets": _targets,
    "tasks": lambda: [(name, facts.summary) for name, facts in KIND_FACTS.items()],
}
