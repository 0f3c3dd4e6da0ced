"""A trained supernet on disk, and the search space that it still covers.

Its folder holds the weights as safetensors and a description of what they were trained for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError

from segtailor.core.atomic import new_folder, write_json
from segtailor.core.codec import fingerprint, from_json, read_json, to_json
from segtailor.core.errors import RunProblem, Unsupported
from segtailor.core.plan import OpCall, Plan, Shape
from segtailor.core.registry import SPACES
from segtailor.core.space import Architecture, Decision, Picks, SearchSpace, check_picks
from segtailor.core.strategy import Halves, Problem
from segtailor.core.task import Task
from segtailor.nets.supernet import Supernet, keep_only
from segtailor.strategies.gradient_settings import Gradient

FORMAT = 1
DESCRIPTION, WEIGHTS = "supernet.json", "supernet.safetensors"
MAX_SHOWN_CLASSES = 8  # in a message


@dataclass(frozen=True, kw_only=True)
class SupernetFacts:
    """What a supernet was trained for.

    `image` is the size at which networks were priced, `data` the fingerprint of both halves of the training split.
    `remaining` are the options of every decision that were not removed, `weights` is the SHA-256 of the weights' file.
    """

    space: str
    settings: dict[str, Any]
    strategy: Gradient
    task: Task
    image: tuple[int, int]
    seed: int
    data: str
    remaining: dict[str, tuple[int, ...]]
    weights: str = ""
    format: int = FORMAT

    @property
    def fingerprint(self) -> str:
        """Changes with the weights and with their description."""
        return fingerprint(to_json(self))

    @property
    def removed(self) -> bool:
        """Whether the search removed any option of the space; decisions of the supernet alone do not count."""
        rows = [row for row in self.build_space().decisions if row.name in self.remaining]
        return any(len(self.remaining[row.name]) < len(row.options) for row in rows)

    def build_space(self) -> SearchSpace:
        """Return the space that the supernet was built for."""
        return from_json(SPACES.get(self.space), self.settings, what=f"settings of space '{self.space}'")


def facts_of(
    problem: Problem, settings: Gradient, *, remaining: Mapping[str, tuple[int, ...]]
) -> SupernetFacts:
    """Return the description of the supernet of a search."""
    return SupernetFacts(
        space=SPACES.name_of(type(problem.space)),
        settings=to_json(problem.space),
        strategy=settings,
        task=problem.task,
        image=(problem.image.height, problem.image.width),
        seed=problem.seed,
        data="" if problem.data is None else problem.data.fingerprint,
        remaining=dict(remaining),
    )


def save_supernet(folder: Path, facts: SupernetFacts, supernet: torch.nn.Module) -> None:
    """Write both files, replacing earlier ones, completely or not at all."""
    state = {name: value.detach().cpu().contiguous().clone() for name, value in supernet.state_dict().items()}
    data = safetensors.torch.save(state)
    document = {**to_json(facts), "weights": hashlib.sha256(data).hexdigest()}
    with new_folder(folder, what="trained supernet") as fresh:
        (fresh / WEIGHTS).write_bytes(data)
        write_json(fresh / DESCRIPTION, document, what="description of the supernet")


def read_facts(folder: Path) -> SupernetFacts:
    """Read what a saved supernet was trained for."""
    if not (folder / DESCRIPTION).is_file():
        raise RunProblem(
            f"there is no trained supernet in {folder}: it has no {DESCRIPTION}. Give the run of a finished search by "
            "gradients (e.g. `segtailor search squeezenas`); one that was stopped goes on with `segtailor resume`."
        )
    document = read_json(folder / DESCRIPTION, what="supernet", error=RunProblem)
    version = document.get("format") if isinstance(document, dict) else None
    if version != FORMAT:
        raise RunProblem(
            f"supernet {folder}: format is {version!r}, this version reads {FORMAT}. Search again."
        )
    return from_json(SupernetFacts, document, what=f"supernet {folder}", error=RunProblem)


def load_supernet(folder: Path, facts: SupernetFacts) -> Supernet:
    """Rebuild the supernet with its weights, on the CPU; weights that do not match the description are refused."""
    try:
        data = (folder / WEIGHTS).read_bytes()
        if hashlib.sha256(data).hexdigest() != facts.weights:
            raise RunProblem(f"{folder / WEIGHTS} is damaged or of another search: copy it or search again.")
        state = safetensors.torch.load(data)
    except (SafetensorError, OSError) as problem:
        raise RunProblem(f"{folder / WEIGHTS} cannot be read ({problem}); copy it or search again.") from None
    space: Any = facts.build_space()
    supernet: Any = space.supernet(
        Shape(facts.strategy.preprocessing.channels, *facts.image), facts.task.outputs
    )
    try:
        keep_only(supernet, facts.remaining)
        supernet.load_state_dict(state)
    except (KeyError, RuntimeError) as problem:
        raise RunProblem(f"{folder}: the weights do not fit their description ({problem}).") from None
    loaded: Supernet = supernet
    return loaded


def check_fits(
    facts: SupernetFacts, *, space: SearchSpace, task: Task, image: tuple[int, int], data: Halves
) -> None:
    """Refuse a supernet that was trained for something else, naming every difference."""
    asked = {
        "space": f"{SPACES.name_of(type(space))} {to_json(space)}",
        "classes": _named(task),
        "image": f"{image[0]}x{image[1]}",
        "data": f"training images with fingerprint {data.fingerprint}",
    }
    there = {
        "space": f"{facts.space} {facts.settings}",
        "classes": _named(facts.task),
        "image": f"{facts.image[0]}x{facts.image[1]}",
        "data": f"training images with fingerprint {facts.data}",
    }
    differ = [
        f"{name}: {there[name]} there, {asked[name]} asked" for name in asked if there[name] != asked[name]
    ]
    if task.classes != facts.task.classes and there["classes"] == asked["classes"]:
        differ.append("classes: the same number, but other names")
    if differ:
        raise Unsupported(
            f"the supernet was trained for something else ({'; '.join(differ)}). Give one of the same kind, or search "
            "by gradients for what is asked."
        )


@dataclass(frozen=True, kw_only=True)
class RemainingSpace:
    """A space without the options that a supernet has lost, so that all of it can be judged with the weights.

    `options` are the indices that are left of some decisions of `space`; architectures stay those of `space`.
    """

    space: SearchSpace
    options: Mapping[str, tuple[int, ...]]

    @property
    def architecture_type(self) -> type:
        """The architectures of the whole space."""
        return self.space.architecture_type

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The decisions with the options that are left."""
        return tuple(
            replace(row, options=tuple(row.options[index] for index in self._left[row.name]))
            for row in self.space.decisions
        )

    def architecture(self, picks: Picks) -> Architecture:
        """Decode picks among the options that are left."""
        check_picks(self.decisions, picks)
        return self.space.architecture({name: self._left[name][index] for name, index in picks.items()})

    def picks(self, arch: Architecture) -> Picks:
        """Encode an architecture; where a decision has no effect and its option was removed, use the first one left."""
        whole = self.space.picks(arch)
        return {
            name: left.index(whole[name]) if whole[name] in left else 0 for name, left in self._left.items()
        }

    def plan(self, arch: Architecture, image: Shape, classes: int) -> Plan:
        """Expand an architecture."""
        return self.space.plan(arch, image, classes)

    def calls(self, image: Shape, classes: int) -> Iterator[OpCall]:
        """Yield every call of the whole space, which includes those that are left."""
        return self.space.calls(image, classes)

    @cached_property
    def _left(self) -> dict[str, tuple[int, ...]]:
        rows = self.space.decisions
        return {row.name: tuple(self.options.get(row.name, range(len(row.options)))) for row in rows}


def _named(task: Task) -> str:
    more = ", ..." if task.outputs > MAX_SHOWN_CLASSES else ""
    return f"{task.outputs} ({', '.join(task.classes[:MAX_SHOWN_CLASSES])}{more})"
