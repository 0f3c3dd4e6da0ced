"""All cells of one pass in few large kernels; computes what the plain path of `slim.py` computes.

Operators of a cell that read the same map share a convolution and a norm. Scale and shift of all norms of the pass are
gathered at once, with the weights of operators and inputs in them (they are not negative), and their statistics are
written back at once. Nothing is read back from the device. Bilinear resizing can run as two small matrix products:
fast and repeatable in the backward pass, where kernels with atomics are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from segtailor.nets.fused import as_computed
from segtailor.spaces.multi_resolution.slim import (
    CellWidths,
    SlimCell,
    SlimMixed,
    SlimNorm,
    SlimSkip,
    SlimUnit,
    Width,
)

Add: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
SKIP, CONV, ZOOMED, CONV_2X, ZOOMED_2X = range(5)


class NormUse(NamedTuple):
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
class PassLayout:
    """Indices into the values of all norms of a pass: constant, so made once for each pattern of widths.

    All values of all norms are in one row, norm by norm, width by width. Every other tensor has one entry for each
    channel of each application: `index` is its position in that row (at the first width where only the device knows
    the width), `pitch` how far apart widths are (0 where the width is known), `column` the channel, `owner` the norm of
    unknown width that it belongs to, and `scale` the weight that multiplies it (0 is the constant one). `limits` are
    the channels of all widths of those norms, `entries` the indices of the weights of inputs by application (0 is the
    constant one), `sizes` the channels of the norms that are called together.
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


def relu_sum(one: Tensor, two: Tensor, three: Tensor, four: Tensor, five: Tensor) -> Tensor:
    """Add the ReLUs of five maps; compiled, it reads each map once."""
    return (
        functional.relu(one)
        + functional.relu(two)
        + functional.relu(three)
        + functional.relu(four)
        + functional.relu(five)
    )


def compiled_relu_sum() -> Add:
    """Return the sum as one kernel for maps of any size."""
    compiled: Add = torch.compile(relu_sum, dynamic=True)
    return compiled


