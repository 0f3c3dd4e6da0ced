"""The layers of a network of this family: stem, branches of cells, the way back up, fusion, classifiers.

Also every operator call that a network of the family may make, which a latency table must hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from segtailor.core.plan import IMAGE, MAIN, OpCall, Operator, Plan, PlanBuilder, Shape
from segtailor.ops import Concat, Conv
from segtailor.ops.attention import UnreadAttention
from segtailor.ops.convolutions import HiddenClassifier, ZoomedConv
from segtailor.spaces.multi_resolution.architecture import (
    FIRST_RATE,
    RATES,
    BranchCell,
    CellOperator,
    MultiResolutionArchitecture,
)

OPERATORS_BY_NAME: dict[CellOperator, Operator] = {
    "conv": Conv(),
    "zoomed_conv": ZoomedConv(),
    "conv_2x": Conv(repeats=2),
    "zoomed_conv_2x": ZoomedConv(repeats=2),
}
JOIN = Concat(like=1, align_corners=True)  # the first input comes from a coarser rate
HALVINGS: tuple[CellOperator, ...] = ("conv", "zoomed_conv")  # odd sizes: one rounds up, the other down


def network_plan(arch: MultiResolutionArchitecture, image: Shape, classes: int) -> Plan:
    """Write all layers; `aux16` and `aux32` are train-only outputs."""
    build = PlanBuilder(image)
    trunks = _trunks(build, arch, _stem(build, arch.stem_ratio))
    merged = [
        _climb(build, end, maps, head_ratio=arch.head_ratio)
        for end, maps in zip(arch.ends, trunks, strict=True)
    ]
    joined = merged[0]
    if len(merged) > 1:
        joined = _concat(build, "fusion_join", *merged)
    fused = build.add("fusion", Conv(kernel=1), joined)
    outputs = {MAIN: build.add("head8", HiddenClassifier(), fused, channels=classes)}
    outputs |= _auxiliary(build, trunks, classes=classes, width=build.shape(fused).channels)
    return build.plan(outputs=outputs, align_corners=True)


def cell_name(arch: MultiResolutionArchitecture, branch: int, position: int) -> str:
    """Return the node of a cell; branches name a shared cell alike."""
    return f"cell{position}" if position < arch.shared else f"cell{position}_to{arch.ends[branch]}"


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


def _stem(build: PlanBuilder, ratio: int) -> str:
    # Paper: layers 1, 2 and 4 double the channels; release (followed): the last halving keeps them.
    half = build.add("stem0", Conv(), IMAGE, channels=4 * ratio, stride=2)
    quarter = build.add("stem1", Conv(repeats=2), half, channels=8 * ratio, stride=2)
    return build.add("stem2", Conv(repeats=2), quarter, stride=2)


def _trunks(build: PlanBuilder, arch: MultiResolutionArchitecture, stem: str) -> list[list[str]]:
    """Add the cells; return each branch's last maps at rates 8, 16, 32, as far as it gets."""
    trunks = []
    known: set[str] = set()
    for number, branch in enumerate(arch.branches):
        maps, rate = [stem], FIRST_RATE
        for position, cell in enumerate(branch):
            rate *= cell.stride
            name = cell_name(arch, number, position)
            if name not in known:
                op = OPERATORS_BY_NAME[cell.operator]
                build.add(name, op, maps[-1], channels=rate * cell.ratio, stride=cell.stride)
                known.add(name)
            maps = [*maps, name] if cell.stride == 2 else [*maps[:-1], name]
        trunks.append(maps)
    return trunks


def _climb(build: PlanBuilder, end: int, maps: list[str], *, head_ratio: int) -> str:
    """Add the way back to rate 8: narrow, enlarge, join the branch's own last map of that rate, refine."""
    top = maps[-1]
    for step, finer in enumerate(reversed(maps[:-1])):
        width = (end >> (step + 1)) * head_ratio
        narrow = build.add(f"arm{end}_{step}", Conv(kernel=1), top, channels=width)
        joined = _concat(build, f"join{end}_{step}", narrow, finer)
        top = build.add(f"refine{end}_{step}", Conv(), joined, channels=width)
    return top


def _auxiliary(build: PlanBuilder, trunks: list[list[str]], *, classes: int, width: int) -> dict[str, str]:
    """Add the train-only heads, and before the coarsest the unused attention of the fusion module."""
    middle = [maps[1] for maps in trunks if len(maps) > 1]
    sources: dict[int, str] = {}
    if middle:
        sources[16] = middle[0] if len(middle) == 1 else _concat(build, "aux_join", *middle)
    if len(trunks[0]) > 2:
        sources[32] = trunks[0][2]
    outputs = {}
    for rate, source in sources.items():
        if rate == max(sources):
            source = build.add("fusion_attention", UnreadAttention(width=width), source)
        outputs[f"aux{rate}"] = build.add(f"head{rate}", HiddenClassifier(), source, channels=classes)
    return outputs


def _concat(build: PlanBuilder, name: str, first: str, second: str) -> str:
    width = build.shape(first).channels + build.shape(second).channels
    return build.add(name, JOIN, first, second, channels=width)


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
            lead = (BranchCell(operator="conv", ratio=ratio),) * keep
            halve16 = BranchCell(operator=down16, ratio=ratio, stride=2)
            halve32 = BranchCell(operator=down32, ratio=ratio, stride=2)
            last = BranchCell(operator="conv", ratio=head)
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
