"""Search by gradients as a job: train a relaxed supernet, then judge a shortlist and choose.

It can be resumed after every step, and gives the same result for the same seed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from segtailor.core.codec import Json
from segtailor.core.errors import RunProblem
from segtailor.core.job import Step
from segtailor.core.space import Group
from segtailor.core.strategy import Problem, SearchProblem
from segtailor.data.batches import Batches
from segtailor.nets.network import initialise
from segtailor.nets.relax import straight_through
from segtailor.nets.supernet import keep_only
from segtailor.strategies.candidates import ArchitecturePrices
from segtailor.strategies.choosing import Choosing, Shortlisted
from segtailor.strategies.evaluators.shared import SharedJudge
from segtailor.strategies.gradient_settings import Gradient, Pass
from segtailor.strategies.halves import FIRST_STREAM, FIT_STREAM, JUDGE_STREAM, half_batches, halved_pixels
from segtailor.strategies.roles import mixed_seed
from segtailor.strategies.saved_supernet import facts_of, save_supernet
from segtailor.strategies.steering import descent_of
from segtailor.strategies.supernet_engine import SupernetEngine, plain
from segtailor.strategies.trajectory import (
    SearchWarnings,
    advice,
    collapsed,
    entropies,
    expected_depths,
    inert,
    record,
    too_slow,
    unlikely_operators,
)
from segtailor.training import device as devices
from segtailor.training.optimiser import load_optimiser, optimiser_state
from segtailor.training.pace import Allowance, Pace
from segtailor.training.state import read_state, write_state
from segtailor.training.threads import Threads, chosen_threads

MAX_SAVING_SHARE = 0.1  # of the time for checkpoints at marks
MAX_PRETRAINING_SHARE = 0.5  # of a time limit for training weights alone
STEPS_SHARE = 0.85  # of the remaining time for steps; the rest is for judging
MIN_JUDGED = (
    2  # of a shortlist, even after the time limit: the most likely network, and its form within the budget
)


class GradientSearch:
    """The job of a gradient search. `judged` and `trajectory` hold what was found so far."""

    def __init__(self, settings: Gradient, problem: Problem) -> None:
        settings.check(problem)
        self._settings, self._problem = settings, problem
        self._device = devices.pick_device(problem.device)
        devices.make_deterministic(on=settings.fit.deterministic)
        devices.seed_everything(problem.seed)
        pixels = halved_pixels(problem)
        batches = partial(half_batches, image=problem.image, seed=problem.seed, device=self._device)
        self._fit = batches(pixels.fit, settings, stream=FIT_STREAM)
        self._other = batches(pixels.judge, settings, stream=JUDGE_STREAM)
        first = settings.pretraining
        self._first: Batches | None = None
        if first is not None:
            ahead = replace(settings, augment=first.augment or settings.augment, fit=first.fit)
            self._first = batches(pixels.fit, ahead, stream=FIRST_STREAM)
        supernet = problem.space.supernet(  # type: ignore[attr-defined]
            problem.image, problem.task.outputs, settings=settings.supernet
        )
        initialise(supernet, problem.seed)
        if problem.start is not None:
            problem.start(supernet)
        devices.place(
            supernet, self._device, channels_last=settings.fit.channels_last_on(self._device)
        ).train()
        self._engine = SupernetEngine(supernet, settings, problem, device=self._device)
        self._prices = ArchitecturePrices(problem)
        self._choosing = Choosing(problem, supernet, price=self._engine.price, prices=self._prices)
        self._judge = SharedJudge(
            settings=settings,
            space=problem.space,
            task=problem.task,
            image=problem.image,
            supernet=supernet,
            batches=self._fit,
            pictures=pixels.judge,
            device=self._device,
        )
        self._total = settings.fit.total(self._fit.steps_per_epoch)
        self._ahead = (
            0 if first is None or self._first is None else first.fit.total(self._first.steps_per_epoch)
        )
        self._interval = max(1, self._total // settings.marks)
        self._descent = descent_of(problem, settings)
        self._engine.steering.gain = settings.cost.adapt / self._total
        self._pretrained = self._done = 0
        self._allowance = Allowance(settings.fit.seconds)
        self._quality: float | None = None
        self._warnings = SearchWarnings()
        self._warnings.add(too_slow(settings.logits.lr, self._learning_steps))
        self._saved, self._save_seconds = -math.inf, 0.0
        self.trajectory: list[dict[str, Json]] = []
        self.judged: dict[str, list[float]] = {role: [] for role in self._engine.roles.names}
        self._final_shortlists: dict[str, list[Shortlisted]] = {}

    def steps(self) -> Iterator[Step]:
        """Pretrain weights, search, then choose; yield a progress record about twice a second and at every mark."""
        with chosen_threads(self._device, fixed=self._settings.fit.deterministic) as threads:
            self._allowance.begin()
            yield from self._train(threads)
            yield from self._choose()

    def _train(self, threads: Threads) -> Iterator[Step]:
        pace = Pace()
        while self._pretrained < self._ahead:
            self._pretrain()
            at_mark = self._pretrained % self._interval == 0 or self._pretrained == self._ahead
            if at_mark or pace.due(self._pretrained):
                step = Step(
                    phase="pretrain", done=self._pretrained, total=self._ahead, metrics=self._report()
                )
                seconds = pace.seconds()
                message = threads.observe(steps=self._pretrained - pace.since, seconds=seconds)
                if (
                    self._allowance.seconds is not None
                    and self._allowance.spent > MAX_PRETRAINING_SHARE * self._allowance.seconds
                ):
                    self._ahead = self._pretrained
                yield replace(step, checkpoint=at_mark, message=message or self._warnings.news())
                pace.rest(self._pretrained, seconds=seconds)
        if not self.trajectory:
            self._mark()
        pace = Pace(self._done)
        while self._done < self._total:
            self._advance()
            at_mark = self._done % self._interval == 0 or self._done == self._total
            if at_mark or pace.due(self._done):
                metrics, seconds = self._report(), pace.seconds()
                steps = self._done - pace.since
                message = threads.observe(steps=steps, seconds=seconds)
                self._shorten()
                if at_mark or self._done == self._total:
                    metrics |= self._mark()
                step = self._step(metrics, checkpoint=at_mark and self._worth_saving)
                yield replace(step, message=message or step.message)
                pace.rest(self._done, seconds=seconds)

    def _shorten(self) -> None:
        """Plan fewer steps if the machine is too slow for all of them and for judging afterwards."""
        fit = self._settings.fit
        planned = fit.total(self._fit.steps_per_epoch)
        least = min(fit.least_steps, planned)
        self._total = self._allowance.total(self._done, planned, least=least, share=STEPS_SHARE)

    def save(self, folder: Path) -> None:
        """Write the whole state."""
        started, engine = time.perf_counter(), self._engine
        groups = {
            "supernet": engine.module.state_dict(),
            "weights": optimiser_state(engine.optimiser),
            "logits": engine.roles.state(),
            "adam": optimiser_state(engine.roles.optimiser),
            "guard": engine.guard.state(),
            "cost": engine.steering.state(),
            "rng": devices.rng_state(self._device),
        }
        counters: dict[str, Any] = {
            "done": self._done,
            "prepared": self._pretrained,
            "ahead": self._ahead,
            "total": self._total,
            "seconds": self._allowance.spent,
            "most": engine.most,
            "descent": None if self._descent is None else self._descent.first,
            "remaining": {name: list(left) for name, left in engine.supernet.remaining().items()},
            "quality": self._quality,
            "warnings": self._warnings.all,
            "trajectory": self.trajectory,
            "judged": self.judged,
            "prices": self._prices.known,
        }
        write_state(folder, groups, counters)
        self._saved = time.perf_counter()
        self._save_seconds = self._saved - started

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote for the same settings and problem."""
        groups, counters = read_state(folder)
        engine = self._engine
        try:
            keep_only(engine.supernet, counters["remaining"])
            engine.remove(())
            engine.module.load_state_dict(groups["supernet"])
            engine.roles.load(groups["logits"])
            load_optimiser(engine.optimiser, groups.get("weights", {}))
            load_optimiser(engine.roles.optimiser, groups.get("adam", {}))
            engine.guard.load(groups["guard"])
            engine.steering.load(groups["cost"])
            if self._descent is not None:
                self._descent.first = counters["descent"]
            self._done, self._quality = int(counters["done"]), counters["quality"]
            self._pretrained, engine.most = int(counters["prepared"]), counters.get("most")
            self._ahead, self._total = counters.get("ahead", self._ahead), counters.get("total", self._total)
            self._allowance.begin(float(counters.get("seconds", 0.0)))
            self._warnings.restore(list(counters["warnings"]))
            self.trajectory = list(counters["trajectory"])
            self.judged = {role: list(counters["judged"][role]) for role in self.judged}
            self._prices.known.update(counters["prices"])
        except (KeyError, IndexError, RuntimeError) as problem:
            raise RunProblem(
                f"the search state in {folder} belongs to another space or other settings ({problem}); "
                "resume with the recipe it was started with."
            ) from None
        devices.restore_rng(groups["rng"], self._device)

    def result(self) -> Mapping[str, Json]:
        """Return the chosen architecture of the first role, those of the others, fronts and the trajectory."""
        outcomes = {
            role: self._choosing.outcome(
                [arch for _, arch in self._shortlist(role)], qualities, limited=self._pays(role)
            )
            for role, qualities in self.judged.items()
        }
        first = next(iter(outcomes.values()))
        return {
            **first,
            "unit": self._problem.cost.unit,
            "failed": 0,  # a network of the supernet can always be judged
            "roles": {role: outcome for role, outcome in outcomes.items() if outcome is not first},
            "warnings": list(self._warnings.all),
            "cost_shares": {str(group): share for group, share in self._engine.shares.items()},
            "skipped": self._engine.guard.tally().skipped,
            "trajectory": list(self.trajectory),
        }

    def save_supernet(self, folder: Path) -> None:
        """Write the trained supernet, with which trials can judge architectures without training."""
        facts = facts_of(self._problem, self._settings, remaining=self._engine.supernet.remaining())
        save_supernet(folder, facts, self._engine.module)

    @property
    def crop(self) -> tuple[int, int]:
        """Height and width of training crops."""
        augment = self._settings.augment
        return (
            augment.crop if augment is not None else (self._problem.image.height, self._problem.image.width)
        )

    @property
    def batch(self) -> int:
        """Images per step."""
        return self._settings.fit.batch

    @property
    def planned(self) -> tuple[int, int, int]:
        """Steps of pretraining, steps of the search, and how often a network is judged."""
        every = self._interval * self._settings.judge_every
        on_the_way = self._total // every if every else 0
        shortlist = 1 + self._settings.choice.samples
        return self._ahead, self._total, on_the_way + shortlist * len(self.judged)

    def try_pretraining(self) -> None:
        """Take a step of pretraining, to time it; the job cannot be used afterwards."""
        self._pretrain()

    def try_step(self) -> None:
        """Take a step with all logits learning, to time it; the job cannot be used afterwards."""
        self._done = max(self._done, self._total // 2)
        self._advance()

    def try_judging(self) -> None:
        """Judge the most likely network, to time it."""
        role = self._engine.roles.names[0]
        self._judged(role, self._choosing.likely(self._to_choose(role)))

    @property
    def probabilities(self) -> dict[str, dict[str, list[float]]]:
        """The distribution of every role as it is now; waits for the device."""
        roles = self._engine.roles
        return {role: plain(roles.probabilities(role)) for role in roles.names}

    @property
    def temperature(self) -> float:
        """The temperature of the next step."""
        per_epoch = self._fit.steps_per_epoch
        return self._settings.temperature.at(self._done, total=self._total, per_epoch=per_epoch)

    @property
    def _worth_saving(self) -> bool:
        since = time.perf_counter() - self._saved
        return self._done == self._total or MAX_SAVING_SHARE * since >= self._save_seconds

    @property
    def _learning_steps(self) -> int:
        """The number of steps after the shortest warm-up, in which logits move."""
        groups = {decision.group for decision in self._problem.space.decisions}
        warmup = min(self._settings.learning(group).warmup for group in groups)
        return round(self._total * (1 - warmup))

    @property
    def learning(self) -> set[Group]:
        """The decision groups whose logits the next step moves."""
        groups = {decision.group for decision in self._problem.space.decisions}
        share = self._done / self._total
        return {group for group in groups if share >= self._settings.learning(group).warmup}

    def _pretrain(self) -> None:
        """Train weights alone; the roles take turns, with their initial logits."""
        first, batches = self._settings.pretraining, self._first
        if first is None or batches is None:
            return
        per_epoch = batches.steps_per_epoch
        factor = first.fit.schedule.factor(self._pretrained, total=self._ahead, steps_per_epoch=per_epoch)
        names = self._engine.roles.names
        role = names[self._pretrained % len(names)]
        message = self._engine.step(
            batches.at(self._pretrained),
            number=2 * (self._total + self._pretrained),
            temperature=self._settings.temperature.start,
            rate=first.fit.lr * factor,
            learning=set(),
            turns=[Pass(role=role, widths=widths) for widths in first.widths],
        )
        self._warnings.add(message)
        self._pretrained += 1

    def _advance(self) -> None:
        """Take one step: both together on one batch, or logits on the other half and then weights."""
        fit, engine, number = self._settings.fit, self._engine, 2 * self._done
        factor = fit.schedule.factor(self._done, total=self._total, steps_per_epoch=self._fit.steps_per_epoch)
        learning = self.learning
        goal = (
            None
            if self._descent is None
            else self._descent.goal(self._done / self._total, self._greatest_cost)
        )
        engine.frozen = frozenset(decision.group for decision in self._problem.space.decisions) - learning
        step = partial(engine.step, temperature=self.temperature, goal=goal)
        if self._settings.updates == "alternating":
            if learning:
                message = step(self._other.at(self._done), number=number + 1, rate=None, learning=learning)
                self._warnings.add(message)
            learning = set()
        message = step(self._fit.at(self._done), number=number, rate=fit.lr * factor, learning=learning)
        self._warnings.add(message)
        self._done += 1
        window, limit = self._settings.cost.window, self._problem.limit
        if window is not None and limit is not None and self._done % self._fit.steps_per_epoch == 0:
            paying = filter(self._pays, engine.roles.names)
            costs = [self._prices(arch) for name in paying for _, arch in self._shortlist(name)]
            engine.steering.into(window, [cost / limit for cost in costs])

    def _greatest_cost(self) -> float:
        return self._engine.greatest_cost().item()

    def _report(self) -> dict[str, float]:
        loss, skipped, row = self._engine.report()
        no_good_step = not math.isfinite(loss)  # since the last report
        if row >= self._settings.fit.patience or (no_good_step and self._done == self._total):
            raise SearchProblem(
                f"the supernet diverged: {row} step(s) in a row up to step {self._done} had a loss or gradient that is "
                "not finite. They changed nothing, and the last checkpoint is kept: lower fit.lr or logits.lr, set "
                "fit.clip (e.g. 5) or use fp32, and start again."
            )
        metrics = {"temperature": self.temperature, "skipped": float(skipped)}
        return metrics if no_good_step else {**metrics, "loss": loss}

    def _mark(self) -> dict[str, float]:
        """Record the distribution, remove unlikely operators, judge if it is due; return metrics."""
        self._remove()
        engine, settings = self._engine, self._settings
        weight = float(engine.cost_weight())
        roles: dict[str, Json] = {}
        metrics: dict[str, float] = {}
        for role, table in self.probabilities.items():
            decisions = engine.supernet.decisions
            figures = {"cost": engine.expected_cost(role).item()}
            figures |= {f"entropy_{name}": value for name, value in entropies(decisions, table).items()}
            figures |= {
                f"expected_{name}": value for name, value in expected_depths(decisions, table).items()
            }
            roles[role] = {**figures, "probabilities": record(table)}
            is_first = role == engine.roles.names[0]
            metrics |= figures if is_first else {f"{role}_{name}": value for name, value in figures.items()}
            what = collapsed(decisions, table, idle=settings.idle, above=settings.collapse)
            self._warnings.add(advice(what, weight=weight))
        every = self._interval * settings.judge_every
        if every and self._done and self._done % every == 0:
            first = engine.roles.names[0]
            self._quality = metrics["quality"] = self._judged(
                first, self._choosing.likely(self._to_choose(first))
            )
        left = sum(len(options) for options in engine.supernet.remaining().values())
        self.trajectory.append(
            {"step": self._done, "cost_weight": weight, "candidates": left,
             "quality": metrics.get("quality"), "roles": roles}
        )  # fmt: skip
        return {**metrics, "cost_weight": weight, "candidates": float(left)}

    def _remove(self) -> None:
        """Remove operators that are unlikely for every role; the most likely of each decision always stay."""
        if not self._settings.remove_below or "op" not in self.learning:
            return
        left = self._engine.supernet.remaining()
        tables = list(self.probabilities.values())
        unlikely = unlikely_operators(
            self._engine.supernet.decisions, tables, left, below=self._settings.remove_below
        )
        if unlikely:
            self._engine.remove(unlikely)

    def _choose(self) -> Iterator[Step]:
        """Judge the shortlist of every role, one architecture after the other."""
        for role in self.judged:
            decisions, settings = self._engine.supernet.decisions, self._settings
            idle = inert(decisions, self._to_choose(role), idle=settings.idle, share=settings.collapse)
            self._warnings.add(advice(idle, weight=float(self._engine.cost_weight())))
            candidates = self._shortlist(role)
            while len(self.judged[role]) < len(candidates):
                if len(self.judged[role]) >= MIN_JUDGED and self._allowance.over:
                    self._final_shortlists[role] = candidates = candidates[: len(self.judged[role])]
                    break
                candidate = candidates[len(self.judged[role])]
                _, arch = candidate
                self.judged[role].append(self._judged(role, candidate))
                count, last = len(self.judged[role]), self.judged[role][-1]
                if count == len(candidates) and self._pays(role):
                    self._warnings.add(self._choosing.over_budget(candidates))
                yield Step(
                    phase=f"choose {role}" if len(self.judged) > 1 else "choose",
                    done=count,
                    total=len(candidates),
                    metrics={"quality": last, "cost": self._prices(arch)},
                    message=self._warnings.news(),
                    checkpoint=count == len(candidates),
                )

    def _judged(self, role: str, candidate: Shortlisted) -> float:
        """Judge an architecture as a network, or by its output of the supernet at the most likely widths."""
        output, arch = candidate
        if output is None:
            return self._judge(arch)
        roles, supernet = self._engine.roles, self._engine.supernet
        weights = roles.probabilities(role)
        for decision in supernet.decisions:
            if decision.group == "width":
                weights[decision.name] = straight_through(weights[decision.name])
        weights = {name: row.detach() for name, row in weights.items()}
        return self._judge.output(output, weights)

    def _pays(self, role: str) -> bool:
        """Tell whether a role has a cost term, and so a budget."""
        return next(row for row in self._settings.roles if row.name == role).cost > 0

    def _shortlist(self, role: str) -> list[Shortlisted]:
        """Return the architectures to choose from; they are fixed once the search has ended."""
        if role not in self._final_shortlists:
            seed = mixed_seed(self._problem.seed, 2, list(self.judged).index(role))
            samples, limited = self._settings.choice.samples, self._pays(role)
            shortlist = self._choosing.shortlist(
                self._to_choose(role), samples=samples, seed=seed, limited=limited
            )
            if self._done < self._total:
                return shortlist
            self._final_shortlists[role] = shortlist
        return self._final_shortlists[role]

    def _to_choose(self, role: str) -> Mapping[str, list[float]]:
        return plain(self._engine.roles.to_choose(role))

    def _step(self, metrics: Mapping[str, float], *, checkpoint: bool) -> Step:
        best: dict[str, Json] = {} if self._quality is None else {"quality": self._quality}
        step = Step(phase="search", done=self._done, total=self._total, metrics=metrics, best=best)
        return replace(step, message=self._warnings.news(), checkpoint=checkpoint)
