"""The operators and layers of the family: stem, cells, hyper-cells, aggregation cell, multi-scale module, classifier.

Operators of cells are pre-activation units as in DARTS and SNAS (AutoRTNet section 3.1): ReLU, convolution, norm; a
stride sits on the first one. Node names are regular, so that the shared weights of a search can be matched to them:
`stem1`, `lead2_out`, `hyper1_cell2_pre0`, `hyper1_cell2_edge13`, `hyper1_bridge`, `agg_edge_H1_N1`, `context_rate6`,
`classifier`.
"""

from __future__ import annotations

from typing import NamedTuple

from segtailor.core.plan import IMAGE, Operator, Plan, PlanBuilder, Shape
from segtailor.ops import (
    Concat,
    Conv,
    FactorisedReduction,
    Identity,
    MaxPool,
    PooledConv,
    Separable,
    Sum,
    Zero,
)
from segtailor.spaces.hyper_cell.architecture import (
    EDGES,
    INPUTS,
    Aggregation,
    AggregationOp,
    CellOp,
    EdgeOps,
    HyperCellArchitecture,
    HyperCellStage,
    MultiScale,
)

ADAPT = Conv(kernel=1, first=True)  # brings an input to the node width
_OPERATORS: dict[CellOp | AggregationOp, Operator] = {
    "zero": Zero(),
    "skip": Identity(),
    "maxpool3": MaxPool(),
    "conv3": Conv(first=True),
    "conv3_x2": Conv(repeats=2, first=True),
    "sep3": Separable(first=True),
    "sep3_x2": Separable(repeats=2, first=True),
    "dsep3_d2": Separable(dilation=2, first=True),
    "dsep3_d4": Separable(dilation=4, first=True),
    "dsep3_d2_x2": Separable(dilation=2, repeats=2, first=True),
    "conv1_x2": Conv(kernel=1, repeats=2, first=True),
    "dsep3_d4_x2": Separable(dilation=4, repeats=2, first=True),
    "dsep3_d8_x2": Separable(dilation=8, repeats=2, first=True),
}


def network_plan(arch: HyperCellArchitecture, image: Shape, classes: int) -> Plan:
    """Write the whole network; what `zero` operators leave unread is not part of it."""
    build = PlanBuilder(image)
    first = build.add("stem1", Conv(activation="none"), IMAGE, channels=arch.stem, stride=2)
    latest = LatestMaps(first, build.add("stem2", Conv(first=True), first))
    for number in range(1, arch.lead + 1):
        made = _cell(build, f"lead{number}", arch.stages[0].normal, latest, width=arch.stem)
        latest = LatestMaps(latest.newer, made)
    outputs = []
    for number, stage in enumerate(arch.stages, start=1):
        latest = _hyper_cell(build, f"hyper{number}", stage, latest, bridge=arch.bridge)
        outputs.append(latest.newer)
    joined = outputs[-1] if arch.aggregation is None else _aggregation(build, arch.aggregation, outputs)
    features = _multi_scale(build, arch.context, joined)
    classifier = Conv(kernel=1, norm=False, bias=True, activation="none")
    main = build.add("classifier", classifier, features, channels=classes)
    return build.plan(outputs={"main": main}, align_corners=False).select()


def operator(name: CellOp | AggregationOp, *, stride: int) -> Operator:
    """Return the operator of an edge; a `skip` that must halve the map is a factorised reduction."""
    return FactorisedReduction() if name == "skip" and stride == 2 else _OPERATORS[name]


class LatestMaps(NamedTuple):
    """The two latest maps; `finer` tells that the older one is a scale finer than the newer."""

    older: str
    newer: str
    finer: bool = False


def _hyper_cell(
    build: PlanBuilder, name: str, stage: HyperCellStage, latest: LatestMaps, *, bridge: bool
) -> LatestMaps:
    """Add a hyper-cell; return what the next reduction cell reads."""
    entered = latest.newer
    made = _cell(build, f"{name}_cell1", stage.reduction, latest, width=stage.width, stride=2)
    if stage.depth == 1 and bridge:
        older = build.add(f"{name}_bridge", FactorisedReduction(), entered, channels=2 * stage.width)
        return LatestMaps(older, made)
    latest = LatestMaps(entered, made, finer=True)
    for number in range(2, stage.depth + 1):
        latest = LatestMaps(
            latest.newer, _cell(build, f"{name}_cell{number}", stage.normal, latest, width=stage.width)
        )
    return latest


def _cell(
    build: PlanBuilder, name: str, cell: EdgeOps, latest: LatestMaps, *, width: int, stride: int = 1
) -> str:
    maps = {
        0: build.add(
            f"{name}_pre0", FactorisedReduction() if latest.finer else ADAPT, latest.older, channels=width
        ),
        1: build.add(f"{name}_pre1", ADAPT, latest.newer, channels=width),
    }
    for node in (2, 3):
        terms = []
        for (source, target), choice in zip(EDGES, cell, strict=True):
            if target == node and choice != "zero":
                step = stride if source < 2 else 1
                op = operator(choice, stride=step)
                terms.append(build.add(f"{name}_edge{source}{target}", op, maps[source], stride=step))
        if not terms:  # reads the raw input: it needs a size, not the work of the adaptation
            maps[node] = build.add(f"{name}_node{node}", Zero(), latest.newer, channels=width, stride=stride)
        else:
            maps[node] = _sum(build, f"{name}_node{node}", terms)
    return build.add(f"{name}_out", Concat(), maps[2], maps[3], channels=2 * width)


def _aggregation(build: PlanBuilder, aggregation: Aggregation, outputs: list[str]) -> str:
    wiring = aggregation.wiring
    maps = {
        key: build.add(f"agg_pre_{key}", ADAPT, source, channels=wiring.width)
        for key, source in zip(INPUTS, outputs, strict=True)
    }
    choices = dict(zip(wiring.links, aggregation.operators, strict=True))
    # A node is read only after its last edge, so nodes can be finished in the order of their last edges.
    for node in (link.dst for link in wiring.links if link == wiring.incoming(link.dst)[-1]):
        links = wiring.incoming(node)
        terms = [
            build.add(
                f"agg_edge_{link.src}_{link.dst}",
                operator(choices[link], stride=link.stride),
                maps[link.src],
                stride=link.stride,
            )
            for link in links
        ]
        reached = [wiring.strides[link.src] * link.stride for link in links]
        maps[node] = _sum(build, f"agg_node_{node}", terms, like=reached.index(min(reached)))
    like = wiring.finals.index(wiring.like)
    finals = [maps[node] for node in wiring.finals]
    return build.add("agg_out", Concat(like=like), *finals, channels=wiring.width * len(finals))


def _multi_scale(build: PlanBuilder, context: MultiScale, source: str) -> str:
    branches = [build.add("context_point", Conv(kernel=1), source, channels=context.branch)]
    for rate in context.rates:
        op = Separable(dilation=rate)
        branches.append(build.add(f"context_rate{rate}", op, source, channels=context.branch))
    # No norm behind the pooling: one training image has no batch statistics of a single pixel.
    pooled = PooledConv(norm=False, bias=True)
    branches.append(build.add("context_pool", pooled, source, channels=context.branch))
    joined = build.add("context_join", Concat(), *branches, channels=context.branch * len(branches))
    return build.add("context_project", Conv(kernel=1), joined, channels=context.output)


def _sum(build: PlanBuilder, name: str, terms: list[str], *, like: int = 0) -> str:
    return terms[0] if len(terms) == 1 else build.add(name, Sum(like=like), *terms)
