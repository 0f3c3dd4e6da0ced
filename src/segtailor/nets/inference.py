"""From uint8 pixels to predictions: normalise images, run networks on them, and turn outputs into predictions.

A graph of fixed size gets an image by `letterbox`: resized with its aspect ratio kept, and padded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from segtailor.tasks.bands import resized_picture, scaled_bands
from segtailor.tasks.enlarging import enlarge
from segtailor.tasks.segmentation.confidence import labels_and_confidence, probabilities

Size = tuple[int, int]  # height, width


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
    view, to_image = kind.view(image, task)
    with inference(network):
        predictions = predict(network, normalise(view[None], preprocessing, device), task)
    return to_image(predictions[0].to(kind.dtype).cpu().numpy())


def class_probabilities(
    network: nn.Module,
    image: NDArray[np.uint8],
    *,
    preprocessing: Preprocessing,
    device: torch.device,
    temperature: float = 1.0,
) -> NDArray[np.float32]:
    """Return the probabilities (classes, height, width) of a segmentation of one image (height, width, 3)."""
    with inference(network):
        logits = network(normalise(image[None], preprocessing, device))
        found = probabilities(
            logits, image.shape[:2], align_corners=aligns_corners(network), temperature=temperature
        )
    return found[0].cpu().numpy()


def predict_with_confidence(
    network: nn.Module,
    image: NDArray[np.uint8],
    *,
    preprocessing: Preprocessing,
    device: torch.device,
    temperature: float = 1.0,
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return labels (height, width) of one image and the probability of each; as `predict_picture` labels it."""
    with inference(network):
        logits = network(normalise(image[None], preprocessing, device))
        labels, confidence = labels_and_confidence(
            logits, image.shape[:2], align_corners=aligns_corners(network), temperature=temperature
        )
    return labels[0].cpu().numpy(), confidence[0].cpu().numpy()


def predict(network: nn.Module, images: Tensor, task: Task) -> Tensor:
    """Return predictions for normalised images at their size, from the main output, resized as the plan says."""
    return kind_of(task).predict(network, images, task=task, align_corners=aligns_corners(network))


@contextmanager
def inference(network: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode without gradients, and back at the end."""
    training = network.training
    network.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        network.train(training)


def pixels_of(
    image: Image.Image | NDArray[Any], preprocessing: Preprocessing | None = None
) -> NDArray[np.uint8]:
    """Return the RGB pixels (height, width, 3) of a PIL image, turned upright, or of an array of this form.

    16-bit greyscale is scaled from its full range, as files are. For a network with other bands (`preprocessing`), an
    array (height, width, bands) is scaled by its ranges; in uint8 it is taken as scaled already.
    """
    if preprocessing is not None and preprocessing.ranges is not None:
        return _bands_of(image, preprocessing.ranges)
    if isinstance(image, Image.Image):
        upright = ImageOps.exif_transpose(image)
        if upright.mode.startswith("I"):  # PIL would cut 16 bits at 255
            grey = np.clip(np.asarray(upright).astype(np.int64), 0, 65535) // 257
            return np.repeat(grey.astype(np.uint8)[:, :, None], 3, axis=2)
        return np.asarray(upright.convert("RGB"))
    array = np.asarray(image)
    if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8 or min(array.shape) < 1:
        raise UserError(
            f"an image is a (height, width, 3) uint8 array, not {array.shape} {array.dtype}; convert it first."
        )
    return array


def _bands_of(image: Image.Image | NDArray[Any], ranges: Sequence[tuple[float, float]]) -> NDArray[np.uint8]:
    values = np.asarray(ImageOps.exif_transpose(image) if isinstance(image, Image.Image) else image)
    values = values[:, :, None] if values.ndim == 2 else values
    if (
        values.ndim != 3
        or values.shape[2] != len(ranges)
        or values.dtype.kind not in "uif"
        or not values.size
    ):
        raise UserError(
            f"this network reads (height, width, {len(ranges)}) arrays of numbers, not {values.shape} {values.dtype}."
        )
    return scaled_bands(values, ranges)


def normalise(images: NDArray[np.uint8], preprocessing: Preprocessing, device: torch.device) -> Tensor:
    """Turn uint8 pixels (n, height, width, 3) into network input (n, 3, height, width)."""
    pixels = torch.from_numpy(np.array(images)).to(device).permute(0, 3, 1, 2).float()
    mean, std = (
        torch.tensor(values, device=device)[:, None, None]
        for values in (preprocessing.mean, preprocessing.std)
    )
    return (pixels / 255 - mean) / std


def aligns_corners(network: nn.Module) -> bool:
    """Tell whether the main output is resized to the image with aligned corners."""
    return bool(getattr(getattr(network, "plan", None), "align_corners", False))


def decode_logits(logits: Tensor, size: tuple[int, int], *, task: Task, align_corners: bool) -> NDArray[Any]:
    """Return the prediction at a size (height, width) from the logits (1, outputs, h, w) of one image."""
    kind = kind_of(task)
    predictions = kind.decode(logits, size, task=task, align_corners=align_corners)
    return predictions[0].to(kind.dtype).cpu().numpy()


def letterbox(pixels: NDArray[np.uint8], size: Size, preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """Return an image (height, width, 3) at a size: as large as it fits, in the upper left corner.

    The rest has the mean colour, which normalising turns into about 0.
    """
    if pixels.shape[:2] == size:
        return pixels
    height, width = fit_within((pixels.shape[0], pixels.shape[1]), size)
    canvas = np.empty((*size, pixels.shape[2]), np.uint8)
    canvas[:] = np.clip(np.round(255 * np.asarray(preprocessing.mean)), 0, 255)
    canvas[:height, :width] = resized_picture(pixels, (height, width))
    return canvas


def undo_letterbox(
    output: NDArray[Any], frame: Size, image: Size, *, task: Task, finished: bool, align_corners: bool
) -> NDArray[Any]:
    """Return the prediction at the size of an image from a graph's output for its letterboxed form of size `frame`.

    The output is logits, or a `finished` prediction. Logits are resized directly to the image; the kind of task resizes
    a finished prediction.
    """
    kind, inner = kind_of(task), fit_within(image, frame)
    if finished and inner == frame:
        return kind.finish(output[0], image, task=task)
    if finished:
        return kind.resized(kind.corner(kind.finish(output[0], frame, task=task), inner), inner, image)
    logits, align_corners = unboxed_logits(output, frame, image, align_corners=align_corners)
    return decode_logits(logits, image, task=task, align_corners=align_corners)


def unboxed_logits(
    output: NDArray[Any], frame: Size, image: Size, *, align_corners: bool
) -> tuple[Tensor, bool]:
    """Return the logits of an image from those of its letterboxed form, and whether their resize aligns corners."""
    inner = fit_within(image, frame)
    logits = torch.from_numpy(output.astype(np.float32, copy=False))
    if inner == frame:
        return logits, align_corners
    part = enlarge(logits, frame, align_corners=align_corners)[..., : inner[0], : inner[1]]
    return part, False  # as `letterbox` resizes


def fit_within(size: Size, within: Size) -> Size:
    """Return the largest size of the same aspect ratio that fits."""
    scale = min(most / side for side, most in zip(size, within, strict=True))
    height, width = (min(most, max(1, round(side * scale))) for side, most in zip(size, within, strict=True))
    return height, width
