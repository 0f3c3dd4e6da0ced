"""All operators, paths and widths in one network, with a stem and heads for each set (FasterSeg section 3.1).

Cells with two inputs run once for each and their results are mixed, as the release does; `mix_inputs` mixes before, as
the paper writes, at half the cost. Skips that keep the resolution are 1x1 convolutions here and vanish when derived,
and a derived network joins maps of its own branch where the supernet joins those of its last layer: what is shared
with derived networks are stems and cells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from segtailor.core.errors import Unsupported
from segtailor.core.plan import Shape
from segtailor.nets.mixed import Price, per_batch, scaled
from segtailor.nets.network import Network
from segtailor.nets.relax import Live, Weights
from segtailor.nets.slim import Width, fixed
from segtailor.nets.slim_fused import Application, FusedPass, Layout
from segtailor.nets.slim_kernels import compiled_relu_sum, relu_sum
from segtailor.nets.slim_ops import CellWidths, SlimCell, SlimFrame, SlimMixed
from segtailor.nets.supernet import Outputs, SupernetSettings, checked
from segtailor.ops.modules.convolutions import Zoomed
from segtailor.spaces.multi_resolution.architecture import MultiResolutionArchitecture
from segtailor.spaces.multi_resolution.grid import FRAME, OPTIONS, Grid, Place, Slot
from segtailor.spaces.multi_resolution.layers import network_plan
from segtailor.spaces.multi_resolution.paths import RATES
from segtailor.spaces.multi_resolution.relaxed_cost import RelaxedCost
from segtailor.spaces.multi_resolution.supernet_ends import Ends, stem

if TYPE_CHECKING:
    from segtailor.spaces.multi_resolution.space import MultiResolution

MULTIPLE = 32  # of image sides: on others a strided convolution rounds up and a zoomed one down


class MultiResolutionSupernet(nn.Module):
    """Stems, cells at all scales of all layers, heads. `space` is only needed to derive networks."""

    def __init__(
        self,
        grid: Grid,
        image: Shape,
        classes: int,
        settings: SupernetSettings,
        *,
        space: MultiResolution | None = None,
    ) -> None:
        super().__init__()
        self.grid, self.settings, self.space = grid, settings, space
        self.image, self.classes = image, classes
        self.decisions = grid.decisions
        self.align_corners = True
        self.relaxed = RelaxedCost(grid, image)
        self.stems = nn.ModuleList(stem(ratio) for ratio, _ in grid.sets)
        self.cells = nn.ModuleDict({_key(cell): self._cell(cell) for cell in grid.cells})
        self.ends = nn.ModuleList(Ends(grid, ratio, classes) for _, ratio in grid.sets)
        self._layouts: dict[object, Layout] = {}
        self._add = compiled_relu_sum() if settings.compiled else relu_sum

    def forward(self, image: Tensor, weights: Weights, live: Live | None = None) -> Outputs:
        """Return every output at rate 8. The set must be definite; widths definite, or one-hot rows of the device."""
        known = checked(self.decisions, weights, live, images=len(image))
        if any(side % MULTIPLE for side in image.shape[2:]):
            size = "x".join(map(str, image.shape[2:]))
            raise Unsupported(
                f"the image is {size}; the supernet needs sides that are multiples of {MULTIPLE}."
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
        made: dict[tuple[Place, int], Tensor] = {}
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
        return [made[Place(self.grid.layers - 1, scale), 0] for scale in range(self.grid.scales)]

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
            cell = cast(SlimCell, self.cells[_key(slot.place)])
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

    def _cell(self, cell: Place) -> SlimCell:
        most = max(ratio for ratio, _ in self.grid.sets) if cell.layer == 0 else self.grid.ratios[-1]
        reads = cell.rate * most
        below, beside = self.grid.below(cell), self.grid.beside(cell)
        same = _channels(cell.scale, self._heads if below is None else self.grid.ratios)
        down = None if beside is None else _channels(beside.scale, self.grid.ratios)
        return SlimCell(
            SlimFrame(inputs=reads, outputs=same, stride=1),
            None if down is None else SlimFrame(inputs=reads, outputs=down, stride=2),
        )

    def _uses(self, cell: Place, weights: Weights, known: Live) -> list[Application]:
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

    def _arriving(self, cell: Place, weights: Weights, known: Live) -> Width:
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

    def _head(self, cell: Place, known: Live) -> Width:
        """Return the width that a cell of the last layer writes."""
        own = self.grid.sets[known[FRAME][0]][1]
        return Width(channels=_channels(cell.scale, self._heads), index=self._heads.index(own))

    @property
    def _heads(self) -> tuple[int, ...]:
        return tuple(sorted({ratio for _, ratio in self.grid.sets}))


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


def _key(cell: Place) -> str:
    return f"layer{cell.layer}_{cell.rate}"


def _channels(scale: int, ratios: Sequence[int]) -> tuple[int, ...]:
    return tuple(RATES[scale] * ratio for ratio in ratios)
