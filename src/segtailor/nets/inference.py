"""From uint8 pixels to predictions: the one place that normalises pictures and runs networks on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor, nn

from segtailor.core.errors import UserError
from segtailor.core.task import Preprocessing, Task
from segtailor.tasks import kind_of
from segtailor.tasks.enlarging import enlarge as enlarge


def pixels_of(image: Image.Image | NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the RGB pixels (height, width, 3) of a PIL image, turned upright, or of an array that holds just that."""
    if isinstance(image, Image.Image):
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    array = np.asarray(image)
    if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8 or min(array.shape) < 1:
        raise UserError(
            f"an image is a (height, width, 3) uint8 array, not {array.shape} {array.dtype}; convert it first."
        )
    return array


def normalise(images: NDArray[np.uint8], preprocessing: Preprocessing, device: torch.device) -> Tensor:
    """Turn uint8 pixels (n, height, width, 3) into network input (n, 3, height, width)."""
    pixels = torch.from_numpy(np.array(images)).to(device).permute(0, 3, 1, 2).float()
    mean, std = (
        torch.tensor(values, device=device)[:, None, None]
        for values in (preprocessing.mean, preprocessing.std)
    )
    return (pixels / 255 - mean) / std


def decoded(logits: Tensor, size: tuple[int, int], *, task: Task, align_corners: bool) -> NDArray[Any]:
    """Return what one image's logits (1, outputs, h, w) say about a picture of a size (height, width)."""
    kind = kind_of(task)
    found = kind.decode(logits, size, task=task, align_corners=align_corners)
    return found[0].to(kind.dtype).cpu().numpy()


def aligned(network: nn.Module) -> bool:
    """Return the flag of the resize from the main output to the image."""
    return bool(getattr(getattr(network, "plan", None), "align_corners", False))


def predict(network: nn.Module, images: Tensor, task: Task) -> Tensor:
    """Return predictions for normalised images at their size, from the main output enlarged as the plan says."""
    return kind_of(task).predict(network, images, task=task, align_corners=aligned(network))


def predict_picture(
    network: nn.Module,
    image: NDArray[np.uint8],
    *,
    task: Task,
    preprocessing: Preprocessing,
    device: torch.device,
) -> NDArray[Any]:
    """Return the prediction for one image (height, width, 3) at its own size, e.g. labels (height, width)."""
    kind = kind_of(task)
    seen, back = kind.view(image, task)
    with inference(network):
        found = predict(network, normalise(seen[None], preprocessing, device), task)
    return back(found[0].to(kind.dtype).cpu().numpy())


@contextmanager
def inference(network: nn.Module) -> Iterator[None]:
    """Switch to evaluation without gradients, and back."""
    training = network.training
    network.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        network.train(training)
