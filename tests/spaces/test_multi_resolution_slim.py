"""Layers of shared widths: slices, masks, and norms of their own."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from segtailor.core.errors import Unsupported
from segtailor.nets.relax import one_hot
from segtailor.spaces.multi_resolution.slim import (
    CellWidths,
    SlimCell,
    SlimConv,
    SlimFrame,
    SlimNorm,
    SlimSkip,
    SlimUnit,
    Width,
    fixed,
)
from segtailor.spaces.multi_resolution.slim_fused import resize, resize_matrices
from segtailor.testing.supernets import scramble
from tests.support import noise

WIDTHS = (4, 6, 8)


def widths(index: int) -> tuple[Width, Width]:
    """Return the same width as the host knows it, and as only the device does."""
    row = one_hot(index, len(WIDTHS))
    return Width(channels=WIDTHS, index=index, row=row), Width(channels=WIDTHS, row=row)


def filled(image: torch.Tensor, channels: int) -> torch.Tensor:
    return functional.pad(image, (0, 0, 0, 0, 0, channels - image.shape[1]))


@pytest.mark.parametrize("index", range(3))
def test_a_narrow_convolution_uses_the_first_rows_and_columns(index: int) -> None:
    conv = SlimConv(8, 8, 3)
    known, _ = widths(index)
    image = noise(1, known.extent, 5, 7)
    wanted = functional.conv2d(image, conv.weight[: known.extent, : known.extent], padding=1)
    torch.testing.assert_close(conv(image, known, known), wanted)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("index", range(3))
def test_a_masked_layer_computes_the_sliced_one_and_zeros_beyond(index: int, training: bool) -> None:
    known, hidden = widths(index)
    image = noise(2, known.extent, 6, 8)
    found = []
    for width, maps in ((known, image), (hidden, filled(image, 8))):
        layer = nn.ModuleList([SlimConv(8, 8, 3), SlimNorm(WIDTHS)]).train(training)
        scramble(layer, seed=3)
        found.append(
            (layer[1](layer[0](maps, width, width), width), layer[1].running_mean, layer[1].running_var)
        )
    torch.testing.assert_close(found[1][0], filled(found[0][0], 8), rtol=1e-4, atol=1e-5)
    for one, other in zip(found[0][1:], found[1][1:], strict=True):
        torch.testing.assert_close(one, other)


def test_every_width_has_statistics_of_its_own() -> None:
    norm = SlimNorm(WIDTHS)
    known, _ = widths(1)
    norm(5 + noise(4, 6, 3, 3), known)
    assert norm.running_mean[1, :6].mean() > 0.4
    assert not norm.running_mean[0].any()
    assert not norm.running_mean[2].any()
    assert not norm.running_mean[1, 6:].any()


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize("stride", [1, 2])
def test_masked_operators_equal_sliced_ones(index: int, stride: int) -> None:
    frame = SlimFrame(inputs=8, outputs=WIDTHS, stride=stride)
    known, hidden = widths(index)
    image = noise(1, known.extent, 8, 8)
    operators = [SlimSkip(frame)] + [
        SlimUnit(frame, repeats=r, zoomed=z) for r in (1, 2) for z in (False, True)
    ]
    for module in operators:
        scramble(module.eval(), seed=4)
        sliced = module(image, known, known)
        assert sliced.shape == (1, known.extent, 8 // stride, 8 // stride)
        masked = module(filled(image, 8), hidden, hidden)
        torch.testing.assert_close(masked, filled(sliced, 8), rtol=1e-4, atol=1e-5)


def test_a_cell_multiplies_by_the_scores_of_both_widths() -> None:
    cell = SlimCell(SlimFrame(inputs=8, outputs=WIDTHS, stride=1), None).eval()
    scramble(cell, seed=5)
    row = one_hot(1, 3).requires_grad_()
    width = Width(channels=WIDTHS, index=1, row=row)
    same, down = cell(
        noise(1, 6, 8, 8), torch.full((5,), 0.2), range(5), widths=CellWidths(inputs=width, same=width)
    )
    assert down is None
    same.sum().backward()
    torch.testing.assert_close(row.grad, torch.tensor([0.0, 2 * same.sum().item(), 0.0]))


def test_operators_that_are_not_kept_do_not_run() -> None:
    cell = SlimCell(SlimFrame(inputs=8, outputs=WIDTHS, stride=1), None)
    known, _ = widths(2)
    cell(noise(1, 8, 8, 8), one_hot(1, 5), [1], widths=CellWidths(inputs=known, same=known))
    moved = [
        name for name, norm in cell.named_modules() if isinstance(norm, SlimNorm) and norm.running_mean.any()
    ]
    assert moved == ["same.conv.norm1"]
    with pytest.raises(Unsupported, match="at least one"):
        cell(noise(1, 8, 8, 8), one_hot(1, 5), [], widths=CellWidths(inputs=known, same=known))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("before", "after"), [((8, 12), (4, 6)), ((4, 6), (8, 12)), ((5, 1), (1, 3))])
def test_resizing_by_matrices_is_bilinear(
    before: tuple[int, int], after: tuple[int, int], last: bool
) -> None:
    image = noise(2, 3, *before)
    image = image.contiguous(memory_format=torch.channels_last) if last else image
    found = resize(image, resize_matrices(before, after, image.device, image.dtype))
    wanted = functional.interpolate(image, size=after, mode="bilinear", align_corners=True)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_bad_widths_are_refused() -> None:
    with pytest.raises(Unsupported, match="norm of widths"):
        SlimNorm(WIDTHS)(noise(1, 4, 2, 2), fixed(4))
    with pytest.raises(Unsupported, match="must be even"):
        SlimSkip(SlimFrame(inputs=3, outputs=(3,), stride=2))
    with pytest.raises(Unsupported, match="neither index nor weights"):
        _ = Width(channels=(4,)).choice
