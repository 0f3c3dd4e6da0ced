"""All operators on all edges at all depths in one network (AutoRTNet sections 3.2 and 3.3).

A hyper-cell runs its cells one behind the other, each reading its own two predecessors; the depth decision only mixes
what leaves it: `out` from the exits, `second` from the cells before them. Mix at least two depths where depth is to be
learned: whatever reads `out` starts with ReLU, convolution and norm, which ignore a positive factor, so the gradient of
a single straight-through exit is zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from segtailor.core.errors import Unsupported
from segtailor.core.plan import OpCall, Operator, Plan, Shape
from segtailor.nets.mixed import Mixed, Price, mix, per_batch, scaled
from segtailor.nets.network import Network
from segtailor.nets.relax import Live, Weights
from segtailor.nets.supernet import (
    MixedPlan,
    Outputs,
    SupernetSettings,
    checked,
    freeze_affine,
    remaining_options,
    transfer_nodes,
)
from segtailor.ops import Concat, FactorisedReduction, Sum, Zero
from segtailor.spaces.hyper_cell.architecture import (
    AGGREGATION_OPS,
    CELL_OPS,
    EDGES,
    STAGES,
    AggregationOp,
    CellOp,
    HyperCellArchitecture,
)
from segtailor.spaces.hyper_cell.fused import FusedUnits
from segtailor.spaces.hyper_cell.layers import ADAPT, operator
from segtailor.spaces.hyper_cell.space import KINDS, HyperCell, cell_keys

STEM = ("stem1", "stem2")
ZERO = CELL_OPS.index("zero")


class HyperCellSupernet(nn.Module):
    """Stem, three hyper-cells of the greatest depth, aggregation cell, multi-scale module, classifier."""

    def __init__(self, space: HyperCell, image: Shape, classes: int, settings: SupernetSettings) -> None:
        super().__init__()
        self.space = space
        self.decisions = space.decisions
        plan = space.plan(space.architecture(_deepest(space)), image, classes)
        older, newer = (plan.shape(name) for name in STEM)
        self.stages = nn.ModuleList()
        for number in range(1, STAGES + 1):
            stage = HyperCellNet(space, number, older, newer, settings)
            older = newer = stage.supercells()[0].frame.output
            self.stages.append(stage)
        self.stem = nn.ModuleDict({name: plan.call(name).op.module(plan.call(name)) for name in STEM})
        self.stem_calls = [plan.call(name) for name in STEM]
        self.tail = _tail(space, plan, settings)
        self.align_corners = plan.align_corners

    def forward(self, image: Tensor, weights: Weights, live: Live | None = None) -> Outputs:
        """Return the logits at the stride of the aggregation cell's output."""
        known = checked(self.decisions, weights, live, images=len(image))
        older = self.stem["stem1"](image)
        newer = self.stem["stem2"](older)
        values = {}
        for stage in self._stages():
            older, newer = stage(older, newer, weights, known)
            values[stage.output] = newer
        outputs: Outputs = self.tail(values, weights, known)
        return outputs

    def cost(self, weights: Weights, price: Price) -> Tensor:
        """Return the expected cost of the whole network.

        A plan leaves out what nothing reads: the need for a map is followed from the aggregation cell back to the stem,
        as a probability. It is exact for one-hot weights; in between, edges count as independent.
        """
        one = next(iter(weights.values())).new_ones(())
        total = one * self.tail.fixed_cost(price)
        if self.tail.driven_by:
            total = total + self.tail.mixed_cost(weights, price)
        need_older, need_newer = 0 * one, 0 * one
        for stage in reversed(self._stages()):
            aggregated = one if stage.output in self.tail.inputs else 0 * one
            need_newer = _either(need_newer, aggregated)
            part, need_older, need_newer = stage.cost(weights, price, need_older, need_newer)
            total = total + part
        first, second = self.stem_calls
        return total + need_newer * price(second) + _either(need_older, need_newer) * price(first)

    def searched_cost(self, weights: Weights, price: Price) -> Tensor:
        """Return the paper's latency (equation 7): operators of kept cells, the aggregation cell left out."""
        return torch.stack([stage.operator_cost(weights, price) for stage in self._stages()]).sum()

    def transfer(self, arch: HyperCellArchitecture, network: Network) -> None:
        """Copy the weights that an architecture uses into its network."""
        modules = dict(self.stem.items()) | dict(self.tail.nodes.items())
        driven_by = dict(self.tail.driven_by)
        for stage in self._stages():
            modules |= stage.named_nodes()
            driven_by |= stage.driven_by()
        transfer_nodes(network, modules, picks=self.space.picks(arch), driven_by=driven_by)

    def remove(self, decision: str, option: int) -> None:
        """Drop an operator of an edge from every cell that shares the edge's decision."""
        mixed = self._mixed().get(decision)
        if not mixed:
            edges = ", ".join(list(self._mixed())[:3])
            raise Unsupported(f"nothing can be removed from '{decision}'; edges are called {edges}, ...")
        for one in mixed:
            one.remove(option)

    def remaining(self) -> dict[str, tuple[int, ...]]:
        """Return the options of every decision that were not removed."""
        return remaining_options(self.decisions, self._mixed())

    def _mixed(self) -> dict[str, list[Mixed]]:
        by_decision: dict[str, list[Mixed]] = {}
        for stage in self._stages():
            for cell in stage.supercells():
                for key, mixed in zip(cell.frame.keys, cell.mixed, strict=True):
                    by_decision.setdefault(key, []).append(mixed)
        for name, key in self.tail.driven_by.items():
            node = self.tail.nodes[name]
            by_decision[key] = [node] if isinstance(node, Mixed) else []
        return by_decision

    def _stages(self) -> list[HyperCellNet]:
        return [stage for stage in self.stages if isinstance(stage, HyperCellNet)]


