"""Networks that were timed, and which of several to time next: behind the budgets of `tailor` and of `export`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

MAX_EXPECTED_SHARE = 1.05  # of the budget: networks that are expected to take longer are not timed
MAX_TIMINGS = 3  # of a network that may keep the budget although its first timing does not
MAX_SLOW_RUNS = (
    1.5  # p95 over the fastest run, as far as that is due to the network and not to other programs
)
CROWDED_RATIO = 2.5  # p95 over the fastest run: beyond this, other programs interrupted the runs
TINY = 1e-12


@dataclass(frozen=True, kw_only=True)
class TimedNetwork:
    """A network as timed on the target; `making_seconds` is how long it took to prepare it for that.

    `min_ms` is the fastest run: other programs only ever add time.
    """

    network: str
    median_ms: float
    p95_ms: float
    making_seconds: float
    min_ms: float | None = None

    @property
    def undisturbed_ms(self) -> float:
        """The fastest run, or the median where that is not known."""
        return self.median_ms if self.min_ms is None else self.min_ms


def crowded(undisturbed_ms: float, p95_ms: float, *, limit_ms: float) -> bool:
    """Tell whether a network misses a limit only because other programs interrupt its runs.

    `undisturbed_ms` is its fastest run, or the median where that is not known.
    """
    return p95_ms > limit_ms and undisturbed_ms <= limit_ms / CROWDED_RATIO


class PricedNetwork(Protocol):
    """A network with a quality and a price, in any unit."""

    @property
    def fingerprint(self) -> str:
        """Which network it is."""

    @property
    def quality(self) -> float | None:
        """How good it is, if that is known."""

    @property
    def cost(self) -> float:
        """Its price."""


class TimedPrice(PricedNetwork, Protocol):
    """One that was timed."""

    @property
    def p95_ms(self) -> float:
        """What 95 % of its runs keep."""


Network = TypeVar("Network", bound=PricedNetwork)
Timed = TypeVar("Timed", bound=TimedPrice)


def next_to_time(
    networks: Sequence[Network],
    timed: Sequence[Timed],
    *,
    expected_ms: Callable[[Network], float | None],
    keeps: Callable[[Timed], bool],
    budget_ms: float,
) -> Network | None:
    """Return the best network that was not timed, is better than those within the budget, and may keep it.

    Where all seem too slow and none keeps the budget, the cheapest: its time may correct what is expected of others.
    """
    known = {row.fingerprint for row in timed}
    enough = max((row.quality or 0.0 for row in timed if keeps(row)), default=None)
    least = -1.0 if enough is None else enough
    open_ones = [one for one in networks if one.fingerprint not in known and _quality(one) > least]
    fitting = [one for one in open_ones if (expected_ms(one) or 0.0) <= MAX_EXPECTED_SHARE * budget_ms]
    if fitting or enough is not None:
        return max(fitting, key=_quality, default=None)
    cheaper = [one for one in open_ones if all(one.cost < row.cost for row in timed)]
    return min(cheaper, key=lambda one: one.cost, default=None)


def nearest_ms(cost: float, timed: Sequence[TimedPrice], *, rest_ms: float = 0.0) -> float:
    """Return the p95 latency that a price and the times of other networks let expect.

    The nearest timed network by price tells the ratio of measured to predicted; `rest_ms` is part of every latency.
    """
    nearest = min(timed, key=lambda row: abs(math.log(max(row.cost, TINY) / max(cost, TINY))))
    return rest_ms + max(nearest.p95_ms - rest_ms, TINY) / max(nearest.cost, TINY) * cost


def time_undisturbed(
    time: Callable[[], TimedNetwork], *, limit_ms: float, expected_ms: float | None = None
) -> TimedNetwork:
    """Time a network; again if it misses the limit, but its fastest run or its price says that it can keep it.

    The machine was busy then.
    """
    best = time()
    for _ in range(MAX_TIMINGS - 1):
        possible = best.undisturbed_ms if expected_ms is None else min(best.undisturbed_ms, expected_ms)
        if best.p95_ms <= limit_ms or possible > limit_ms:
            break
        best = less_disturbed(best, time())
    return best


def less_disturbed(first: TimedNetwork, second: TimedNetwork) -> TimedNetwork:
    """Return the less disturbed of two timings of one network, with the fastest run of both."""
    best = min(first, second, key=lambda row: row.p95_ms)
    return TimedNetwork(
        network=best.network,
        median_ms=best.median_ms,
        p95_ms=best.p95_ms,
        making_seconds=best.making_seconds,
        min_ms=min(first.undisturbed_ms, second.undisturbed_ms),
    )


def _quality(network: PricedNetwork) -> float:
    return 0.0 if network.quality is None else network.quality
