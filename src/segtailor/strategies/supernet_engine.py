"""One update of a gradient search: draw weights, run the supernet, add the cost term, update weights and logits.

Only `report` waits for the device. Batches go through the supernet in as few parts as memory allows. The gradients of
all parts are summed on the driving weights, and go from there to the logits in a single backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from segtailor.core.errors import UserError
from segtailor.core.plan import OpCall
from segtailor.core.space import Group
from segtailor.core.strategy import Problem
from segtailor.data.batches import Batch
from segtailor.nets.mixed import Price
from segtailor.nets.relax import Live, Weights, driving, live
from segtailor.nets.supernet import Supernet
from segtailor.strategies.gradient_settings import Gradient, Pass, Role
from segtailor.strategies.influence import balanced, influences
from segtailor.strategies.roles import Roles, mixed_seed
from segtailor.strategies.steering import Steering
from segtailor.tasks import kind_of
from segtailor.training import device as devices
from segtailor.training.device import CapturedStep
from segtailor.training.optimiser import NonFiniteGuard, make_optimiser, set_rate, update

MIN_COST = 1e-6  # keeps the logarithm finite for a network that computes nothing (AutoRTNet)


class EngineReport(NamedTuple):
    """What happened since the last report; `row` is the longest run of steps without a finite loss."""

    loss: float
    skipped: int
    row: int


class UpdateKind(NamedTuple):
    """What an update does: its passes, the groups whose logits it changes and those whose logits do not move yet,
    whether it trains weights or is steered."""

    turns: tuple[Pass, ...]
    learning: frozenset[Group]
    frozen: frozenset[Group]
    trains: bool
    steered: bool


class BatchTooLarge(Exception):
    """Memory ran out with this many images at a time, before anything was updated."""

    def __init__(self, images: int) -> None:
        super().__init__(images)
        self.images = images


class SupernetEngine:
    """Supernet, roles and both optimisers: all state of the search except the counters of the job."""

    def __init__(
        self, supernet: nn.Module, settings: Gradient, problem: Problem, *, device: torch.device
    ) -> None:
        if not isinstance(supernet, Supernet):
            raise TypeError(f"{type(supernet).__name__} is no supernet")
        self.module: nn.Module = supernet
        self.supernet: Supernet = supernet
        self.settings = settings
        self.problem = problem
        self.device = device
        self.roles = Roles(settings, supernet.decisions, seed=problem.seed, device=device)
        self.price: Price = remembered(problem.cost.price)  # type: ignore[attr-defined]
        self.criterion = kind_of(problem.task).criterion(
            settings.fit.loss,
            task=problem.task,
            device=device,
            align_corners=supernet.align_corners,
        )
        self.optimiser: Optimizer = make_optimiser(self.module, settings.fit)
        self.guard = NonFiniteGuard(self.module, device, scaled=False)
        self.steering = Steering(device)
        self._loss, self._good = torch.zeros((), device=device), torch.zeros((), device=device)
        self._trained = [row for row in self.module.parameters() if row.requires_grad]
        self.most: int | None = None  # images at a time that fit in memory, once that is known
        self.frozen: frozenset[Group] = frozenset()  # groups whose logits do not move yet in this search
        self._steps: dict[Hashable, CapturedStep] = {}
        self._pool = devices.memory_pool(device) if settings.record else None
        if settings.record:
            devices.allow_recording(self.optimiser)
            devices.allow_recording(self.roles.optimiser)
        with torch.no_grad():
            first = self._cost(self.roles.probabilities(self.roles.names[0]))
            self.reference = first.clamp(min=MIN_COST)
        self.shares = self._shares()

    def step(
        self,
        batch: Batch,
        *,
        number: int,
        temperature: float,
        rate: float | None,
        learning: Collection[Group],
        turns: Sequence[Pass] | None = None,
        goal: float | None = None,
    ) -> str | None:
        """Update the weights at a learning `rate` (None leaves them unchanged) and the logits of the groups `learning`.

        `number` seeds the noise, so it must differ between updates. `turns` are the passes, by default those of the
        settings. With a `goal` for the expected cost, the cost weight is steered towards it. Return a message if the
        batch had to be divided because memory ran out.
        """
        turns = tuple(self.settings.turns if turns is None else turns)
        images = len(batch.labels) if self.settings.per_image else None
        noise = [
            self.roles.noise(seed=mixed_seed(self.problem.seed, 1, number, index), images=images)
            for index in range(len(turns))
        ]
        kind = UpdateKind(
            turns,
            frozenset(learning),
            self.frozen,
            trains=rate is not None,
            steered=goal is not None,
        )
        numbers = {"temperature": temperature} | ({} if goal is None else {"goal": goal})
        if rate is not None:
            self._set_rate(rate)
        message = None
        while True:
            try:
                self._run(kind, batch, torch.stack(noise), **numbers)
                return message
            except BatchTooLarge as problem:
                tried = problem.images  # tensors of the failed step are freed only after this block
            message = self._shrink(tried)

    def _run(self, kind: UpdateKind, batch: Batch, noise: Tensor, **numbers: float) -> None:
        """Run the step, or its recording, which reads numbers from the device."""
        work: Callable[..., None] = partial(self._step, kind)
        tensors = {"images": batch.images, "labels": batch.labels, "noise": noise}
        if not self.settings.record:
            work(**tensors, **numbers)
            return
        key = kind, batch.labels.shape
        if key not in self._steps:
            self._steps[key] = CapturedStep(work, self.device, pool=self._pool)
        placed = {name: torch.full((), value, device=self.device) for name, value in numbers.items()}
        self._steps[key](**tensors, **placed)

    def _shrink(self, images: int) -> str:
        """Discard the failed step; let the next ones take half the images at a time."""
        if images < 2:
            raise UserError(
                "out of memory with a single image at a time. Lower the crop, or choose the mode 'path' or "
                "supernet.recompute, then start again; the last checkpoint is kept."
            )
        self._forget_recordings()
        self.optimiser.zero_grad(set_to_none=True)
        self.roles.optimiser.zero_grad(set_to_none=True)
        devices.release_memory(self.device)
        self.most = images // 2
        return (
            f"{images} images at a time do not fit in memory: the search goes on with {self.most} and adds up; "
            "batch norms see fewer images."
        )

    def _forget_recordings(self) -> None:
        self._steps.clear()
        if self.settings.record:  # memory is returned when no recorded step uses the pool
            self._pool = devices.memory_pool(self.device)

    def _step(
        self,
        kind: UpdateKind,
        *,
        images: Tensor,
        labels: Tensor,
        noise: Tensor,
        temperature: float | Tensor,
        goal: float | Tensor | None = None,
    ) -> None:
        """Run everything that happens on the device, from tensors and constants alone, so that it can be recorded."""
        self.guard.open()
        loss = torch.zeros((), device=self.device)
        batch = Batch(images, labels)
        roles = {role.name: role for role in self.settings.roles}
        with nullcontext() if kind.trains else self._frozen(), self._rewound():
            for index, turn in enumerate(kind.turns):
                soft = self.roles.draw(
                    turn.role,
                    noise=noise[index],
                    temperature=temperature,
                    images=len(labels) if self.settings.per_image else None,
                    widths=turn.widths,
                    frozen=kind.frozen,
                )
                loss += self._backward(batch, roles[turn.role], soft, turn=turn, learn=bool(kind.learning))
        self._update(loss / len(kind.turns), kind, goal)

    @contextmanager
    def _rewound(self) -> Iterator[None]:
        """Restore the statistics of norms if memory runs out in the middle of a step."""
        try:
            yield
        except BatchTooLarge:
            self.guard.rewind()
            raise

    @contextmanager
    def _frozen(self) -> Iterator[None]:
        """Compute no gradients of weights, which a step for logits alone does not need."""
        self.module.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in self._trained:
                parameter.requires_grad_(True)

    def report(self) -> EngineReport:
        """Return what happened since the last report; waits for the device."""
        loss, good = torch.stack([self._loss, self._good]).tolist()
        skipped, row = self.guard.tally()
        self._loss.zero_()
        self._good.zero_()
        return EngineReport(loss / good if good else float("nan"), skipped, row)

    def expected_cost(self, role: str) -> Tensor:
        """Return the expected cost of the whole network under a role's probabilities."""
        return self.supernet.cost(self.roles.probabilities(role), self.price)

    @torch.no_grad()
    def greatest_cost(self) -> Tensor:
        """Return the largest expected cost of the roles that have a cost term."""
        paying = [role.name for role in self.settings.roles if role.cost > 0]
        return torch.stack([self.expected_cost(name) for name in paying]).max()

    def cost_weight(self) -> Tensor:
        """Return the weight of the cost term as it is now."""
        return self.settings.cost.weight * self.steering.factor()

    def remove(self, unlikely: Sequence[tuple[str, int]]) -> None:
        """Remove options (decision, index); the others keep the state of their optimiser."""
        for decision, option in unlikely:
            self.supernet.remove(decision, option)
        self.roles.keep(self.supernet.remaining())
        optimiser_state, guard_state = self.optimiser.state, self.guard.state()
        self.optimiser = make_optimiser(self.module, self.settings.fit)
        if self.settings.record:
            devices.allow_recording(self.optimiser)
        for group in self.optimiser.param_groups:
            for parameter in group["params"]:
                if parameter in optimiser_state:
                    self.optimiser.state[parameter] = optimiser_state[parameter]
        self.guard = NonFiniteGuard(self.module, self.device, scaled=False)
        self.guard.load(guard_state)
        self._trained = [row for row in self.module.parameters() if row.requires_grad]
        self._forget_recordings()

    def _backward(self, batch: Batch, role: Role, soft: Weights, *, turn: Pass, learn: bool) -> Tensor:
        """Add gradients to weights and, with `learn`, to logits; return the loss on the data."""
        drive = driving(
            self.supernet.decisions, soft, self.settings.mode, threshold=self.settings.prune_below
        )
        leaves = {
            name: row.detach().requires_grad_(learn and row.requires_grad) for name, row in drive.items()
        }
        loss = self._data_loss(batch, leaves, self._live_options(turn, drive))
        if learn:
            terms = [
                (drive[name] * leaf.grad).sum() for name, leaf in leaves.items() if leaf.grad is not None
            ]
            if role.cost > 0 and turn.widths == "own":
                terms.append(self.cost_weight() * role.cost * self._cost_term(role, soft))
            torch.stack(terms).sum().backward()  # type: ignore[no-untyped-call]
        return loss

    def _live_options(self, turn: Pass, drive: Weights) -> Live:
        """Return the options that run: known beforehand, or read from the device, which means waiting for it."""
        if self.settings.mode != "soft":
            return live(drive)
        definite = self.roles.definite(turn.role, turn.widths)
        options = dict(self.supernet.remaining())
        options |= {name: (option,) for name, option in definite.items() if option is not None}
        if self.settings.supernet.masked:
            return options
        hard = {
            row.name: drive[row.name]
            for row in self.supernet.decisions
            if definite.get(row.name, 0) is None
            or (row.name not in definite and self.settings.learning(row.group).hard)
            or (row.group in self.frozen and self._one_at_a_time(row.group) and not self.settings.record)
        }
        return options | live(hard)

    def _one_at_a_time(self, group: Group) -> bool:
        """Tell whether a group runs single options while its logits do not move."""
        return self.settings.learning(group).frozen == "uniform"

    def _data_loss(self, batch: Batch, weights: Weights, options: Live) -> Tensor:
        """Run the batch part by part, summing gradients."""
        fit, count = self.settings.fit, len(batch.labels)
        part = max(1, -(-count // fit.accumulate))
        part = part if self.most is None else min(part, self.most)
        normaliser = self.criterion.normaliser(batch.labels)
        total = torch.zeros((), device=self.device)
        for start in range(0, count, part):
            rows = slice(start, start + part)
            part_weights = {name: row if row.dim() == 1 else row[rows] for name, row in weights.items()}
            images = devices.arrange(batch.images[rows], channels_last=fit.channels_last_on(self.device))
            try:
                with devices.autocast(self.device, fit.precision):
                    outputs = self.supernet.forward(images, part_weights, options)
                    loss = self.criterion(outputs, batch.labels[rows], normaliser=normaliser)
                    if not self.criterion.global_normaliser:
                        loss = loss * len(images) / count
                loss.backward()  # type: ignore[no-untyped-call]
            except torch.OutOfMemoryError:
                raise BatchTooLarge(len(images)) from None
            total += loss.detach()
        return total

    def _cost_term(self, role: Role, soft: Weights) -> Tensor:
        """Return the cost term of the loss; if shares differ, each group is charged for its own decisions only."""
        term = self.settings.cost
        weights = soft if term.of == "sampled" else self.roles.probabilities(role.name)
        shares = self.shares
        if len(set(shares.values())) == 1:
            return next(iter(shares.values())) * self._scaled(self._cost(weights))
        parts = []
        others = self._others(role, weights)
        for group, share in shares.items():
            group_weights = {
                row.name: weights[row.name] if row.group == group else others[row.name]
                for row in self.supernet.decisions
            }
            parts.append(share * self._scaled(self._cost(group_weights)))
        return torch.stack(parts).sum()

    def _shares(self) -> dict[Group, float]:
        """Return each group's share in the cost term: as given, or balanced by the prices of the first paying role."""
        given = {row.group: self.settings.learning(row.group).cost for row in self.supernet.decisions}
        paying = next((role.name for role in self.settings.roles if role.cost > 0), None)
        if self.settings.cost.shares == "given" or paying is None:
            return given
        fixed = self.roles.fixed[paying]
        held = {name: row for name, row in self.roles.probabilities(paying).items() if name in fixed}
        free = [row.name for row in self.supernet.decisions if row.name not in fixed]
        changes = influences(self.supernet.decisions, self.roles.neutral() | held, self._cost, free=free)
        return {**dict.fromkeys(given, 0.0), **balanced(changes)}

    def _others(self, role: Role, weights: Weights) -> Weights:
        """Return weights for the decisions of other groups; decisions that a role fixes keep theirs."""
        detached = {name: row.detach() for name, row in weights.items()}
        if self.settings.cost.others == "current":
            return detached
        return self.roles.neutral() | {name: detached[name] for name in self.roles.fixed[role.name]}

    def _cost(self, weights: Weights) -> Tensor:
        count = self.supernet.cost if self.settings.cost.whole else self.supernet.searched_cost
        return count(weights, self.price)

    def _scaled(self, cost: Tensor) -> Tensor:
        form = self.settings.cost.form
        if form == "log":
            return torch.log(cost.clamp(min=MIN_COST))
        return cost if form == "absolute" else cost / self.reference

    def _update(self, loss: Tensor, kind: UpdateKind, goal: float | Tensor | None) -> None:
        weights = [row for group in self.optimiser.param_groups for row in group["params"]]
        logits = self.roles.parameters()
        self.roles.freeze(kind.learning)
        gradients = [row.grad for row in [*weights, *logits] if row.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        if self.settings.fit.clip is not None:
            weights_norm = nn.utils.get_total_norm([row.grad for row in weights if row.grad is not None])
            nn.utils.clip_grads_with_norm_(weights, self.settings.fit.clip, weights_norm)
        bad = ~torch.isfinite(loss + norm)
        skip = self.guard.close(bad)
        if kind.trains:
            update(self.optimiser, skip=skip)
        if kind.learning:
            update(self.roles.optimiser, skip=skip)
            if goal is not None:
                goal = torch.as_tensor(goal, device=self.device)
                self.steering.towards(goal, self.greatest_cost(), bad=bad)
        self.optimiser.zero_grad(set_to_none=True)
        self.roles.optimiser.zero_grad(set_to_none=True)
        self._loss += torch.where(bad, 0.0, loss)
        self._good += ~bad

    def _set_rate(self, rate: float) -> None:
        """Set the learning rate; a recorded step reads it from the device."""
        if not (self.settings.record and devices.can_record(self.device)):
            set_rate(self.optimiser, rate)
            return
        for group in self.optimiser.param_groups:
            if not isinstance(group["lr"], Tensor):
                group["lr"] = torch.zeros((), device=self.device)
            group["lr"].fill_(rate)


def plain(weights: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """Copy distributions to the host in one transfer."""
    names, sizes = list(weights), [len(row) for row in weights.values()]
    rows = torch.cat([weights[name].detach() for name in names]).cpu()
    parts = torch.split(rows, sizes)
    return {name: row.tolist() for name, row in zip(names, parts, strict=True)}


def remembered(price: Callable[[OpCall], float]) -> Price:
    """Return a price function that looks up each call once: supernets need the same prices at every step."""
    known: dict[OpCall, float] = {}

    def look_up(call: OpCall) -> float:
        if call not in known:
            known[call] = float(price(call))
        return known[call]

    return look_up
