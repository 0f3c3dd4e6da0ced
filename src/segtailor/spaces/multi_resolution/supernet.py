"""All operators, paths and widths in one network, with a stem and heads for each set (FasterSeg section 3.1).

Cells with two inputs run once for each and their results are mixed, as the release does; `mix_inputs` mixes before, as
the paper writes, at half the cost. Skips that keep the resolution are 1x1 convolutions here, and a derived network has
none of them; it also joins maps of its own branch where the supernet joins those of its last layer. So derived networks
take over the weights of stems and cells only.

The relaxed latency is that of section 3.3, without the faults of the release: the cost of reaching a cell is that of
its inputs in proportion, and the latency is the sum over the ends of all scales, the head left out. Widths enter as a
pairwise expectation, which for one-hot rows is the entry of exactly these two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn

from segtailor.core.errors import MissingCost, Unsupported
from segtailor.core.plan import OpCall, Operator, Shape
from segtailor.nets.mixed import Price, per_batch, scaled
from segtailor.nets.network import Network
from segtailor.nets.relax import Live, Weights
from segtailor.nets.supernet import Outputs, SupernetSettings, checked
from segtailor.ops import Conv, FactorisedReduction, Identity
from segtailor.ops.convolutions import HiddenClassifier
from segtailor.ops.modules.combining import resized
from segtailor.ops.modules.convolutions import Zoomed
from segtailor.spaces.multi_resolution.architecture import RATES, MultiResolutionArchitecture
from segtailor.spaces.multi_resolution.grid import FRAME, OPTIONS, Grid, GridCell, Slot, output_name
from segtailor.spaces.multi_resolution.layers import OPERATORS_BY_NAME, network_plan
from segtailor.spaces.multi_resolution.slim import CellWidths, SlimCell, SlimFrame, SlimMixed, Width, fixed
from segtailor.spaces.multi_resolution.slim_fused import (
    Application,
    FusedPass,
    PassLayout,
    compiled_relu_sum,
    relu_sum,
)

if TYPE_CHECKING:
    from segtailor.spaces.multi_resolution.space import MultiResolution

SIDE_MULTIPLE = 32  # of image sides: on others a strided convolution rounds up and a zoomed one down
ANY_SIZE = (8, 8)  # modules do not depend on the size of maps
# Cells of one kind share a table of prices: scale, who writes what they read, who reads what they write, stride.
Kind: TypeAlias = tuple[int, str, str, int]
SKIPS: dict[int, Operator] = {1: Identity(), 2: FactorisedReduction(first=False)}


@dataclass(frozen=True, kw_only=True)
class MultiResolutionSettings(SupernetSettings):
    """How this family's supernet computes, besides the general settings.

    `matrices` resizes by matrix products. `mix_inputs` runs a cell once on the mix of its inputs, which changes
    results. `width_gradient` says how widths learn from data: through the values of all norms (`norms`), which tells
    widths apart and needs `masked`, or by the score of the drawn one (`score`, as FasterSeg writes), whose gradient the
    norm behind the next convolution removes.
    """

    masked: bool = True

    matrices: bool = False
    mix_inputs: bool = False
    width_gradient: Literal["score", "norms"] = "norms"

    def __post_init__(self) -> None:
        if self.width_gradient == "norms" and not self.masked:
            raise Unsupported(
                "supernet.width_gradient: norms of all widths need supernet.masked; set it, or use score."
            )

    @classmethod
    def of(cls, settings: SupernetSettings | None) -> MultiResolutionSettings:
        """Return settings of this family: general ones get the defaults for the rest."""
        if isinstance(settings, cls):
            return settings
        if settings is None:
            return cls()
        return cls(**vars(settings), width_gradient="norms" if settings.masked else "score")


class MultiResolutionSupernet(nn.Module):
    """Stems, cells at all scales of all layers, heads. `space` is only needed to derive networks."""

    def __init__(
        self,
        grid: Grid,
        image: Shape,
        classes: int,
        settings: MultiResolutionSettings,
        *,
        space: MultiResolution | None = None,
    ) -> None:
        super().__init__()
        self.grid, self.settings, self.space = grid, settings, space
        self.image, self.classes = image, classes
        self.decisions = grid.decisions
        self.align_corners = True
        self.relaxed = RelaxedCost(grid, image)
        self.stems = nn.ModuleList(_stem(ratio) for ratio, _ in grid.sets)
        self.cells = nn.ModuleDict({_key(cell): self._cell(cell) for cell in grid.cells})
        self.ends = nn.ModuleList(Ends(grid, ratio, classes) for _, ratio in grid.sets)
        self._layouts: dict[object, PassLayout] = {}
        self._add = compiled_relu_sum() if settings.compiled else relu_sum

    def forward(self, image: Tensor, weights: Weights, live: Live | None = None) -> Outputs:
        """Return every output at rate 8. The set must be definite; widths definite, or one-hot rows of the device."""
        known = checked(self.decisions, weights, live, images=len(image))
        if any(side % SIDE_MULTIPLE for side in image.shape[2:]):
            size = "x".join(map(str, image.shape[2:]))
            raise Unsupported(
                f"the image is {size}; the supernet needs sides that are multiples of {SIDE_MULTIPLE}."
            )
        least = len(image) * math.prod(
            max(1, side // (2 * RATES[self.grid.scales - 1])) for side in image.shape[2:]
        )
        if self.training and least < 2:
            raise Unsupported(
                "one image of this size leaves a single pixel at the coarsest scale, which has no statistics to train "
                "with; use a larger crop or batch."
            )
        if len(known[FRAME]) != 1:
            raise Unsupported(
                f"'{FRAME}' has {len(known[FRAME])} options at once; a role must fix one of them."
            )
        frame = known[FRAME][0]
        outputs: Outputs = self.ends[frame](self.trunk(self.stems[frame](image), weights, known))
        return outputs

    def trunk(self, start: Tensor, weights: Weights, known: Live) -> list[Tensor]:
        """Return the last map of every scale, finest first."""
        uses = {cell: self._uses(cell, weights, known) for cell in self.grid.cells}
        full = all(len(known[cell.operator]) == len(OPTIONS) for cell in self.grid.cells)
        fused = None
        if self.settings.fused and full:
            fused = FusedPass(
                [use for row in uses.values() for use in row],
                layouts=self._layouts,
                add=self._add,
                matrices=self.settings.matrices,
            )
        made: dict[tuple[GridCell, int], Tensor] = {}
        number = 0
        for cell in self.grid.cells:
            sources = [made[source, cell.scale - source.scale] for source in self.grid.sources(cell)] or [
                start
            ]
            if len(sources) > len(uses[cell]):
                sources = [_mixed(sources, weights[cell.entry])]
            sums: list[Tensor | None] = [None, None]
            for maps, use in zip(sources, uses[cell], strict=True):
                results = fused(number, maps) if fused else _plain(use, maps, known[cell.operator])
                sums = [_plus(total, part) for total, part in zip(sums, results, strict=True)]
                number += 1
            made |= {(cell, stride): total for stride, total in enumerate(sums) if total is not None}
        if fused:
            fused.finish()
        return [made[GridCell(self.grid.layers - 1, scale), 0] for scale in range(self.grid.scales)]

    def cost(self, weights: Weights, price: Price) -> Tensor:
        """Return the mean cost of the networks that the weights derive to, one for each pair of ends; no gradient."""
        if self.space is None:
            raise Unsupported("a supernet without its space derives no networks, so these have no cost.")
        rows = {name: per_batch(row).tolist() for name, row in weights.items()}
        costs = [
            sum(map(price, network_plan(arch, self.image, self.classes).calls))
            for arch in self.space.derived(rows).values()
        ]
        return next(iter(weights.values())).new_tensor(sum(costs) / len(costs))

    def searched_cost(self, weights: Weights, price: Price) -> Tensor:
        """Return the relaxed latency of stem and cells: the sum over the ends of all scales."""
        return self.relaxed(weights, price)

    @torch.no_grad()
    def transfer(self, arch: MultiResolutionArchitecture, network: Network) -> None:
        """Copy stem and cells into a network; layers of its head have other inputs than here and stay as they are."""
        if self.space is None:
            raise Unsupported("a supernet without its space cannot place the cells of an architecture.")
        frame = self.grid.sets.index((arch.stem_ratio, arch.head_ratio))
        for number, part in enumerate(cast(nn.Sequential, self.stems[frame])):
            network.nodes[f"stem{number}"].load_state_dict(part.state_dict())
        for slot in self.space.slots(arch):
            cell = cast(SlimCell, self.cells[_key(slot.cell)])
            mixed = cell.down if slot.stride == 2 else cell.same
            if mixed is not None:
                _copy(mixed, network.nodes[slot.name], slot)

    def remove(self, decision: str, option: int) -> None:
        """Refuse: operators of a cell share convolutions, so none can go alone."""
        raise Unsupported(
            f"option {option} of '{decision}' cannot be removed from this supernet; set remove_below to 0."
        )

    def remaining(self) -> dict[str, tuple[int, ...]]:
        """Return all options: none can be removed."""
        return {row.name: tuple(range(len(row.options))) for row in self.decisions}

    def _cell(self, cell: GridCell) -> SlimCell:
        most = max(ratio for ratio, _ in self.grid.sets) if cell.layer == 0 else self.grid.ratios[-1]
        reads = cell.rate * most
        below, beside = self.grid.below(cell), self.grid.beside(cell)
        same = _channels(cell.scale, self._heads if below is None else self.grid.ratios)
        down = None if beside is None else _channels(beside.scale, self.grid.ratios)
        return SlimCell(
            SlimFrame(inputs=reads, outputs=same, stride=1),
            None if down is None else SlimFrame(inputs=reads, outputs=down, stride=2),
        )

    def _uses(self, cell: GridCell, weights: Weights, known: Live) -> list[Application]:
        """Return what a cell does: once, or once for each of its inputs."""
        below, beside = self.grid.below(cell), self.grid.beside(cell)
        widths = CellWidths(
            inputs=self._arriving(cell, weights, known),
            same=self._head(cell, known) if below is None else self._arriving(below, weights, known),
            down=None if beside is None else self._arriving(beside, weights, known),
        )
        module = cast(SlimCell, self.cells[_key(cell)])
        use = Application(cell=module, widths=widths, weights=weights[cell.operator])
        if not self.grid.has_choice(cell) or self.settings.mix_inputs:
            return [use]
        return [replace(use, entry=(weights[cell.entry], option)) for option in range(2)]

    def _arriving(self, cell: GridCell, weights: Weights, known: Live) -> Width:
        """Return the width of what arrives at a cell."""
        if cell.layer == 0:
            return fixed(cell.rate * self.grid.sets[known[FRAME][0]][0])
        options = known[cell.width]
        return Width(
            channels=_channels(cell.scale, self.grid.ratios),
            index=options[0] if len(options) == 1 else None,
            row=weights[cell.width],
            through_norms=self.settings.width_gradient == "norms",
        )

    def _head(self, cell: GridCell, known: Live) -> Width:
        """Return the width that a cell of the last layer writes."""
        ratio = self.grid.sets[known[FRAME][0]][1]
        return Width(channels=_channels(cell.scale, self._heads), index=self._heads.index(ratio))

    @property
    def _heads(self) -> tuple[int, ...]:
        return tuple(sorted({ratio for _, ratio in self.grid.sets}))


class Ends(nn.Module):
    """From the last maps of all scales to the outputs; on its way up a coarse map is joined with the finer ones."""

    def __init__(self, grid: Grid, ratio: int, classes: int) -> None:
        super().__init__()
        self.outputs = grid.outputs
        self.arms, self.refines = nn.ModuleDict(), nn.ModuleDict()
        for scale in range(1, grid.scales):
            for step, finer in enumerate(reversed(range(scale))):
                name = f"{RATES[scale]}_{step}"
                above, here = RATES[finer + 1] * ratio, RATES[finer] * ratio
                self.arms[name] = _module(Conv(kernel=1), above, here)
                self.refines[name] = _module(Conv(), 2 * here, here)
        self.heads = nn.ModuleDict(
            {
                output_name(rates): _module(HiddenClassifier(), len(rates) * RATES[0] * ratio, classes)
                for rates in grid.outputs
            }
        )

    def forward(self, lasts: Sequence[Tensor]) -> Outputs:
        """Return all outputs at the finest rate."""
        climbed = {RATES[scale]: self._climb(lasts, scale) for scale in range(len(lasts))}
        return {
            output_name(rates): self.heads[output_name(rates)](
                torch.cat([climbed[rate] for rate in rates], dim=1)
            )
            for rates in self.outputs
        }

    def _climb(self, lasts: Sequence[Tensor], scale: int) -> Tensor:
        top = lasts[scale]
        for step, finer in enumerate(reversed(lasts[:scale])):
            name = f"{RATES[scale]}_{step}"
            up = resized(self.arms[name](top), finer.shape[2:], align_corners=True)
            top = self.refines[name](torch.cat([up, finer], dim=1))
        return top


class RelaxedCost:
    """Expected cost of stem and cells under weights; tables of prices are made once for a price and a device."""

    def __init__(self, grid: Grid, image: Shape) -> None:
        self.grid = grid
        self.sizes = [image]
        for _ in range(2 + self.grid.scales):
            self.sizes.append(self.sizes[-1].halved(1, 2))
        self._prices: CellPrices | None = None

    def __call__(self, weights: Weights, price: Price) -> Tensor:
        """Return the sum over the scales of the cost to the end of each."""
        return torch.stack(self.branches(weights, price)).sum()

    def branches(self, weights: Weights, price: Price) -> list[Tensor]:
        """Return the cost to the end of every scale, finest first."""
        rows = {name: per_batch(row) for name, row in weights.items()}
        device = rows[FRAME].device
        if self._prices is None or self._prices.price != price or self._prices.stems.device != device:
            self._prices = self._tables(price, device)
        prices = self._prices
        expected = self._mixed(rows, prices)
        same: dict[GridCell, Tensor] = {}
        down: dict[GridCell, Tensor] = {}
        for cell in self.grid.cells:
            reached = self._reached(cell, rows, same=same, down=down, prices=prices)
            same[cell] = reached + expected[cell, 1]
            if (cell, 2) in expected:
                down[cell] = reached + expected[cell, 2]
        return [same[GridCell(self.grid.layers - 1, scale)] for scale in range(self.grid.scales)]

    def _reached(
        self,
        cell: GridCell,
        rows: Weights,
        *,
        same: Mapping[GridCell, Tensor],
        down: Mapping[GridCell, Tensor],
        prices: CellPrices,
    ) -> Tensor:
        costs = [(down if source.scale < cell.scale else same)[source] for source in self.grid.sources(cell)]
        if not costs:
            return (rows[FRAME] * prices.stems.to(rows[FRAME].dtype)).sum()
        return costs[0] if len(costs) == 1 else (rows[cell.entry] * torch.stack(costs)).sum()

    def _mixed(self, rows: Weights, prices: CellPrices) -> dict[tuple[GridCell, int], Tensor]:
        """Return the expected price of each cell at both strides; cells that share a table are priced together."""
        expected: dict[tuple[GridCell, int], Tensor] = {}
        for key, members in self._kinds().items():
            stride = key[3]
            operators, reads, writes = [], [], []
            for cell in members:
                target = self.grid.below(cell) if stride == 1 else self.grid.beside(cell)
                operators.append(rows[cell.operator])
                reads.append(rows[FRAME] if cell.layer == 0 else rows[cell.width])
                writes.append(rows[FRAME] if target is None else rows[target.width])
            stacked = [torch.stack(row) for row in (operators, reads, writes)]
            table = prices.tables[key].to(stacked[0].dtype)
            costs = torch.einsum("nk,ni,no,kio->n", *stacked, table).unbind()
            expected |= {(cell, stride): cost for cell, cost in zip(members, costs, strict=True)}
        return expected

    def _kinds(self) -> dict[Kind, list[GridCell]]:
        kinds: dict[Kind, list[GridCell]] = {}
        for cell in self.grid.cells:
            read = "stem" if cell.layer == 0 else "cell"
            written = "head" if self.grid.below(cell) is None else "cell"
            kinds.setdefault((cell.scale, read, written, 1), []).append(cell)
            if self.grid.beside(cell) is not None:
                kinds.setdefault((cell.scale, read, "cell", 2), []).append(cell)
        return kinds

    def _tables(self, price: Price, device: torch.device) -> CellPrices:
        stems, heads = ([pair[side] for pair in self.grid.sets] for side in (0, 1))
        ratios = {"stem": stems, "head": heads, "cell": list(self.grid.ratios)}
        tables = {}
        for kind in self._kinds():
            scale, read, written, stride = kind
            values = self._table(price, scale, ratios[read], ratios[written], stride=stride)
            tables[kind] = torch.tensor(values, dtype=torch.float64, device=device)
        stem_prices = torch.tensor(
            [self._stem(price, ratio) for ratio in stems], dtype=torch.float64, device=device
        )
        return CellPrices(price, stem_prices, tables)

    def _table(
        self, price: Price, scale: int, reads: list[int], writes: list[int], *, stride: int
    ) -> list[list[list[float]]]:
        rate, size = RATES[scale], self.sizes[3 + scale]
        table = []
        for name in OPTIONS:
            table.append(
                [
                    [
                        _price(
                            price, name, size._replace(channels=rate * read), rate * stride * write, stride
                        )
                        for write in writes
                    ]
                    for read in reads
                ]
            )
        return table

    def _stem(self, price: Price, ratio: int) -> float:
        total, width = 0.0, self.sizes[0].channels
        for number, (repeats, channels) in enumerate(((1, 4 * ratio), (2, 8 * ratio), (2, 8 * ratio))):
            source = self.sizes[number]._replace(channels=width)
            total += price(OpCall(op=Conv(repeats=repeats), inputs=(source,), channels=channels, stride=2))
            width = channels
        return total


class CellPrices(NamedTuple):
    """Prices on one device: (operators, read widths, written widths) by kind of cell, and of stems by set."""

    price: Price
    stems: Tensor
    tables: Mapping[Kind, Tensor]


def _stem(ratio: int) -> nn.Sequential:
    """Build the stem of a set; the last halving keeps the channels (release)."""
    return nn.Sequential(
        _module(Conv(), 3, 4 * ratio, stride=2),
        _module(Conv(repeats=2), 4 * ratio, 8 * ratio, stride=2),
        _module(Conv(repeats=2), 8 * ratio, 8 * ratio, stride=2),
    )


def _module(op: Operator, inputs: int, outputs: int, *, stride: int = 1) -> nn.Module:
    call = OpCall(op=op, inputs=(Shape(inputs, *ANY_SIZE),), channels=outputs, stride=stride)
    module: nn.Module = op.module(call)
    return module


def _plain(use: Application, image: Tensor, keep: Sequence[int]) -> tuple[Tensor, Tensor | None]:
    """Run operator after operator: what the fused pass must equal."""
    same, down = use.cell(image, use.weights, keep, widths=use.widths)
    if use.entry is None:
        return same, down
    factor = use.entry[0][use.entry[1]]
    return scaled(same, factor), None if down is None else scaled(down, factor)


def _mixed(maps: Sequence[Tensor], row: Tensor) -> Tensor:
    return scaled(maps[0], row[0]) + scaled(maps[1], row[1])


def _plus(total: Tensor | None, part: Tensor | None) -> Tensor | None:
    return part if total is None or part is None else total + part


@torch.no_grad()
def _copy(mixed: SlimMixed, target: nn.Module, slot: Slot) -> None:
    """Copy the used part of an operator: kernels by the channels of the target, norms by the written width."""
    source = mixed.operators[slot.operator]
    goals = dict(target.named_modules())
    prefix = "stack." if isinstance(target, Zoomed) else ""
    for number in (1, 2):
        conv, norm = getattr(source, f"conv{number}"), getattr(source, f"norm{number}", None)
        if conv is None or norm is None:
            continue
        kernel, values = goals[f"{prefix}conv{number}"], goals[f"{prefix}norm{number}"]
        wide = cast(Tensor, kernel.weight)
        wide.copy_(conv.weight[: wide.shape[0], : wide.shape[1]])
        here = (norm.channels.index(wide.shape[0]), slice(0, wide.shape[0]))
        for name in ("weight", "bias", "running_mean", "running_var"):
            cast(Tensor, getattr(values, name)).copy_(getattr(norm, name)[here])


def _key(cell: GridCell) -> str:
    return f"layer{cell.layer}_{cell.rate}"


def _channels(scale: int, ratios: Sequence[int]) -> tuple[int, ...]:
    return tuple(RATES[scale] * ratio for ratio in ratios)


def _price(price: Price, name: str, source: Shape, channels: int, stride: int) -> float:
    """Price an operator. A table made from networks has no skips: those at stride 1 vanish, the others are replaced."""
    if name != "skip":
        op = OPERATORS_BY_NAME[name]  # type: ignore[index]
        return price(OpCall(op=op, inputs=(source,), channels=channels, stride=stride))
    try:
        return price(OpCall(op=SKIPS[stride], inputs=(source,), channels=channels, stride=stride))
    except MissingCost:
        if stride == 1:
            return 0.0
        others = (_price(price, other, source, channels, stride) for other in OPTIONS[1:])
        return min(others, default=math.inf)
