"""Images of any shape in a graph of fixed size: letterboxed, and predictions back at the size of the image."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from segtailor.core.task import Preprocessing, Task
from segtailor.nets.inference import fit_within, letterbox, normalise, undo_letterbox

GREY = Preprocessing(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
SIZE = (32, 48)
THREE = Task(classes=("dark", "bright", "middle"))


def bands(height: int, width: int) -> np.ndarray:
    """A picture whose upper half is dark and whose lower half is bright."""
    pixels = np.full((height, width, 3), 20, np.uint8)
    pixels[height // 2 :] = 230
    return pixels


def shades(image: Tensor) -> Tensor:
    """Tell dark (0) from bright (1), and both from the middle (2), at a quarter of the resolution."""
    shade = functional.avg_pool2d(image, 4).mean(1, keepdim=True)
    return torch.cat([-shade, shade, 0.5 - shade.abs()], 1)


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("size", [(64, 16), (16, 96), (64, 96), (64, 64), (32, 48), (16, 24)])
def test_a_picture_keeps_its_shape_and_what_is_beside_it_never_shows(
    size: tuple[int, int], labels: bool
) -> None:
    graph = shades(normalise(letterbox(bands(*size), SIZE, GREY)[None], GREY, torch.device("cpu")))
    output = graph.argmax(1).repeat_interleave(4, 1).repeat_interleave(4, 2) if labels else graph
    found = undo_letterbox(output.numpy(), SIZE, size, task=THREE, finished=labels, align_corners=False)
    assert (found.shape, found.dtype) == (size, np.uint8)
    middle, blurred = size[0] // 2, max(2, size[0] // 8)  # where a stride of 4 cannot tell
    assert (found[: middle - blurred] == 0).all()
    assert (found[middle + blurred :] == 1).all()


def test_a_picture_of_the_size_is_left_alone() -> None:
    picture = bands(*SIZE)
    assert letterbox(picture, SIZE, GREY) is picture


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 1), (33, 47)])
def test_pictures_of_the_oddest_shapes_get_labels(size: tuple[int, int]) -> None:
    assert letterbox(bands(*size), SIZE, GREY).shape == (*SIZE, 3)
    logits = np.zeros((1, 3, 8, 12), np.float32)
    found = undo_letterbox(logits, SIZE, size, task=THREE, finished=False, align_corners=True)
    assert found.shape == size


@pytest.mark.parametrize(
    ("size", "within", "expected"),
    [
        ((100, 50), (32, 48), (32, 16)),
        ((1, 1000), (32, 48), (1, 48)),
        ((64, 96), (32, 48), (32, 48)),
        ((9, 9), (9, 9), (9, 9)),
    ],
)
def test_a_size_is_fitted_into_another(
    size: tuple[int, int], within: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert fit_within(size, within) == expected


def test_depth_and_joints_of_a_narrow_picture_come_from_its_part_of_the_frame() -> None:
    metres = Task(classes=("depth",), kind="depth")
    inside = np.full((1, *SIZE), 9.0, np.float32)
    inside[:, :, :16] = 2.0  # a picture of 64x32 takes the left 32x16 of the frame
    found = undo_letterbox(inside, SIZE, (64, 32), task=metres, finished=True, align_corners=False)
    assert found.shape == (64, 32)
    assert (found == 2.0).all()
