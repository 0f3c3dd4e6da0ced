"""Everything that separates one gradient search from another, as frozen values: papers are rows of these."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from segtailor.core.errors import Unsupported
from segtailor.core.job import Job
from segtailor.core.space import Group
from segtailor.core.strategy import STRATEGIES, Problem, SearchProblem
from segtailor.core.task import Preprocessing
from segtailor.data.augment import Augment
from segtailor.nets.relax import Mode, Widths, geometric, linear
from segtailor.nets.supernet import AnySupernetSettings, SupernetSettings
from segtailor.training.settings import FitSettings

SHAPES = {"geometric": geometric, "linear": linear}


@dataclass(frozen=True, kw_only=True)
class Temperature:
    """From `start` to `end` over the search, moved at every step or once per epoch."""

    start: float = 5.0
    end: float = 1.0
    shape: Literal["geometric", "linear"] = "geometric"
    per: Literal["step", "epoch"] = "step"

    def __post_init__(self) -> None:
        for value in (self.start, self.end):
            if not (math.isfinite(value) and value > 0):
                raise Unsupported(
                    f"temperature: {value} is not above 0, and a softmax needs that; end the schedule at e.g. 0.03."
                )

    def at(self, done: int, *, total: int, per_epoch: int) -> float:
        """Return the temperature of the step after `done`."""
        reached = done // per_epoch * per_epoch if self.per == "epoch" else done
        return SHAPES[self.shape](self.start, self.end, min(1.0, reached / total))


@dataclass(frozen=True, kw_only=True)
class Learning:
    """How the decisions of one group are learned.

    `warmup` is the share of the search during which their logits stay as they are while weights train on draws from
    them; `cost` the group's share in the cost term. `hard` runs the largest weight of a draw alone, straight-through.
    """

    warmup: float = 0.0
    cost: float = 1.0
    relaxation: Literal["gumbel", "softmax"] = "gumbel"
    hard: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.warmup < 1:
            raise SearchProblem(f"warmup: {self.warmup} is no share of the search; give 0 up to below 1.")
        if not self.cost >= 0:
            raise SearchProblem(f"cost share: {self.cost} is negative; give 0 or more.")


@dataclass(frozen=True, kw_only=True)
class CostTerm:
    """What is added to the loss: `weight * cost / (cost of the first distribution)`, `weight * log(cost)`, or, where
    `absolute`, `weight * cost` in the cost's own unit.

    `of` says whether the expectation is taken over `probabilities` (no noise, no temperature) or over the `sampled`
    soft weights. `whole` counts everything, also what the paper lets go free. With `adapt` the weight follows a path of
    the expected cost down to the budget: it grows while the cost is above that path and shrinks while it is below, by
    exp(adapt / 10) in a whole search where it is a tenth of the path; 20 is usual.
    With a `window`, two shares of the budget, it is halved after an epoch in which a network that would be chosen costs
    no more than the lower, else doubled where one costs no less than the upper (FasterSeg's release). Where groups pay
    different shares, a group pays through its own decisions, the `others` staying as they are now (`current`) or being
    `neutral`: all options alike, of ordered ones the last.
    """

    weight: float = 0.1
    form: Literal["linear", "log", "absolute"] = "linear"
    of: Literal["probabilities", "sampled"] = "probabilities"
    whole: bool = False
    adapt: float = 0.0
    window: tuple[float, float] | None = None
    others: Literal["current", "neutral"] = "current"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.weight) and self.weight >= 0 and self.adapt >= 0):
            raise SearchProblem(f"cost: weight {self.weight} and adapt {self.adapt} must be 0 or more.")
        if self.adapt > 0 and self.weight == 0:
            raise SearchProblem("cost: adapt multiplies the weight, which is 0; give a weight to start from.")
        if self.window is not None and not 0 < self.window[0] < self.window[1]:
            raise SearchProblem(
                f"cost.window: {self.window} is no range of shares of the budget; give 0 < lower < upper, e.g. 0.9, 1."
            )
        if self.window is not None and self.adapt > 0:
            raise SearchProblem("cost: adapt and window both steer the weight; give one of them.")


@dataclass(frozen=True, kw_only=True)
class LogitOptimiser:
    """Adam for the logits, which start as a normal draw of deviation `spread` around 0."""

    lr: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    spread: float = 0.0

    def __post_init__(self) -> None:
        if not self.lr > 0 or self.weight_decay < 0 or self.spread < 0:
            raise SearchProblem("logits: lr must be above 0, weight_decay and spread 0 or more.")


@dataclass(frozen=True, kw_only=True)
class Role:
    """One set of logits on the supernet, e.g. a student, or a teacher that costs nothing (`cost` 0).

    `fixed` decisions, named themselves or by their group, have one option throughout; -1 is the last. Options in
    `never` are searched like all others, but not chosen.
    """

    name: str
    cost: float = 1.0
    fixed: Mapping[str, int] = field(default_factory=dict)
    never: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One pass through the supernet: with the weights of a role, all widths being its own, the least, most or random.

    Widths that a role fixes by name stay.
    """

    role: str
    widths: Widths = "own"


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """Training of shared weights before the search, at the first logits: at each step one pass for each of `widths`.

    The roles take turns, so that what is theirs alone is trained, too.
    """

    fit: FitSettings = field(default_factory=FitSettings)
    augment: Augment | None = None
    widths: tuple[Widths, ...] = ("most", "least", "random", "random")

    def __post_init__(self) -> None:
        if not self.widths:
            raise SearchProblem("pretraining.widths: none; give at least one of own, least, most, random.")
        _check_fit(self.fit)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How the architecture is chosen in the end.

    The most likely one, made affordable where there is a budget, and `samples` draws from the distribution are judged
    with the supernet's weights on the held-out half (its first `images`); the front of quality and cost is kept and the
    objective decides. Statistics of norms are measured again on `recalibrate` training batches, 0 for never.
    A space whose supernet judges its `alternatives` has only these to choose from; images are resized by `scale` then.
    """

    samples: int = 0
    recalibrate: int = 8
    images: int | None = None
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.scale <= 4:
            raise SearchProblem(
                f"choice.scale: {self.scale}; give a factor on image sides above 0, e.g. 0.5."
            )
        if self.samples < 0 or self.recalibrate < 0 or (self.images is not None and self.images < 1):
            raise SearchProblem("choice: samples and recalibrate must be 0 or more, images 1 or more.")


@STRATEGIES.register("gradient")
@dataclass(frozen=True, kw_only=True)
class Gradient:
    """Learn architecture and shared weights together, by gradients through a relaxed supernet.

    `fit` trains the weights and gives the length, batch, precision and loss of the search. `alternating` updates learn
    logits on the half that trains no weight, `joint` ones both on the same batches. `learn` holds for all decision
    groups but those in `groups`. Candidates below the probability `remove_below` are dropped. The search is recorded
    `marks` times, and every `judge_every` marks the most likely architecture is judged on the held-out half.
    `idle` options above the probability `collapse` in every decision that has one count as a collapsed search.
    Every update adds up the losses of all `passes`, by default one of each role. `record` turns a step into one unit of
    work for the device, where it can (CUDA graphs): for supernets that never wait for it.
    """

    fit: FitSettings = field(default_factory=FitSettings)
    augment: Augment | None = None
    supernet: AnySupernetSettings = field(default_factory=SupernetSettings)
    updates: Literal["joint", "alternating"] = "joint"
    mode: Mode = "soft"
    prune_below: float = 1e-3
    per_image: bool = False
    temperature: Temperature = field(default_factory=Temperature)
    logits: LogitOptimiser = field(default_factory=LogitOptimiser)
    cost: CostTerm = field(default_factory=CostTerm)
    learn: Learning = field(default_factory=Learning)
    groups: Mapping[Group, Learning] = field(default_factory=dict)
    roles: tuple[Role, ...] = (Role(name="student"),)
    passes: tuple[Pass, ...] = ()
    pretraining: Pretraining | None = None
    record: bool = False
    remove_below: float = 0.0
    choice: Choice = field(default_factory=Choice)
    marks: int = 100
    judge_every: int = 10
    idle: tuple[str, ...] = ("skip", "zero")
    collapse: float = 0.9
    preprocessing: Preprocessing = field(default_factory=Preprocessing)

    def __post_init__(self) -> None:
        if not 0 <= self.remove_below < 0.5:
            raise SearchProblem(f"remove_below: {self.remove_below}; give 0 (never) up to below 0.5.")
        if self.marks < 1 or self.judge_every < 0:
            raise SearchProblem("marks must be 1 or more, judge_every 0 (only at the end) or more.")
        names = [role.name for role in self.roles]
        if not names or len(set(names)) != len(names):
            raise SearchProblem(f"roles: {names}; give at least one, each with a name of its own.")
        strangers = sorted({turn.role for turn in self.passes} - set(names))
        if strangers:
            raise SearchProblem(f"passes: there is no role '{strangers[0]}'; roles are {', '.join(names)}.")
        if self.record and (self.mode != "soft" or (self._draws_hard and not self.supernet.masked)):
            raise Unsupported(
                "record: choices that the host must know end a recording; set supernet.masked, mode soft."
            )
        _check_fit(self.fit)

    @property
    def _draws_hard(self) -> bool:
        widths = self.pretraining.widths if self.pretraining else ()
        return "random" in widths or any(how.hard for how in (self.learn, *self.groups.values()))

    @property
    def turns(self) -> tuple[Pass, ...]:
        """The passes of an update."""
        return self.passes or tuple(Pass(role=role.name) for role in self.roles)

    def learning(self, group: Group) -> Learning:
        """Return how a group of decisions is learned."""
        return self.groups.get(group, self.learn)

    def check(self, problem: Problem) -> None:
        """Refuse what cannot work, before any work."""
        from segtailor.search.gradient_check import check_gradient

        check_gradient(self, problem)

    def job(self, problem: Problem) -> Job:
        """Return the search as a job."""
        from segtailor.search.gradient import GradientSearch

        return GradientSearch(self, problem)


def _check_fit(fit: FitSettings) -> None:
    """Refuse settings of a training that a search has no use for."""
    unused = {"ema": fit.ema, "distill": fit.distill, "compile": fit.compile, "sync_bn": fit.sync_bn}
    for name, value in unused.items():
        if value:
            raise Unsupported(f"fit.{name} is not part of a gradient search; leave it out.")
    if fit.precision == "fp16":
        raise Unsupported("fit.precision: fp16 needs loss scaling, which a search does not do; use bf16.")
    if fit.loss.balance:
        raise Unsupported("fit.loss.balance is not part of a gradient search; give class_weights instead.")
