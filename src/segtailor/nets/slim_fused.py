"""Many cells of one pass in few large kernels; computes what the plain path of `slim_ops.py` computes.

Scale and shift of all norms of the whole pass are gathered at once, with the weights of operators and inputs in them,
and their statistics are written back at once. Nothing is read back from the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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


@dataclass(eq=False)
class Layout:
    """Where everything of a pass is in the gathered tensors: constant, so made once for each pattern of widths."""

    order: Tensor  # for every channel of every application, where its value is among the gathered
    scale: Tensor  # for every channel, which weight multiplies it; 0 is the constant one
    owner: Tensor  # for every channel of norms whose width the device knows, which of those norms
    sizes: list[list[int]]  # channels of the joint norms of each application
    entries: Tensor  # for every application, where the weight of its input is; 0 is the constant one
    moved: list[list[tuple[Norm, Width, int]]]  # first and second uses, with offset


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
        self._kernels = {key: cell_kernels(use.cell, use.widths) for key, use in cells.items()}
        first = self._norms[id(applications[0].cell)][0][0].norm
        self._training, self._momentum = first.training, first.momentum
        self._manner = Manner(first.training, first.eps)
        key = tuple((id(use.cell), *_indices(use.widths), use.entry is None) for use in applications)
        if key not in layouts:
            with torch.inference_mode(False):  # kept for training, too
                layouts[key] = self._layout(applications[0].weights.device)
        self._plan = layouts[key]
        self._choices = self._gathered_choices()
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
        for moved in self._plan.moved:
            for kind in (0, 1):
                self._move([row for row in moved if row[1].index is not None], kind)
                self._move_chosen([row for row in moved if row[1].index is None], kind)

    def _move(self, rows: Sequence[tuple[Norm, Width, int]], kind: int) -> None:
        targets, fresh = [], []
        for row, width, offset in rows:
            statistic = (row.norm.running_mean, row.norm.running_var)[kind]
            targets.append(statistic[width.index or 0, : width.extent])
            fresh.append(self._statistics[kind][offset : offset + width.extent])
        if targets:
            torch._foreach_lerp_(targets, fresh, self._momentum)

    def _move_chosen(self, rows: Sequence[tuple[Norm, Width, int]], kind: int) -> None:
        if not rows:
            return
        targets = [(row.norm.running_mean, row.norm.running_var)[kind] for row, _, _ in rows]
        widths = [target.shape[1] for target in targets]
        before = torch.cat(targets, dim=1)
        fresh = torch.cat(
            [self._statistics[kind][offset : offset + width.extent] for _, width, offset in rows]
        )
        places = {id(row.norm): number for number, (row, _) in enumerate(self._chosen())}
        chosen = torch.cat(
            [self._hits[:, places[id(row.norm)], None].expand(-1, width) & row.norm.mask
             for (row, _, _), width in zip(rows, widths, strict=True)], dim=1
        )  # fmt: skip
        after = torch.where(chosen, before + self._momentum * (fresh - before), before)
        torch._foreach_copy_(targets, list(after.split(widths, dim=1)))  # type: ignore[no-untyped-call]

    def _chosen(self) -> list[tuple[Norm, Width]]:
        """List the norms whose width only the device knows."""
        rows = [
            (row, use.widths) for use in self._uses for group in self._norms[id(use.cell)] for row in group
        ]
        found = [(row, _width(row, widths)) for row, widths in rows]
        return [(row, width) for row, width in found if width.index is None]

    def _gathered_choices(self) -> Tensor | None:
        """Return the number of the chosen option for every channel of norms whose width only the device knows."""
        chosen = self._chosen()
        if not chosen:
            return None
        picked = torch.stack([width.choice for _, width in chosen], dim=1)
        self._hits = picked > 0.5
        rows = [width.row for _, width in chosen if width.row is not None and width.through_norms]
        self._shares = None
        if len(rows) == len(chosen) and rows[0].requires_grad:
            self._shares = torch.stack(rows, dim=1).index_select(1, self._plan.owner)
        return picked.argmax(dim=0).index_select(0, self._plan.owner)

    def _gather(self, name: str, *, beyond: float) -> Tensor:
        """Concatenate one value of all norms: slices where the host knows a width, picked rows where it does not."""
        known, unknown = [], []
        for use in self._uses:
            for group in self._norms[id(use.cell)]:
                for row in group:
                    width, value = _width(row, use.widths), getattr(row.norm, name)
                    if width.index is None:
                        unknown.append((value, row.norm.mask))
                    else:
                        known.append(value[width.index, : width.extent])
        if unknown and self._choices is not None:
            table = torch.cat([value for value, _ in unknown], dim=1)
            masks = torch.cat([mask for _, mask in unknown], dim=1)
            within = masks.gather(0, self._choices[None])[0]
            if self._shares is not None and name in ("weight", "bias"):
                known.append((self._shares * masks * table).sum(0))
            else:
                known.append(torch.where(within, table.gather(0, self._choices[None])[0], beyond))
        return torch.cat(known)

    def _split_values(self) -> list[tuple[Values, ...]]:
        plan, scales = self._plan, self._scales()
        weight, bias = (
            self._gather(name, beyond=0.0).index_select(0, plan.order) * scales.index_select(0, plan.scale)
            for name in ("weight", "bias")
        )
        if self._training:
            self._statistics = list(torch.zeros(2, len(plan.order), device=weight.device).unbind())
        else:
            self._statistics = [
                self._gather("running_mean", beyond=0.0).index_select(0, plan.order),
                self._gather("running_var", beyond=1.0).index_select(0, plan.order),
            ]
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
        known = unknown = hidden_norms = 0
        starts: dict[int, tuple[bool, int]] = {}
        owner: list[int] = []
        for use in self._uses:
            for group in self._norms[id(use.cell)]:
                for row in group:
                    width = _width(row, use.widths)
                    starts[id(row.norm)] = (width.index is None, unknown if width.index is None else known)
                    if width.index is None:
                        owner += [hidden_norms] * width.extent
                        hidden_norms += 1
                        unknown += width.extent
                    else:
                        known += width.extent
        order: list[int] = []
        scale: list[int] = []
        sizes: list[list[int]] = []
        moved: list[list[tuple[Norm, Width, int]]] = [[], []]
        seen: set[int] = set()
        for number, use in enumerate(self.applications):
            sizes.append([])
            for group in self._norms[id(use.cell)]:
                widths = [_width(row, use.widths) for row in group]
                sizes[-1].append(sum(width.extent for width in widths))
                for row, width in zip(group, widths, strict=True):
                    moved[id(use.cell) in seen].append((row, replace(width, row=None), len(order)))
                    hidden, start = starts[id(row.norm)]
                    start += known if hidden else 0
                    order += range(start, start + width.extent)
                    which = 1 + number * 10 + row.mix * 5 + row.operator if row.last else 0
                    scale += [which] * width.extent
            seen.add(id(use.cell))
        entries = _entry_places(self.applications)
        tensors = [torch.tensor(row, device=device) for row in (order, scale, owner, entries)]
        return Layout(tensors[0], tensors[1], tensors[2], sizes, tensors[3], moved)


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