class HyperCellNet(nn.Module):
    """A reduction cell and normal cells in a row; the depth decision mixes what leaves."""

    def __init__(
        self, space: HyperCell, number: int, older: Shape, newer: Shape, settings: SupernetSettings
    ) -> None:
        super().__init__()
        self.name = f"hyper{number}"
        self.depth_key = f"depth{number}"
        self.output = f"{self.name}_cell{space.depths[number - 1]}_out"  # in the plan of the deepest network
        width, entered = space.widths[number - 1], newer
        self.cells = nn.ModuleList()
        for position in range(1, space.depths[number - 1] + 1):
            keys = cell_keys("reduction" if position == 1 else "normal", number - 1)
            frame = CellFrame(older, newer, width, 2 if position == 1 else 1, position == 2, keys)
            self.cells.append(SuperCell(frame, settings))
            older, newer = newer, frame.output
        # Depth 1 leaves no cell before the exit: the next reduction cell reads what entered, brought to this scale.
        self.bridge_call = OpCall(op=FactorisedReduction(), inputs=(entered,), channels=2 * width)
        self.bridge = None if number == STAGES else self.bridge_call.op.module(self.bridge_call)

    def forward(self, older: Tensor, newer: Tensor, weights: Weights, live: Live) -> tuple[Tensor, Tensor]:
        """Return the second input of the next reduction cell and the output; cells behind the last exit do not run."""
        exits, depth = live[self.depth_key], weights[self.depth_key]
        before = self.bridge(newer) if self.bridge is not None and 0 in exits else None
        second: Tensor | None = None
        out: Tensor | None = None
        for index, cell in enumerate(self.supercells()[: max(exits) + 1]):
            made = cell(older, newer, weights, live)
            if index in exits:
                out = _plus(out, scaled(made, depth[..., index]))
                if before is not None:
                    second = _plus(second, scaled(before, depth[..., index]))
            older, newer = newer, made
            before = made if self.bridge is not None else None
        if out is None:
            raise Unsupported(f"every exit of '{self.depth_key}' has weight zero; keep at least one depth.")
        return (out if second is None else second), out

    def supercells(self) -> list[SuperCell]:
        """The cells in order."""
        return [cell for cell in self.cells if isinstance(cell, SuperCell)]

    def operator_cost(self, weights: Weights, price: Price) -> Tensor:
        """Return the sum over cells of (probability that the exit is there or behind) times (operators' price)."""
        keep = per_batch(weights[self.depth_key]).flip(0).cumsum(0).flip(0)
        costs = [cell.operator_cost(weights, price) for cell in self.supercells()[:2]]
        return costs[0] * keep[0] + (costs[1] * keep[1:].sum() if len(costs) > 1 else 0)

    def cost(
        self, weights: Weights, price: Price, need_second: Tensor, need_out: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the expected cost, and the needs for the older and the newer input."""
        cells, depth = self.supercells(), per_batch(weights[self.depth_key])
        needs = self._needs(weights, need_second, need_out)
        kept = [(depth[index:] * needs[: len(cells) - index]).sum() for index in range(len(cells))]
        costs = [cell.cost(weights, price) for cell in cells[:3]]
        total = torch.stack([kept[index] * costs[min(index, 2)] for index in range(len(cells))]).sum()
        if self.bridge is not None:  # a table has no price for one that does not exist
            total = total + depth[0] * need_second * price(self.bridge_call)
        older, newer = cells[0].reads(weights)
        # Needs of different depths exclude each other, so they add up; within one depth either reader suffices.
        need_newer = depth[0] * _either(
            needs[0] * newer, need_second if self.bridge is not None else 0 * newer
        )
        if len(cells) > 1:
            second_older, _ = cells[1].reads(weights)
            for index in range(1, len(cells)):
                readers = _either(needs[index] * newer, needs[index - 1] * second_older)
                need_newer = need_newer + depth[index] * readers
        return total, kept[0] * older, need_newer

    def _needs(self, weights: Weights, need_second: Tensor, need_out: Tensor) -> Tensor:
        """Return the probability that a cell is read, by its distance from the exit (0 is the exit itself)."""
        cells = self.supercells()
        needs = [need_out]
        if len(cells) > 1:
            older, newer = cells[1].reads(weights)
            needs.append(_either(need_second, need_out * newer))
            for _ in cells[2:]:
                needs.append(_either(needs[-1] * newer, needs[-2] * older))
        return torch.stack(needs)

    def named_nodes(self) -> dict[str, nn.Module]:
        """Return modules under the names of a plan's nodes."""
        nodes: dict[str, nn.Module] = {}
        for cell, name in self._named_cells():
            nodes |= {f"{name}_pre0": cell.pre0, f"{name}_pre1": cell.pre1}
            nodes |= {f"{name}_{edge}": mixed for edge, mixed in cell.edges.items()}
        if self.bridge is not None:
            nodes[f"{self.name}_bridge"] = self.bridge
        return nodes

    def driven_by(self) -> dict[str, str]:
        """Return which decision drives which node."""
        return {
            f"{name}_{edge}": key
            for cell, name in self._named_cells()
            for edge, key in zip(cell.edges, cell.frame.keys, strict=True)
        }

    def _named_cells(self) -> Iterator[tuple[SuperCell, str]]:
        for number, cell in enumerate(self.supercells(), start=1):
            yield cell, f"{self.name}_cell{number}"


class CellFrame(NamedTuple):
    """What is fixed about a cell; `keys` are the decisions of its edges."""

    older: Shape
    newer: Shape
    width: int
    stride: int
    finer: bool  # the older input is a scale finer than the newer
    keys: Sequence[str]

    @property
    def inner(self) -> Shape:
        """The shape of a node."""
        return self.newer.halved(self.width, self.stride)

    @property
    def output(self) -> Shape:
        """The shape of the cell's output."""
        return self.inner._replace(channels=2 * self.width)


class SuperCell(nn.Module):
    """Two adapted inputs, five mixed edges, two nodes that are joined."""

    def __init__(self, frame: CellFrame, settings: SupernetSettings) -> None:
        super().__init__()
        self.frame = frame
        older = FactorisedReduction() if frame.finer else ADAPT
        self.calls = {
            "pre0": OpCall(op=older, inputs=(frame.older,), channels=frame.width),
            "pre1": OpCall(op=ADAPT, inputs=(frame.newer,), channels=frame.width),
        }
        self.pre0, self.pre1 = (call.op.module(call) for call in self.calls.values())
        self.edges = nn.ModuleDict()
        for source, target in EDGES:
            stride = frame.stride if source < 2 else 1
            shape = self.calls[f"pre{source}"].output() if source < 2 else frame.inner
            self.edges[f"edge{source}{target}"] = mixed_edge(
                CELL_OPS, shape, stride=stride, settings=settings
            )

    def forward(self, older: Tensor, newer: Tensor, weights: Weights, live: Live) -> Tensor:
        """Run the cell; edges that leave one node run together."""
        maps = {0: self.pre0(older), 1: self.pre1(newer)}
        sums: dict[int, Tensor] = {}
        for node in (0, 1, 2):
            source = sums[2] if node == 2 else maps[node]
            leaving = [index for index, (start, _) in enumerate(EDGES) if start == node]
            mixes = [self.mixed[index] for index in leaving]
            keys = [self.frame.keys[index] for index in leaving]
            outputs = mix(mixes, source, [weights[key] for key in keys], [live[key] for key in keys])
            for index, output in zip(leaving, outputs, strict=True):
                target = EDGES[index][1]
                sums[target] = sums[target] + output if target in sums else output
        return torch.cat([sums[2], sums[3]], dim=1)

    @property
    def mixed(self) -> list[Mixed]:
        """The mixed operators in the order of the edges."""
        return [edge for edge in self.edges.values() if isinstance(edge, Mixed)]

    def operator_cost(self, weights: Weights, price: Price) -> Tensor:
        """Return the expected price of the edges (AutoRTNet equation 4)."""
        rows = zip(self.mixed, self.frame.keys, strict=True)
        return torch.stack([mixed.expected_price(weights[key], price) for mixed, key in rows]).sum()

    def cost(self, weights: Weights, price: Price) -> Tensor:
        """Return the expected price of everything that a plan has of this cell: see `_structure_cost`."""
        return self.operator_cost(weights, price) + self._structure_cost(self.zeros(weights), price)

    def zeros(self, weights: Weights) -> list[Tensor]:
        """Return the probability of `zero` for each edge."""
        return [per_batch(weights[key])[ZERO] for key in self.frame.keys]

    def _structure_cost(self, zeros: Sequence[Tensor], price: Price) -> Tensor:
        """Price inputs that some edge reads, sums of two or three terms, blank nodes and the concatenation."""
        frame, (z02, z12, z03, z13, z23) = self.frame, zeros
        two, three = (_call(Sum(), *[frame.inner] * terms, channels=frame.width) for terms in (2, 3))
        blank = _call(Zero(), frame.newer, channels=frame.width, stride=frame.stride)
        concat = _call(Concat(), frame.inner, frame.inner, channels=2 * frame.width)
        e03, e13, e23 = 1 - z03, 1 - z13, 1 - z23
        pairs = (1 - z02) * (1 - z12) + e03 * e13 * z23 + e03 * z13 * e23 + z03 * e13 * e23
        return (
            (1 - z02 * z03) * price(self.calls["pre0"])
            + (1 - z12 * z13) * price(self.calls["pre1"])
            + pairs * price(two)
            + e03 * e13 * e23 * price(three)
            + (z02 * z12 + z03 * z13 * z23) * price(blank)
            + price(concat)
        )

    def reads(self, weights: Weights) -> tuple[Tensor, Tensor]:
        """Return the probabilities that the older and the newer input are read at all; blank nodes read the newer."""
        z02, z12, z03, z13, z23 = self.zeros(weights)
        return 1 - z02 * z03, 1 - z12 * z13 * (1 - z02) * (1 - z03 * z23)


def _tail(space: HyperCell, plan: Plan, settings: SupernetSettings) -> MixedPlan:
    """Build what reads the hyper-cells: aggregation cell, multi-scale module, classifier."""
    names = [node.name for node in plan.nodes if node.name not in STEM and not node.name.startswith("hyper")]
    links = () if space.wiring is None else space.wiring.links
    driven_by, mixed = {}, {}
    for link, key in zip(links, space.aggregation_keys(), strict=True):
        name = f"agg_edge_{link.src}_{link.dst}"
        driven_by[name] = key
        source = plan.call(name).source
        mixed[name] = mixed_edge(AGGREGATION_OPS, source, stride=link.stride, settings=settings)
    return MixedPlan(plan, mixed, driven_by=driven_by, only=names)


def mixed_edge(
    options: Sequence[CellOp | AggregationOp], source: Shape, *, stride: int, settings: SupernetSettings
) -> Mixed:
    """Build all operators of one edge; `zero` is not part of any plan and costs nothing."""
    calls: Mapping[str, OpCall | None] = {
        name: None
        if name == "zero"
        else _call(operator(name, stride=stride), source, channels=source.channels, stride=stride)
        for name in options
    }
    mixed = Mixed(
        calls,
        fuse=None if settings.kernels is None else FusedUnits(settings.kernels),
        recompute=settings.recompute,
    )
    if not settings.affine:
        freeze_affine(mixed)
    return mixed


def _call(op: Operator, *inputs: Shape, channels: int, stride: int = 1) -> OpCall:
    return OpCall(op=op, inputs=inputs, channels=channels, stride=stride)


def _deepest(space: HyperCell) -> dict[str, int]:
    """Return picks of the deepest network, with an operator on every edge so that its plan has every node."""
    busy = CELL_OPS.index("conv3")
    picks = {decision.name: len(decision.options) - 1 for decision in space.decisions}
    return picks | {key: busy for stage in range(STAGES) for kind in KINDS for key in cell_keys(kind, stage)}


def _either(one: Tensor, other: Tensor) -> Tensor:
    """Return the probability of at least one of two events, taken as independent."""
    return one + other - one * other


def _plus(total: Tensor | None, term: Tensor) -> Tensor:
    return term if total is None else total + term
