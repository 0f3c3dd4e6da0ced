"""The settings of a gradient search, and what is refused before it starts.

Everything that differs between the published gradient searches is a value here, so that a paper is one `Gradient`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from segtailor.core.errors import DataProblem, InvalidArchitecture, MissingCost, Unsupported
from segtailor.core.job import Job
from segtailor.core.space import Group, Picks
from segtailor.core.strategy import Problem, SearchProblem
from segtailor.core.task import Preprocessing
from segtailor.data.augment import Augment
from segtailor.nets.relax import Mode, Widths, geometric, linear
from segtailor.nets.supernet import AnySupernetSettings, SupernetSettings
from segtailor.strategies.candidates import ArchitecturePrices
from segtailor.training.settings import FitSettings

if TYPE_CHECKING:
    pass


SHAPES = {"geometric": geometric, "linear": linear}
MAX_ROUNDS = 3  # through all decisions, when looking for the cheapest network


@dataclass(frozen=True, kw_only=True)
class Temperature:
    """The temperature of the relaxation: from `start` to `end` over the search, changed every step or every epoch."""

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

    `warmup` is the share of the search during which their logits stay fixed while weights train on draws from them.
    `cost` is the group's share in the cost term. `hard` runs only the option with the largest weight of a draw, with
    straight-through gradients. While logits stay fixed, weights train on `drawn` mixtures, or on one option at a time,
    each equally often (`uniform`): so every option is trained as it will be used, and none gets an early lead.
    """

    warmup: float = 0.0
    cost: float = 1.0
    relaxation: Literal["gumbel", "softmax"] = "gumbel"
    hard: bool = False
    frozen: Literal["drawn", "uniform"] = "drawn"

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
    soft weights. `whole` counts everything, also the parts that the paper leaves out. With `adapt` the expected cost is
    led along a path down to the budget: the weight grows while the cost is above that path and shrinks while it is
    below, over a whole search by exp(adapt / 10) if the cost is off by a tenth; 20 is usual.
    With a `window`, two shares of the budget, the weight is halved after an epoch in which a network that would be
    chosen costs no more than the lower share, else doubled if one costs no less than the upper (FasterSeg's release).
    If groups have different shares in the cost term, each is charged for its own decisions, while the `others` stay as
    they are now (`current`) or are `neutral`: all options alike, or the last option of ordered decisions. `shares` says
    where these come from: `given` in each group's `Learning.cost`, or `balanced` by how much each group can change the
    cost, computed from the prices at hand (FasterSeg, section 3.3).
    """

    weight: float = 0.1
    form: Literal["linear", "log", "absolute"] = "linear"
    of: Literal["probabilities", "sampled"] = "probabilities"
    whole: bool = False
    adapt: float = 0.0
    window: tuple[float, float] | None = None
    others: Literal["current", "neutral"] = "current"
    shares: Literal["given", "balanced"] = "given"

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
    """Adam for the logits; they start as normal draws around 0 with standard deviation `spread`."""

    lr: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    spread: float = 0.0

    def __post_init__(self) -> None:
        if not self.lr > 0 or self.weight_decay < 0 or self.spread < 0:
            raise SearchProblem("logits: lr must be above 0, weight_decay and spread 0 or more.")


@dataclass(frozen=True, kw_only=True)
class Role:
    """One set of logits on the supernet, e.g. a student, or a teacher without a cost term (`cost` 0).

    `fixed` gives decisions, by their name or their group, one option for the whole search; -1 is the last. Options in
    `never` are searched like all others, but not chosen in the end.
    """

    name: str
    cost: float = 1.0
    fixed: Mapping[str, int] = field(default_factory=dict)
    never: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One pass through the supernet with the weights of a role; all widths are its own, the least, most or random.

    Widths that a role fixes by name do not change.
    """

    role: str
    widths: Widths = "own"


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """Training of shared weights before the search, at the initial logits: each step has one pass for each of `widths`.

    The roles alternate, so that weights that only one of them uses are trained as well.
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

    The most likely one, changed to meet the budget if there is one, and `samples` draws from the distribution are
    judged with the supernet's weights on the held-out half (its first `images`). The front of quality and cost is
    recorded and the objective decides. Statistics of norms are measured again on `recalibrate` training batches, 0 for
    never. A space whose supernet judges its own `alternatives` chooses among these; images are then resized by `scale`.
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


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """Learn architecture and shared weights together, by gradients through a relaxed supernet.

    `fit` trains the weights and gives the length, batch, precision and loss of the search. `alternating` updates learn
    logits on the half that trains no weights, `joint` updates learn both on the same batches. `learn` holds for all
    decision groups except those in `groups`. Options below the probability `remove_below` are removed. The trajectory
    is recorded `marks` times; every `judge_every` marks the most likely architecture is judged on the held-out half.
    The search counts as collapsed if `idle` options exceed the probability `collapse` in every decision that has one.
    Every update sums the losses of all `passes`, by default one per role. `record` runs a step as one CUDA graph where
    the device can, for supernets that never wait for it.
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
            raise SearchProblem(f"roles: {names}; give at least one, each with a different name.")
        unknown_roles = sorted({turn.role for turn in self.passes} - set(names))
        if unknown_roles:
            raise SearchProblem(
                f"passes: there is no role '{unknown_roles[0]}'; roles are {', '.join(names)}."
            )
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
        check_gradient(self, problem)

    def job(self, problem: Problem) -> Job:
        """Return the search as a job."""
        from segtailor.strategies.gradient import GradientSearch

        return GradientSearch(self, problem)


def _check_fit(fit: FitSettings) -> None:
    """Refuse training settings that a search does not use."""
    unused = {"ema": fit.ema, "distill": fit.distill, "compile": fit.compile, "sync_bn": fit.sync_bn}
    for name, value in unused.items():
        if value:
            raise Unsupported(f"fit.{name} is not part of a gradient search; leave it out.")
    if fit.precision == "fp16":
        raise Unsupported("fit.precision: fp16 needs loss scaling, which a search does not do; use bf16.")
    if fit.loss.balance:
        raise Unsupported("fit.loss.balance is not part of a gradient search; give class_weights instead.")


def check_gradient(settings: Gradient, problem: Problem) -> None:
    """Refuse a space without supernet, a cost that is not additive or incomplete, missing data, too small a budget."""
    kind = type(problem.space).__name__
    if not (hasattr(problem.space, "supernet") and hasattr(problem.space, "discretise")):
        raise Unsupported(
            f"the space {kind} has no supernet, which a gradient search needs; use a trial strategy "
            "(random, evolution), or the space inverted_residual, hyper_cell or multi_resolution."
        )
    if not hasattr(problem.cost, "price"):
        raise Unsupported(
            f"the cost {type(problem.cost).__name__} prices whole networks only, and a gradient search needs the price "
            "of single operators; use MACs, parameters or a calibrated latency table, or a trial strategy."
        )
    _check_data(problem)
    _check_prices(problem)
    if settings.choice.samples and hasattr(problem.space, "alternatives"):
        raise Unsupported(
            f"choice.samples: the supernet of {kind} judges its own alternatives; set samples to 0."
        )
    if settings.cost.adapt > 0 and problem.limit is None:
        raise Unsupported(
            "cost.adapt steers towards a budget, and there is none; give a budget or set adapt to 0."
        )
    if settings.cost.adapt > 0 and settings.record and hasattr(problem.space, "alternatives"):
        raise Unsupported(
            f"cost.adapt: {kind} prices the networks it derives at every step, on the host, which ends a recording; "
            "steer by cost.window instead, or set record to false."
        )
    known = {decision.group for decision in problem.space.decisions}
    for group in settings.groups:
        if group not in known:
            raise Unsupported(
                f"groups: the space {kind} has no '{group}' decisions; it has {', '.join(sorted(known))}."
            )
    _check_budget(problem)


def cheapest(problem: Problem) -> tuple[float, Picks]:
    """Return the cheapest architecture found by improving one decision after the other."""
    prices = ArchitecturePrices(problem)
    space = problem.space
    picks = {decision.name: 0 for decision in space.decisions}
    best = _price(prices, problem, picks)
    for _ in range(MAX_ROUNDS):
        before = best
        for decision in space.decisions:
            for option in range(len(decision.options)):
                other = {**picks, decision.name: option}
                price = _price(prices, problem, other)
                if price < best:
                    best, picks = price, other
        if best == before:
            break
    return best, picks


def _price(prices: ArchitecturePrices, problem: Problem, picks: Picks) -> float:
    try:
        return prices(problem.space.architecture(picks))
    except InvalidArchitecture:  # does not fit the image
        return math.inf


def _check_data(problem: Problem) -> None:
    if problem.data is None:
        raise Unsupported("a gradient search trains on data, and the problem has none; give a dataset.")
    fit, judge = len(problem.data.fit), len(problem.data.judge)
    if fit < 1 or judge < 1:
        raise DataProblem(
            f"the training split has halves of {fit} and {judge} images; one half trains weights, the other judges, so "
            "each needs at least 1. Add images."
        )


def _check_prices(problem: Problem) -> None:
    """Look up every call once, so that a missing entry of a table is found before the search starts."""
    price = problem.cost.price  # type: ignore[attr-defined]
    for call in problem.space.calls(problem.image, problem.task.outputs):
        value = price(call)
        if not (math.isfinite(value) and value >= 0):
            raise MissingCost(
                f"the cost of {call.op} is {value} {problem.cost.unit}; a cost must be a finite number of at least 0. "
                "Calibrate again."
            )


def _check_budget(problem: Problem) -> None:
    if problem.limit is None:
        return
    least, _ = cheapest(problem)
    if least > problem.limit:
        unit = problem.cost.unit
        raise SearchProblem(
            f"the budget of {problem.limit:g} {unit} is below the cheapest network of this space, {least:.4g} {unit}. "
            "Raise the budget, shrink the image or choose a smaller space."
        )
