"""What a user may choose about a search: plain data without torch, read by flags and by Python alike."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from cyclopts import Parameter

from segtailor.core.ranges import check_seed, check_whole

Scale: TypeAlias = Literal["small", "paper"]


@dataclass(frozen=True, kw_only=True)
class SearchChoices:
    """The choices that people make; what is left out stays as the recipe has it."""

    scale: Scale = "small"
    """The paper's settings, or ones that a laptop carries out in minutes."""
    target: str | None = None
    """Measure latency on device/runtime/precision; without it networks cost multiply-accumulates."""
    pack: Path | None = None
    """Take latency from a device pack made by `segtailor calibrate`."""
    force: bool = False
    """Use the pack although it was made for another machine, space, target or size."""
    budget: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None
    """No network may cost more: 12ms or 60fps with --target or --pack, else e.g. 300MMACs."""
    space: str | None = None
    """Another search space: see `segtailor list spaces`."""
    strategy: str | None = None
    """random, evolution, expansion or controller; without it the recipe's own."""
    trials: int | None = None
    """Number of networks to judge (random, evolution, controller)."""
    steps: int | None = None
    """Number of steps (expansion)."""
    evaluator: str | None = None
    """Who judges: train (a short training), staged (the decoder on a fixed encoder's maps, then everything), shared."""
    supernet: Path | None = None
    """Judge with the weights of this finished search by gradients; means --evaluator shared."""
    executor: str | None = None
    """serial, processes or ray."""
    workers: int | None = None
    """Trials at once; more than one means processes."""
    address: str | None = None
    """host:port of a Ray cluster; without it Ray is started here."""
    seed: int | None = None
    """Of the search and its trainings."""

    def __post_init__(self) -> None:
        for name, value in (("--trials", self.trials), ("--steps", self.steps), ("--workers", self.workers)):
            if value is not None:
                check_whole(name, value, least=1)
        if self.seed is not None:
            check_seed(self.seed, name="--seed")