class FusedPass:
    """All applications of one pass, ready to run in any order; `finish` updates the running statistics of norms."""

    def __init__(
        self,
        applications: Sequence[Application],
        *,
        layouts: dict[object, PassLayout],
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
        self._mode = PassMode(first.training, first.eps)
        key = tuple((id(use.cell), *_indices(use.widths), use.entry is None) for use in applications)
        if key not in layouts:
            with torch.inference_mode(False):  # it is cached, and used in training, too
                layouts[key] = self._make_layout(applications[0].weights.device)
        self._layout = layouts[key]
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
            shrink = resize_matrices((height, width), small, image.device, image.dtype)
            enlarge = resize_matrices(small, (height, width), image.device, image.dtype)
        same, down, half = self._kernels[key]
        given = CellSources(same, down, half, self._values[number], _order(use), shrink, enlarge)
        return cell_maps(image, given, self._mode, self._add)

    @torch.no_grad()
    def finish(self) -> None:
        """Update the running statistics of the norms: by first uses of a cell, then by second ones."""
        if not self._training:
            return
        for name, fresh in zip(("running_mean", "running_var"), self._statistics, strict=True):
            values = self._row(name)
            for uses in (self._layout.first, self._layout.second):
                positions = self._positions.index_select(0, uses)
                before = values.index_select(0, positions)
                after = torch.lerp(before, fresh.index_select(0, uses), self._momentum)
                inside = self._inside.index_select(0, uses)
                values.index_copy_(0, positions, torch.where(inside, after, before))
            own = [getattr(norm, name) for norm in self._all]
            parts = values.split([value.numel() for value in own])  # type: ignore[no-untyped-call]
            torch._foreach_copy_(own, [part.view_as(value) for part, value in zip(parts, own, strict=True)])

    def _choose(self) -> None:
        """Find the values of widths that only the device knows, and the channels within these widths."""
        layout = self._layout
        self._positions, self._inside = layout.index, layout.pitch == 0
        self._shares: Tensor | None = None
        hidden = [width for _, width in self._hidden()]
        if not hidden:
            return
        picked = torch.stack([width.choice for width in hidden])
        self._positions = layout.index + layout.pitch * picked.argmax(dim=1).index_select(0, layout.owner)
        limit = (layout.limits * picked).sum(dim=1).index_select(0, layout.owner)
        self._inside = self._inside | (layout.column < limit)
        rows = [width.row for width in hidden if width.row is not None and width.through_norms]
        if len(rows) == len(hidden) and rows[0].requires_grad:
            self._shares = torch.stack(rows).index_select(0, layout.owner)

    def _hidden(self) -> list[tuple[NormUse, Width]]:
        """List the norms whose width only the device knows."""
        uses = [(row, _width(row, use.widths)) for use in self._uses for row in self._rows[id(use.cell)]]
        return [(row, width) for row, width in uses if width.index is None]

    def _row(self, name: str) -> Tensor:
        """Return one value of all norms in one row."""
        return torch.cat([getattr(norm, name).reshape(-1) for norm in self._all])

    def _gather(self, name: str, *, beyond: float) -> Tensor:
        """Return one value for every channel of every application; channels beyond a width have another."""
        row = self._row(name)
        values = torch.where(self._inside, row.index_select(0, self._positions), beyond)
        if self._shares is None:
            return values
        layout = self._layout
        mixed = torch.zeros_like(values)
        for number in range(self._shares.shape[1]):
            within = layout.column < layout.limits[:, number].index_select(0, layout.owner)
            mixed = mixed + self._shares[:, number] * within * row.index_select(
                0, layout.index + number * layout.pitch
            )
        return torch.where(layout.pitch == 0, values, mixed)

    def _split_values(self) -> list[tuple[NormValues, ...]]:
        layout, scales = self._layout, self._scales()
        factors = scales.index_select(0, layout.scale)
        weight, bias = (self._gather(name, beyond=0.0) * factors for name in ("weight", "bias"))
        if self._training:
            self._statistics = list(torch.zeros(2, len(layout.index), device=weight.device).unbind())
        else:
            self._shares = None
            named = (("running_mean", 0.0), ("running_var", 1.0))
            self._statistics = [self._gather(name, beyond=beyond) for name, beyond in named]
        sizes = [size for row in layout.sizes for size in row]
        columns = [value.split(sizes) for value in (weight, bias, *self._statistics)]  # type: ignore[no-untyped-call]
        everything = iter([NormValues(*row) for row in zip(*columns, strict=True)])
        return [tuple(next(everything) for _ in row) for row in layout.sizes]

    def _scales(self) -> Tensor:
        """Return one, then for every application the weights of its operators: five at its own, five at half size."""
        weights = torch.stack([use.weights for use in self.applications]).float()
        one = weights.new_ones(1)
        entries = [use.entry[0] for use in self.applications if use.entry is not None]
        factors = torch.cat([one, *entries]).index_select(0, self._layout.entries)
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

    def _make_layout(self, device: torch.device) -> PassLayout:
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
        entries = torch.tensor(_entry_indices(self.applications), device=device)
        first, second = (torch.tensor(row, dtype=torch.long, device=device) for row in uses)
        return PassLayout(**made, limits=limits, entries=entries, first=first, second=second, sizes=sizes)


def ordered_norms(cell: SlimCell) -> list[list[NormUse]]:
    """Return the norms of a cell in the order in which `cell_maps` calls them; each list is called as one."""

    def row(mixed: SlimMixed, operator: int, number: int) -> NormUse:
        module = mixed.operators[operator]
        twice = operator in (CONV_2X, ZOOMED_2X)
        norm = getattr(module, f"norm{number}")
        return NormUse(norm, int(mixed is not cell.same), operator, not twice or number == 2)

    def first(mixed: SlimMixed) -> list[list[NormUse]]:
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


def _width(row: NormUse, widths: CellWidths) -> Width:
    return widths.same if row.mix == 0 or widths.down is None else widths.down


def _indices(widths: CellWidths) -> tuple[int | None, ...]:
    return tuple(None if row is None else row.index for row in (widths.inputs, widths.same, widths.down))


def _entry_indices(applications: Sequence[Application]) -> list[int]:
    """Return the index of each application's input weight in the row of all of them behind a constant one."""
    indices, start = [], 1
    for use in applications:
        if use.entry is None:
            indices.append(0)
            continue
        indices.append(start + use.entry[1])
        start += len(use.entry[0])
    return indices


class NormValues(NamedTuple):
    """Scale, shift and statistics of norms that are called as one; in training the statistics are written."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    variance: Tensor


class SlimKernels(NamedTuple):
    """The joint kernels of one mix: of the map, of its first results, of the skip."""

    full: Tensor
    second: Tensor
    skip: Tensor
    zoomed_second: Tensor


class CellSources(NamedTuple):
    """What one application of a cell reads besides its map; `order` sorts the channels of a skip at stride 2."""

    same: SlimKernels
    down: SlimKernels | None
    half: Tensor
    norms: tuple[NormValues, ...]
    order: Tensor | None
    shrink: ResizeMatrices | None
    enlarge: ResizeMatrices | None


class PassMode(NamedTuple):
    """Constants of a pass."""

    training: bool
    eps: float


def cell_maps(
    image: Tensor, given: CellSources, mode: PassMode, add: Add = relu_sum
) -> tuple[Tensor, Tensor | None]:
    """Run a cell; both results are sums of ReLUs whose norms hold the weights."""
    norms = iter(given.norms)

    def norm(maps: Tensor) -> Tensor:
        own = next(norms)
        momentum = 1.0 if mode.training else 0.0
        return functional.batch_norm(
            maps, own.mean, own.variance, own.weight, own.bias, mode.training, momentum, mode.eps
        )

    def first(kernels: SlimKernels, stride: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return what convolution, its double and the skip lead to, before their ReLU."""
        once, twice = norm(functional.conv2d(image, kernels.full, None, stride, 1)).chunk(2, dim=1)
        twice = norm(functional.conv2d(functional.relu(twice), kernels.second, None, 1, 1))
        skip = functional.conv2d(image, kernels.skip, None, stride)
        if stride == 2 and given.order is not None:
            skip = skip.index_select(1, given.order)
        return once, twice, norm(skip)

    def again(maps: Tensor, kernel: Tensor) -> Tensor:
        return norm(functional.conv2d(functional.relu(maps), kernel, None, 1, 1))

    plain = first(given.same, 1)
    small = norm(functional.conv2d(_shrunk(image, given), given.half, None, 1, 1))
    widths = [given.same.zoomed_second.shape[0]] * 2
    if given.down is not None:
        widths += [given.down.zoomed_second.shape[0]] * 2
    parts = small.split(widths, dim=1)  # type: ignore[no-untyped-call]
    twice = again(parts[1], given.same.zoomed_second)
    same = add(*plain, _enlarged(parts[0], image, given), _enlarged(twice, image, given))
    if given.down is None:
        return same, None
    plain = first(given.down, 2)
    return same, add(*plain, parts[2], again(parts[3], given.down.zoomed_second))


def cell_kernels(cell: SlimCell, widths: CellWidths) -> tuple[SlimKernels, SlimKernels | None, Tensor]:
    """Gather the kernels of both mixes, and the joint one of everything that works at half the resolution."""
    same, half = _mix_kernels(cell.same, widths.inputs, widths.same)
    if cell.down is None or widths.down is None:
        return same, None, as_computed(torch.cat(half))
    down, more = _mix_kernels(cell.down, widths.inputs, widths.down)
    return same, down, as_computed(torch.cat([*half, *more]))


def _mix_kernels(mixed: SlimMixed, inputs: Width, outputs: Width) -> tuple[SlimKernels, list[Tensor]]:
    full = torch.cat([unit.conv1.kernel(inputs, outputs) for unit in (mixed.conv, mixed.conv_2x)])
    half = [unit.conv1.kernel(inputs, outputs) for unit in (mixed.zoomed_conv, mixed.zoomed_conv_2x)]
    second, zoomed_second = (_second(unit, outputs) for unit in (mixed.conv_2x, mixed.zoomed_conv_2x))
    made = (full, second, _skip(mixed.skip, inputs, outputs), zoomed_second)
    return SlimKernels(*map(as_computed, made)), half


def _second(unit: SlimUnit, outputs: Width) -> Tensor:
    if unit.conv2 is None:
        raise TypeError("a unit of one convolution has no second")
    return unit.conv2.kernel(outputs, outputs)


def _skip(skip: SlimSkip, inputs: Width, outputs: Width) -> Tensor:
    """Return the kernel of a skip; at stride 2 both halves are corners of one 2x2 kernel."""
    if skip.conv2 is None:
        return skip.conv1.kernel(inputs, outputs)
    part = Width(channels=tuple(width // 2 for width in outputs.channels), index=outputs.index)
    one, two = (conv.kernel(inputs, part) for conv in (skip.conv1, skip.conv2))
    return torch.cat([functional.pad(one, (0, 1, 0, 1)), functional.pad(two, (1, 0, 1, 0))])


def _shrunk(image: Tensor, given: CellSources) -> Tensor:
    if given.shrink is not None:
        return resize(image, given.shrink)
    size = [max(1, side // 2) for side in image.shape[2:]]
    return functional.interpolate(image, size=size, mode="bilinear", align_corners=True)


def _enlarged(maps: Tensor, like: Tensor, given: CellSources) -> Tensor:
    if given.enlarge is not None:
        return resize(maps.contiguous(memory_format=_format(like)), given.enlarge)
    return functional.interpolate(maps, size=like.shape[2:], mode="bilinear", align_corners=True)


def _format(image: Tensor) -> torch.memory_format:
    last = image.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


class ResizeMatrices(NamedTuple):
    """The matrices that resize rows and columns."""

    rows: Tensor
    columns: Tensor


@lru_cache(maxsize=256)
def resize_matrices(
    before: tuple[int, int], after: tuple[int, int], device: torch.device, dtype: torch.dtype
) -> ResizeMatrices:
    """Return the matrices of a bilinear resize with aligned corners; kept, so that a recorded step only reads them."""
    with torch.inference_mode(False):  # it is cached, and used in training, too
        made = [_matrix(size, wanted) for size, wanted in zip(before, after, strict=True)]
        return ResizeMatrices(*(matrix.to(device, dtype) for matrix in made))


def resize(image: Tensor, by: ResizeMatrices) -> Tensor:
    """Resize (n, channels, height, width) in either memory format."""
    images, channels, height, width = image.shape
    if not image.is_contiguous(memory_format=torch.channels_last) or channels == 1:
        return by.rows @ image @ by.columns.T
    flat = image.permute(0, 2, 3, 1).reshape(images, height, width * channels)
    rows = (by.rows @ flat).view(images * len(by.rows), width, channels)
    columns = by.columns @ rows
    return columns.view(images, len(by.rows), len(by.columns), channels).permute(0, 3, 1, 2)


def _matrix(size: int, wanted: int) -> Tensor:
    """Return the (wanted, size) matrix of linear interpolation with aligned corners."""
    step = (size - 1) / (wanted - 1) if wanted > 1 else 0.0
    positions = torch.arange(wanted, dtype=torch.float64) * step
    low = positions.floor().long().clamp(max=size - 1)
    high = (low + 1).clamp(max=size - 1)
    share = positions - low
    matrix = torch.zeros(wanted, size, dtype=torch.float64)
    rows = torch.arange(wanted)
    matrix[rows, low] += 1 - share
    matrix[rows, high] += share
    return matrix
