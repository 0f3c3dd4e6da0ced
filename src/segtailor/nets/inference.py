"""From uint8 pixels to labels: the one place that normalises, enlarges logits and takes the arg max."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor, nn

from segtailor.core.errors import UserError
from segtailor.core.task import Preprocessing
from segtailor.nets.enlarging import resize_bilinear


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


def enlarge(logits: Tensor, size: tuple[int, int], *, align_corners: bool) -> Tensor:
    """Resize logits bilinearly: the one way from a network's stride to pixels."""
    if logits.shape[-2:] == size:
        return logits
    return resize_bilinear(logits, size, align_corners=align_corners)


def enlarged_labels(logits: Tensor, size: tuple[int, int], *, align_corners: bool) -> NDArray[np.uint8]:
    """Return the labels (height, width) of one image's logits (1, classes, h, w), enlarged to a size."""
    return enlarge(logits, size, align_corners=align_corners).argmax(1)[0].byte().cpu().numpy()


def aligned(network: nn.Module) -> bool:
    """Return the flag of the resize from the main output to the image."""
    return bool(getattr(getattr(network, "plan", None), "align_corners", False))


def predict(network: nn.Module, images: Tensor) -> Tensor:
    """Return integer labels at image size, from the main output enlarged as the plan says."""
    logits = enlarge(network(images), (images.shape[2], images.shape[3]), align_corners=aligned(network))
    return logits.argmax(1)


def predict_labels(
    network: nn.Module, image: NDArray[np.uint8], *, preprocessing: Preprocessing, device: torch.device
) -> NDArray[np.uint8]:
    """Return the labels (height, width) of one image (height, width, 3) at its own size."""
    with inference(network):
        labels = predict(network, normalise(image[None], preprocessing, device))
    return labels[0].byte().cpu().numpy()


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
