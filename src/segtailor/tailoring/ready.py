"""Which ready networks keep a budget: all published ones and the hand-made baselines, best expected first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from segtailor.core.cost import Cost
from segtailor.core.errors import MissingCost, UserError
from segtailor.core.plan import Plan, Shape, count
from segtailor.core.space import fingerprint_of, plan_of
from segtailor.spaces import architectures, baselines, published, published_record

FULL = Shape(3, 1024, 2048)  # where published networks are compared
QUALITY = "cityscapes_val_miou_percent"  # of the authors' full training


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A ready network at one image size: its price, its expected quality, and why it is out if it is.

    `expected` is a Cityscapes validation mIoU (0 to 1), there to order by and not a promise for other data: the
    authors' own where they give one for this very network, otherwise `inferred` from its multiply-accumulates.
    """

    name: str
    expected: float
    evidence: Literal["published", "inferred"]
    price: float | None = None
    reason: str | None = None

    @property
    def fits(self) -> bool:
        """Whether the price keeps the limit."""
        return self.reason is None


def ready_networks(
    cost: Cost,
    limit: float,
    *,
    image: tuple[int, int],
    classes: int,
    names: Sequence[str] | None = None,
) -> tuple[Ready, ...]:
    """Price ready networks (each once, or those named) at an image size (height, width).

    First those within `limit` (in the unit of the cost), best expected quality first; then the others with the
    reason, cheapest first, those that have no price last.
    """
    if not limit > 0 or math.isnan(limit):
        raise UserError(f"limit: {limit} {cost.unit} is no budget; give a number above 0.")
    expected = expected_qualities()
    chosen = tuple(expected) if names is None else tuple(names)
    rows = []
    for name in chosen:
        plan = plan_of(published(name), Shape(3, *image), classes)
        quality, evidence = expected[_first_name(name)]
        price, reason = _priced(cost, plan, limit, image)
        rows.append(Ready(name=name, expected=quality, evidence=evidence, price=price, reason=reason))
    return tuple(sorted(rows, key=_rank))


def expected_qualities() -> Mapping[str, tuple[float, Literal["published", "inferred"]]]:
    """Return the expected quality of every ready network by name, and what it rests on.

    A network with two names (LPS-Net-S is also step 7 of its search) stands under the first of them. What has no
    published value lies on the straight line through all others over the logarithm of the multiply-accumulates;
    values of short trainings or with other encoders are not comparable and not used.
    """
    names = tuple(_by_fingerprint().values())
    macs = {name: math.log(count(plan_of(published(name), FULL, 19)).macs) for name in names}
    known = {name: published_record(name)["origin"]["results"].get(QUALITY) for name in names}
    points = [(macs[name], value / 100) for name, value in known.items() if value is not None]
    centre, level = (sum(column) / len(points) for column in zip(*points, strict=True))
    spread = sum((x - centre) ** 2 for x, _ in points)
    slope = sum((x - centre) * (y - level) for x, y in points) / spread
    return {
        name: (level + slope * (macs[name] - centre), "inferred")
        if value is None
        else (value / 100, "published")
        for name, value in known.items()
    }


@cache
def _by_fingerprint() -> Mapping[str, str]:
    """Return the first name of each ready network by its fingerprint."""
    found: dict[str, str] = {}
    for name in architectures() + baselines():
        found.setdefault(fingerprint_of(published(name)), name)
    return found


def _first_name(name: str) -> str:
    """Return the name under which a network stands."""
    return _by_fingerprint()[fingerprint_of(published(name))]


def _priced(cost: Cost, plan: Plan, limit: float, image: tuple[int, int]) -> tuple[float | None, str | None]:
    """Return the price, and why it is too high or unknown."""
    try:
        price = cost.of(plan)
    except MissingCost as problem:
        return None, f"has no price here: {problem}"
    if price <= limit:
        return price, None
    size = f"{image[0]}x{image[1]}"
    return price, f"costs {price:.4g} {cost.unit} at {size}, the limit is {limit:.4g} {cost.unit}"


def _rank(row: Ready) -> tuple[bool, float, str]:
    if row.fits:
        return False, -row.expected, row.name
    return True, math.inf if row.price is None else row.price, row.name
