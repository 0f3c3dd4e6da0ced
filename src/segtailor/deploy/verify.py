"""Prove that an exported file computes what the network computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from segtailor.core.errors import UserError
from segtailor.nets.onnx_graph import onnx_session

LABEL_AGREEMENT = 0.999
LOGIT_DIFFERENCE = 1e-3  # of the largest logit


@dataclass(frozen=True, kw_only=True)
class Parity:
    """How far an exported file is from its network; the differences are None where the output is labels."""

    images: int
    pixels: int
    label_agreement: float
    max_abs_difference: float | None = None
    max_rel_difference: float | None = None

    @property
    def equal(self) -> bool:
        """Whether the differences are those of floating point alone."""
        close = self.max_rel_difference is None or self.max_rel_difference <= LOGIT_DIFFERENCE
        return close and self.label_agreement >= LABEL_AGREEMENT


def verify_onnx(file: Path, module: nn.Module, images: Sequence[NDArray[Any]]) -> Parity:
    """Run an ONNX file with ONNX Runtime beside the torch module it was made from, on images of its size."""
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
    """Compare outputs image by image: logits (N, classes, h, w), or labels (N, h, w)."""
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
    worst = max(float(np.abs(one - other).max()) for one, other in pairs)
    scale = max(float(np.abs(one).max()) for one in reference)
    return Parity(
        images=len(pairs),
        pixels=pixels,
        label_agreement=agreement,
        max_abs_difference=worst,
        max_rel_difference=worst / max(scale, 1e-30),
    )
