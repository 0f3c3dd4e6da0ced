"""Every operator call that a plan of this family may make: what a latency table must hold."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from segtailor.core.plan import OpCall, Shape
from segtailor.spaces.multi_resolution.architecture import Cell, CellOperator, MultiResolutionArchitecture
from segtailor.spaces.multi_resolution.layers import OPERATORS_BY_NAME, network_plan
from segtailor.spaces.multi_resolution.paths import RATES

HALVINGS: tuple[CellOperator, ...] = ("conv", "zoomed_conv")  # odd sizes: one rounds up, the other down


def possible_calls(
    image: Shape,
    classes: int,
    *,
    ratios: tuple[int, ...],
    stem_ratios: tuple[int, ...],
    head_ratios: tuple[int, ...],
) -> Iterator[OpCall]:
    """Yield each call once: those of stem and head from small networks that cover them, then those of all cells."""
    seen: set[OpCall] = set()
    for arch in _covering(ratios=ratios, stem_ratios=stem_ratios, head_ratios=head_ratios):
        plan = network_plan(arch, image, classes)
        for call in plan.calls:
            if call not in seen:
                seen.add(call)
                yield call
    first = plan.shape("stem2")
    for call in _cells(first, ratios=ratios, stem_ratios=stem_ratios, head_ratios=head_ratios):
        if call not in seen:
            seen.add(call)
            yield call


def _covering(
    *, ratios: tuple[int, ...], stem_ratios: tuple[int, ...], head_ratios: tuple[int, ...]
) -> Iterator[MultiResolutionArchitecture]:
    """Yield networks that make every call outside cells.

    These depend on the head ratio and the sizes, and on the width of one joined map: a ratio, or that of the stem where
    a branch halves at once.
    """
    for head, down16, down32 in product(head_ratios, HALVINGS, HALVINGS):
        for stem, ratio, keep in [
            *((stem_ratios[0], ratio, True) for ratio in ratios),
            *((stem, ratios[0], False) for stem in stem_ratios),
        ]:
            lead = (Cell(operator="conv", ratio=ratio),) * keep
            halve16 = Cell(operator=down16, ratio=ratio, stride=2)
            halve32 = Cell(operator=down32, ratio=ratio, stride=2)
            last = Cell(operator="conv", ratio=head)
            yield MultiResolutionArchitecture(
                branches=((*lead, halve16, halve32, last), (*lead, halve16, last)),
                stem_ratio=stem,
                head_ratio=head,
            )


def _cells(
    first: Shape, *, ratios: tuple[int, ...], stem_ratios: tuple[int, ...], head_ratios: tuple[int, ...]
) -> Iterator[OpCall]:
    sizes = {first}
    for rate in RATES:
        read = ratios if rate > RATES[0] else tuple(dict.fromkeys((*ratios, *stem_ratios)))
        writes = [(rate * ratio, 1) for ratio in dict.fromkeys((*ratios, *head_ratios))]
        if rate < RATES[-1]:
            writes += [(2 * rate * ratio, 2) for ratio in ratios]
        for size, op, ratio, (channels, stride) in product(
            sorted(sizes), OPERATORS_BY_NAME.values(), read, writes
        ):
            source = size._replace(channels=rate * ratio)
            yield OpCall(op=op, inputs=(source,), channels=channels, stride=stride)
        sizes = {
            OpCall(op=OPERATORS_BY_NAME[name], inputs=(size,), channels=1, stride=2).output()
            for size in sizes
            for name in HALVINGS
        }
