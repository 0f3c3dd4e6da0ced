"""Check that an exported file computes what its network computes: run both on the same images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from segtailor.core.errors import UserError
from segtailor.deploy.export import Graph
from segtailor.deploy.formats import Runner
from segtailor.nets.bundle import Model
from segtailor.nets.inference import aligns_corners, decode_logits, inference, normalise
from segtailor.nets.onnx.graph import onnx_session
from segtailor.tasks import kind_of


class ExportMismatch(UserError):
    """An exported file gives other results than its network."""


@dataclass(frozen=True, kw_only=True)
class ParityLimits:
    """How far a file may differ from its network; the difference of logits is relative to the largest one."""

    label_agreement: float = 0.999
    max_rel_difference: float = 1e-3
    quality_drift: float = 0.001
    confidence_difference: float = 1e-3


LIMITS = {  # by precision
    "fp32": ParityLimits(),
    "fp16": ParityLimits(
        label_agreement=0.99, max_rel_difference=2e-2, quality_drift=0.005, confidence_difference=0.05
    ),
}


@dataclass(frozen=True, kw_only=True)
class Parity:
    """How far an exported file differs from its network; the differences are None if the output is labels."""

    images: int
    pixels: int
    label_agreement: float
    max_abs_difference: float | None = None
    max_rel_difference: float | None = None

    @property
    def equal(self) -> bool:
        """Whether the differences are only rounding."""
        return self.within(ParityLimits())

    def within(self, limits: ParityLimits) -> bool:
        """Whether the differences are within the limits; NaN never is."""
        close = self.max_rel_difference is None or self.max_rel_difference <= limits.max_rel_difference
        return close and self.label_agreement >= limits.label_agreement


class VerifiedOutputs(NamedTuple):
    """How a file compares with its network on the same images, and the predictions of both at image size.

    `wanted` are those of the network, `given` those of the file.
    """

    parity: Parity
    wanted: list[NDArray[Any]]
    given: list[NDArray[Any]]


def verify_file(
    run: Runner, model: Model, graph: Graph, pictures: Sequence[NDArray[np.uint8]]
) -> VerifiedOutputs:
    """Compare a file with the network of its bundle, as it was trained, on images (height, width, 3) of its size."""
    if not pictures:
        raise UserError("verify: no images were given; give at least one.")
    network, align = model.network.cpu(), aligns_corners(model.network)
    kind, task = kind_of(model.task), model.task
    reference, exported, wanted, given = [], [], [], []
    with inference(network):
        for pixels in pictures:
            image = normalise(pixels[None], model.preprocessing, torch.device("cpu"))
            logits, size = network(image).clone(), (pixels.shape[0], pixels.shape[1])
            output = run(pixels[None] if graph.input == "pixels" else image.numpy())[0]
            wanted.append(decode_logits(logits, size, task=task, align_corners=align))
            if graph.output == "logits":
                reference.append(logits.numpy())
                given.append(decode_logits(torch.from_numpy(output), size, task=task, align_corners=align))
            else:
                finished = kind.head(task, align_corners=align)(logits, size)
                reference.append(finished.numpy())
                given.append(kind.finish(output[0], size, task=task))
            exported.append(output)
    parity = compare(reference, exported)
    agree = float(
        np.mean([np.mean(kind.agree(one, other)) for one, other in zip(wanted, given, strict=True)])
    )
    full = Parity(
        images=parity.images,
        pixels=sum(labels.size for labels in wanted),
        label_agreement=agree,
        max_abs_difference=parity.max_abs_difference,
        max_rel_difference=parity.max_rel_difference,
    )
    return VerifiedOutputs(full, wanted, given)


def confidence_difference(
    run: Runner, model: Model, graph: Graph, pictures: Sequence[NDArray[np.uint8]]
) -> float:
    """Return the largest difference between the confidence of a file and that of the network of its bundle.

    A mask of unsure pixels is part of it: how far the confidence is on the other side of where the mask says it is.
    """
    worst = 0.0
    model.network.cpu()
    for pixels in pictures:
        image = normalise(pixels[None], model.preprocessing, torch.device("cpu"))
        _, wanted = model.predict_with_confidence(pixels)
        _, (given, *_), *masks = run(pixels[None] if graph.input == "pixels" else image.numpy())
        if given.shape != wanted.shape or not np.isfinite(given).all():
            return float("inf")
        worst = max(worst, float(np.abs(given - wanted).max()))
        for mask, *_ in masks:
            if mask.shape != wanted.shape or not np.isin(mask, (0, 255)).all():
                return float("inf")
            above = wanted - float(graph.unsure or 0)
            worst = max(worst, float(np.where(mask == 255, above, -above).max()))
    return worst


def verify_onnx(file: Path, module: nn.Module, images: Sequence[NDArray[Any]]) -> Parity:
    """Compare an ONNX file, run by ONNX Runtime, with the torch module it was made from, on images of its size."""
    if not images:
        raise UserError("verify: no images were given; give at least one.")
    session = onnx_session(file)
    (source, *_) = session.get_inputs()
    reference, exported = [], []
    with torch.no_grad():
        for image in images:
            reference.append(module(torch.from_numpy(image)).numpy())
            exported.append(session.run(None, {source.name: image})[0])
    return compare(reference, exported)


def compare(reference: Sequence[NDArray[Any]], exported: Sequence[NDArray[Any]]) -> Parity:
    """Compare outputs image by image: floats such as logits (N, classes, h, w), or labels (N, h, w)."""
    for one, other in zip(reference, exported, strict=True):
        if one.shape != other.shape:
            raise UserError(
                f"verify: the file gives {other.shape}, the network {one.shape}; export it again for this network."
            )
    pairs = list(zip(reference, exported, strict=True))
    logits = np.issubdtype(reference[0].dtype, np.floating)
    agree = [(one.argmax(1) == other.argmax(1)) if logits else (one == other) for one, other in pairs]
    pixels = sum(part.size for part in agree)
    agreement = float(sum(int(part.sum()) for part in agree) / pixels)
    if not logits:
        return Parity(images=len(pairs), pixels=pixels, label_agreement=agreement)
    worst = float(np.max([np.abs(one - other).max() for one, other in pairs]))  # keeps NaN
    scale = max(float(np.abs(one).max()) for one in reference)
    return Parity(
        images=len(pairs),
        pixels=pixels,
        label_agreement=agreement,
        max_abs_difference=worst,
        max_rel_difference=worst / max(scale, 1e-30),
    )
