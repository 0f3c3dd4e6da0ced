"""Many cells of one pass in few large kernels; computes what the plain path of `slim_ops.py` computes.

Scale and shift of all norms of the whole pass are gathered at once, with the weights of operators and inputs in them,
and their statistics are written back at once. Nothing is read back from the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from segtailor.nets.slim import SlimNorm, Width
from segtailor.nets.slim_kernels import Add, Manner, Sources, Values, cell_kernels, cell_maps, relu_sum
from segtailor.nets.slim_ops import CellWidths, SlimCell, SlimMixed
from segtailor.nets.slim_resize import sides

SKIP, CONV, ZOOMED, CONV_2X, ZOOMED_2X = range(5)


class Norm(NamedTuple):
    """One norm of a cell: which mix (0 same, 1 down) and operator it belongs to, and whether it is the last there."""

    norm: SlimNorm
    mix: int
    operator: int
    last: bool


@dataclass(frozen=True, kw_only=True)
class Application:
    """One use of a cell: its widths, the weights of its operators, and the weight of its input, (row, index)."""

    cell: SlimCell
    widths: CellWidths
    weights: Tensor
    entry: tuple[Tensor, int] | None = None


@dataclass(eq=False, kw_only=True)
class Layout:
    """Where everything of a pass is: constant, so made once for each pattern of widths.

    All values of all norms stand in one row, norm by norm, width by width. Every other tensor has one entry for each
    channel of each application: `index` its place in that row (at the first width where only the device knows it),
    `pitch` how far apart widths are (0 where the width is known), `column` the channel, `owner` which norm of unknown
    width it is of, and `scale` which weight multiplies it (0 is the constant one). `limits` are the channels of all
    widths of those norms, `entries` the places of the weights of inputs by application (0 is one), `sizes` the channels
    of the norms that are called together.
    """

    index: Tensor
    pitch: Tensor
    column: Tensor
    owner: Tensor
    scale: Tensor
    limits: Tensor
    entries: Tensor
    first: Tensor  # channels of first uses of a cell, then those of second ones
    second: Tensor
    sizes: list[list[int]]


class FusedPass:
    """All applications of one pass, ready to run in any order; `finish` moves the statistics of norms."""

    def __init__(
        self,
        applications: Sequence[Application],
        *,
        layouts: dict[object, Layout],
        add: Add = relu_sum,
        matrices: bool = False,
    ) -> None:
        self.applications, self._add, self._matrices = applications, add, matrices
        cells = {id(use.cell): use for use in applications}
        self._uses = list(cells.values())
        self._norms = {key: ordered_norms(use.cell) for key, use in cells.items()}
        self._rows = {key: [row for group in groups for row in group] for key, groups in self._norms.items()}
        self._all = [row.norm for rows in self._rows.values() for row in rows]
        self._kernels = {key: cell_kernels(use.cell, use.widths) for key, use in cells.items()}
        first = self._norms[id(applications[0].cell)][0][0].norm
        self._training, self._momentum = first.training, first.momentum
        self._manner = Manner(first.training, first.eps)
        key = tuple((id(use.cell), *_indices(use.widths), use.entry is None) for use in applications)
        if key not in layouts:
            with torch.inference_mode(False):  # kept for training, too
                layouts[key] = self._layout(applications[0].weights.device)
        self._plan = layouts[key]
        self._choose()
        self._values = self._split_values()

    def __call__(self, number: int, image: Tensor) -> tuple[Tensor, Tensor | None]:
        """Run one application."""
        use = self.applications[number]
        key = id(use.cell)
        shrink = enlarge = None
        if self._matrices:
            height, width = int(image.shape[2]), int(image.shape[3])
            small = (max(1, height // 2), max(1, width // 2))
            shrink = sides((height, width), small, image.device, image.dtype)
            enlarge = sides(small, (height, width), image.device, image.dtype)
        same, down, half = self._kernels[key]
        given = Sources(same, down, half, self._values[number], _order(use), shrink, enlarge)
        return cell_maps(image, given, self._manner, self._add)

    @torch.no_grad()
    def finish(self) -> None:
        """Give the statistics of this pass to the norms: those of first uses, then those of second ones."""
        if not self._training:
            return
        for name, fresh in zip(("running_mean", "running_var"), self._statistics, strict=True):
            values = self._row(name)
            for uses in (self._plan.first, self._plan.second):
                places = self._places.index_select(0, uses)
                before = values.index_select(0, places)
                after = torch.lerp(before, fresh.index_select(0, uses), self._momentum)
                inside = self._inside.index_select(0, uses)
                values.index_copy_(0, places, torch.where(inside, after, before))
            own = [getattr(norm, name) for norm in self._all]
            parts = values.split([value.numel() for value in own])  # type: ignore[no-untyped-call]
            torch._foreach_copy_(own, [part.view_as(value) for part, value in zip(parts, own, strict=True)])

    def _choose(self) -> None:
        """Find where the values of widths are that only the device knows, and which channels lie within them."""
        plan = self._plan
        self._places, self._inside = plan.index, plan.pitch == 0
        self._shares: Tensor | None = None
        hidden = [width for _, width in self._hidden()]
        if not hidden:
            return
        picked = torch.stack([width.choice for width in hidden])
        self._places = plan.index + plan.pitch * picked.argmax(dim=1).index_select(0, plan.owner)
        limit = (plan.limits * picked).sum(dim=1).index_select(0, plan.owner)
        self._inside = self._inside | (plan.column < limit)
        rows = [width.row for width in hidden if width.row is not None and width.through_norms]
        if len(rows) == len(hidden) and rows[0].requires_grad:
            self._shares = torch.stack(rows).index_select(0, plan.owner)

    def _hidden(self) -> list[tuple[Norm, Width]]:
        """List the norms whose width only the device knows."""
        found = [(row, _width(row, use.widths)) for use in self._uses for row in self._rows[id(use.cell)]]
        return [(row, width) for row, width in found if width.index is None]

    def _row(self, name: str) -> Tensor:
        """Return one value of all norms in one row."""
        return torch.cat([getattr(norm, name).reshape(-1) for norm in self._all])

    def _gather(self, name: str, *, beyond: float) -> Tensor:
        """Return one value for every channel of every application; channels beyond a width have another."""
        row = self._row(name)
        values = torch.where(self._inside, row.index_select(0, self._places), beyond)
        if self._shares is None:
            return values
        plan = self._plan
        mixed = torch.zeros_like(values)
        for number in range(self._shares.shape[1]):
            within = plan.column < plan.limits[:, number].index_select(0, plan.owner)
            mixed = mixed + self._shares[:, number] * within * row.index_select(
                0, plan.index + number * plan.pitch
            )
        return torch.where(plan.pitch == 0, values, mixed)

    def _split_values(self) -> list[tuple[Values, ...]]:
        plan, scales = self._plan, self._scales()
        factors = scales.index_select(0, plan.scale)
        weight, bias = (self._gather(name, beyond=0.0) * factors for name in ("weight", "bias"))
        if self._training:
            self._statistics = list(torch.zeros(2, len(plan.index), device=weight.device).unbind())
        else:
            self._shares = None
            named = (("running_mean", 0.0), ("running_var", 1.0))
            self._statistics = [self._gather(name, beyond=beyond) for name, beyond in named]
        sizes = [size for row in plan.sizes for size in row]
        columns = [value.split(sizes) for value in (weight, bias, *self._statistics)]  # type: ignore[no-untyped-call]
        everything = iter([Values(*row) for row in zip(*columns, strict=True)])
        return [tuple(next(everything) for _ in row) for row in plan.sizes]

    def _scales(self) -> Tensor:
        """Return one, then for every application the weights of its operators: five at its own, five at half size."""
        weights = torch.stack([use.weights for use in self.applications]).float()
        one = weights.new_ones(1)
        entries = [use.entry[0] for use in self.applications if use.entry is not None]
        factors = torch.cat([one, *entries]).index_select(0, self._plan.entries)
        both = (weights * factors[:, None])[:, None].expand(-1, 2, -1)
        scores = self._scores(one)
        if scores is not None:
            both = both * scores[..., None]
        return torch.cat([one, both.reshape(-1)])

    def _scores(self, one: Tensor) -> Tensor | None:
        """Return the product of the scores of read and written width, (applications, 2), where anything learns."""
        rows: dict[int, Tensor] = {}
        for use in self.applications:
            for width in (use.widths.inputs, use.widths.same, use.widths.down):
                if width is not None and width.row is not None and width.score is not None:
                    rows[id(width.row)] = width.row
        if not rows:
            return None
        table = torch.stack(list(rows.values()))
        scores = dict(zip(rows, (table * table.detach()).sum(dim=1).unbind(), strict=True))

        def score(width: Width | None) -> Tensor:
            found = None if width is None or width.row is None else scores.get(id(width.row))
            return one[0] if found is None else found

        columns = [
            torch.stack([score(getattr(use.widths, name)) for use in self.applications])
            for name in ("inputs", "same", "down")
        ]
        return torch.stack([columns[0] * columns[1], columns[0] * columns[2]], dim=1)

    def _layout(self, device: torch.device) -> Layout:
        starts, total = {}, 0
        for norm in self._all:
            starts[id(norm)] = total
            total += norm.weight.numel()
        owners = {id(row.norm): number for number, (row, _) in enumerate(self._hidden())}
        columns: dict[str, list[int]] = {name: [] for name in ("index", "pitch", "column", "owner", "scale")}
        uses: list[list[int]] = [[], []]
        sizes: list[list[int]] = []
        seen: set[int] = set()
        for number, use in enumerate(self.applications):
            sizes.append([])
            for group in self._norms[id(use.cell)]:
                widths = [_width(row, use.widths) for row in group]
                sizes[-1].append(sum(width.extent for width in widths))
                for row, width in zip(group, widths, strict=True):
                    count, wide = width.extent, row.norm.channels[-1]
                    start = starts[id(row.norm)] + (width.index or 0) * wide
                    here = len(columns["index"])
                    uses[id(use.cell) in seen] += range(here, here + count)
                    columns["index"] += range(start, start + count)
                    columns["column"] += range(count)
                    columns["pitch"] += [wide if width.index is None else 0] * count
                    columns["owner"] += [owners.get(id(row.norm), 0)] * count
                    which = 1 + number * 10 + row.mix * 5 + row.operator if row.last else 0
                    columns["scale"] += [which] * count
            seen.add(id(use.cell))
        made = {name: torch.tensor(values, device=device) for name, values in columns.items()}
        limits = torch.tensor([width.channels for _, width in self._hidden()] or [[0]], device=device)
        entries = torch.tensor(_entry_places(self.applications), device=device)
        first, second = (torch.tensor(row, dtype=torch.long, device=device) for row in uses)
        return Layout(**made, limits=limits, entries=entries, first=first, second=second, sizes=sizes)


def ordered_norms(cell: SlimCell) -> list[list[Norm]]:
    """Return the norms of a cell in the order in which `cell_maps` calls them; each list is called as one."""

    def row(mixed: SlimMixed, operator: int, number: int) -> Norm:
        module = mixed.operators[operator]
        twice = operator in (CONV_2X, ZOOMED_2X)
        norm = getattr(module, f"norm{number}")
        return Norm(norm, int(mixed is not cell.same), operator, not twice or number == 2)

    def first(mixed: SlimMixed) -> list[list[Norm]]:
        return [
            [row(mixed, CONV, 1), row(mixed, CONV_2X, 1)],
            [row(mixed, CONV_2X, 2)],
            [row(mixed, SKIP, 1)],
        ]

    halves = [cell.same] if cell.down is None else [cell.same, cell.down]
    half = [part for mixed in halves for part in (row(mixed, ZOOMED, 1), row(mixed, ZOOMED_2X, 1))]
    norms = [*first(cell.same), half, [row(cell.same, ZOOMED_2X, 2)]]
    if cell.down is not None:
        norms += [*first(cell.down), [row(cell.down, ZOOMED_2X, 2)]]
    return norms


def _order(use: Application) -> Tensor | None:
    down = use.widths.down
    if use.cell.down is None or down is None or down.index is not None:
        return None
    return use.cell.down.skip.order.index_select(0, down.choice.argmax(0, keepdim=True))[0]


def _width(row: Norm, widths: CellWidths) -> Width:
    return widths.same if row.mix == 0 or widths.down is None else widths.down


def _indices(widths: CellWidths) -> tuple[int | None, ...]:
    return tuple(None if row is None else row.index for row in (widths.inputs, widths.same, widths.down))


def _entry_places(applications: Sequence[Application]) -> list[int]:
    """Return for every application where the weight of its input is behind a leading one."""
    places, start = [], 1
    for use in applications:
        if use.entry is None:
            places.append(0)
            continue
        places.append(start + use.entry[1])
        start += len(use.entry[0])
    return places
