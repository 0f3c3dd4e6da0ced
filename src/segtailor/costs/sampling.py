"""Whole networks spread over a space, timed on a target until a deadline, and prices fitted to them (`fitted`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import median

from segtailor.core.cost import Cost
from segtailor.core.plan import Plan
from segtailor.core.space import Architecture, SearchSpace, fingerprint_of
from segtailor.core.target import Includes, Target, parse_target
from segtailor.costs.analytic import Macs
from segtailor.costs.assembly import CalibrationSubject
from segtailor.costs.fitted import FittedLatency, fit_latency
from segtailor.costs.measured import distinct_architectures
from segtailor.costs.pack import Trust
from segtailor.costs.timers import MS_PER_SECOND, fastest_seconds
from segtailor.costs.trust import MeasuredNetwork
from segtailor.deploy.fold import inference_form
from segtailor.deploy.stages import staged
from segtailor.nets.network import Network, initialise
from segtailor.targets.graph import quick_form
from segtailor.targets.runtime import Compiled, compile_network
from segtailor.targets.timing import Stopwatch, TimingSettings, stopwatch, time_all

USUAL_NETWORKS, ENOUGH_NETWORKS = 32, 10
LEAST_NETWORKS = 3  # that are timed, however short the time is
LABELLED_NETWORKS = 2  # the first ones are timed from image to labels as well
DRAWN = 200  # random networks of which those that are timed are a part
GUESSES = 4  # first guesses of the space among them
PREPARING_SHARE = 0.7  # of the time, after which no further network is prepared if there are enough of them
MAX_ROUNDS = 8  # timings of each network
QUICK_SHARE = 0.6  # of the time, for networks in a quick form of the target
BOTH_SECONDS = 1.0  # for timing one of them in both forms, besides preparing it
BURST = TimingSettings(
    runs=5,
    seconds=0.06,
    warm_up_seconds=0.01,
    warm_up_limit=0.08,
    window=2,
    block_ms=60,
    device_sample_ms=2.0,
)


@dataclass(frozen=True, kw_only=True)
class LatencyFit:
    """Fitted prices, how far to trust them (each network predicted from all others), and what measuring took.

    `seconds` are those of each network: preparing it, and all its timings. `slow_runs` is the median over networks of
    median over fastest time: about 1 on a quiet machine. `rest_ms` is what the stages after the network take.
    """

    cost: FittedLatency
    trust: Trust
    seconds: tuple[float, ...]
    slow_runs: float
    rest_ms: float = 0.0


@dataclass(kw_only=True, eq=False)
class TimedSample:
    """A prepared network and what its timings gave so far; `whole` is its time with the stages after it, if known."""

    fingerprint: str
    plan: Plan
    compiled: Compiled
    watch: Stopwatch
    seconds: float
    lows_ms: list[float] = field(default_factory=list)
    medians_ms: list[float] = field(default_factory=list)
    whole: TimedSample | None = None

    def time(self) -> None:
        """Time the network once more, for a short while."""
        begin = time.monotonic()
        (taken,) = time_all([self.watch], BURST)
        self.lows_ms.append(MS_PER_SECOND * fastest_seconds(taken))
        self.medians_ms.append(MS_PER_SECOND * taken.median)
        if self.whole is not None:
            self.whole.time()
        self.seconds += time.monotonic() - begin

    def measured(self) -> MeasuredNetwork:
        """Return the fastest run, and the median of the medians."""
        return MeasuredNetwork(self.fingerprint, self.plan, min(self.lows_ms), median(self.medians_ms))

    def close(self) -> None:
        """Free what was prepared."""
        self.compiled.close()
        if self.whole is not None:
            self.whole.close()


def fit_space(
    subject: CalibrationSubject,
    *,
    seconds: float,
    includes: Includes = "network",
    networks: int = USUAL_NETWORKS,
    seed: int = 0,
) -> LatencyFit:
    """Time networks of a space for about `seconds`, at least a few of them, and fit prices to them.

    Prices are those of the network alone; what else `includes` names is timed on two networks. Where preparing a
    network takes long, networks are timed in a quick form of the target, and one of them in both forms.
    """
    target = parse_target(subject.target)
    quick = quick_form(target)

    def plan(arch: Architecture) -> Plan:
        return subject.space.plan(arch, subject.shape, subject.classes)

    chosen = islice(spread(subject.space, plan, seed=seed), networks)
    rows = time_sample(
        ((fingerprint_of(arch), plan(arch)) for arch in chosen),
        quick,
        seconds=seconds if quick == target else QUICK_SHARE * seconds,
        includes=includes,
    )
    measured = [row.measured() for row in rows]
    cost, trust = fit_latency(measured, target=str(quick))
    both_seconds: tuple[float, ...] = ()
    if quick != target:
        (both,) = time_sample([(rows[0].fingerprint, rows[0].plan)], target, seconds=BOTH_SECONDS)
        cost = cost.scaled(min(both.lows_ms) / min(rows[0].lows_ms), target=subject.target)
        both_seconds = (round(both.seconds, 3),)
    rests = [min(row.whole.lows_ms) - min(row.lows_ms) for row in rows if row.whole is not None]
    return LatencyFit(
        cost=cost,
        trust=trust,
        seconds=(*(round(row.seconds, 3) for row in rows), *both_seconds),
        slow_runs=round(median(one.median_ms / one.low_ms for one in measured), 4),
        rest_ms=round(max(0.0, median(rests)), 5) if rests else 0.0,
    )


def time_sample(
    plans: Iterable[tuple[str, Plan]], target: Target, *, seconds: float, includes: Includes = "network"
) -> list[TimedSample]:
    """Prepare networks one by one and time all of them in turns, again and again, until the time is over.

    The timings of one network are spread over the whole time: if other programs use the machine for a while, its
    fastest run still is one without them.
    """
    begin = time.monotonic()
    rows: list[TimedSample] = []
    try:
        for mark, plan in plans:
            used = (time.monotonic() - begin) / seconds
            if len(rows) >= LEAST_NETWORKS and used > (
                PREPARING_SHARE if len(rows) >= ENOUGH_NETWORKS else 1.0
            ):
                break
            rows.append(_prepared(mark, plan, target))
            if includes != "network" and len(rows) <= LABELLED_NETWORKS:
                rows[-1].whole = _prepared(mark, plan, target, includes=includes)
                rows[-1].seconds += rows[-1].whole.seconds
            rows[-1].time()
        for _ in range(MAX_ROUNDS - 1):
            for row in rows:
                if time.monotonic() - begin > seconds:
                    return rows
                row.time()
        return rows
    finally:
        for row in rows:
            row.close()


def spread(
    space: SearchSpace, plan: Callable[[Architecture], Plan], *, seed: int, cost: Cost | None = None
) -> Iterator[Architecture]:
    """Yield networks so that the first ones, however many, cover the range of costs.

    The middle of random networks by cost comes first, then the smallest of the space, the quarters and the largest, the
    eighths, and so on; first guesses of the space, if it has them, are among them.
    """
    price = (cost or Macs()).of
    drawn = list(islice(distinct_architectures(space, seed=seed), DRAWN))
    drawn.sort(key=lambda arch: price(plan(arch)))
    smallest, largest = (
        space.architecture({one.name: end * (len(one.options) - 1) for one in space.decisions})
        for end in (0, 1)
    )
    guesses: list[Architecture] = list(getattr(space, "first_guesses", list)())
    guesses.sort(key=lambda arch: price(plan(arch)))
    some = (
        [guesses[len(guesses) * (2 * place + 1) // (2 * GUESSES)] for place in range(GUESSES)]
        if guesses
        else []
    )
    between = [drawn[place] for place in _halvings(len(drawn))]
    first = [*between[:1], smallest, *between[1:3], largest]
    seen: set[str] = set()
    for arch in (*first, *_alternately(between[3:], some)):
        mark = fingerprint_of(arch)
        if mark not in seen:
            seen.add(mark)
            yield arch


def _alternately(many: Sequence[Architecture], few: Sequence[Architecture]) -> Iterator[Architecture]:
    """Yield one of the few after each two of the many, as long as there are any."""
    rest = iter(few)
    for number, arch in enumerate(many):
        yield arch
        if number % 2:
            yield from islice(rest, 1)


def _halvings(length: int) -> list[int]:
    """Return all places below `length`: the middle, the middles of both halves, and so on."""
    places: dict[int, None] = {}
    parts = 2
    while len(places) < length:
        for odd in range(1, parts, 2):
            places.setdefault(min(length - 1, length * odd // parts))
        parts *= 2
        if parts > 4 * length:
            places.update(dict.fromkeys(range(length)))
    return list(places)


def _prepared(mark: str, plan: Plan, target: Target, *, includes: Includes = "network") -> TimedSample:
    begin = time.monotonic()
    network = Network(plan.deployed())
    initialise(network, 0)
    image = (plan.image.height, plan.image.width)
    module = staged(inference_form(network.eval()), includes, image=image)
    compiled = compile_network(module, target, (plan.image,))
    return TimedSample(
        fingerprint=mark,
        plan=plan,
        compiled=compiled,
        watch=stopwatch(compiled, target.device),
        seconds=time.monotonic() - begin,
    )
