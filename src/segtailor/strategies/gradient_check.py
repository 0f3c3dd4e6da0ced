"""What a gradient search refuses before any work, each with its remedy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from segtailor.core.errors import DataProblem, InvalidArchitecture, MissingCost, Unsupported
from segtailor.core.space import Picks
from segtailor.core.strategy import Problem, SearchProblem
from segtailor.strategies.prices import ArchitecturePrices

if TYPE_CHECKING:
    from segtailor.strategies.gradient_settings import Gradient

ROUNDS = 3  # through all decisions, when looking for the cheapest network


def check_gradient(settings: Gradient, problem: Problem) -> None:
    """Refuse a space without supernet, a cost that is not additive or has gaps, missing data, a hopeless budget."""
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
    for _ in range(ROUNDS):
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
    """Look every call up once: a gap in a table is found now, not after hours."""
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
