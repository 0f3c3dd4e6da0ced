"""How sure a segmentation network is: probabilities of classes, and the temperature that makes them match reality.

A temperature divides the logits before the softmax. It changes no label, only the probabilities (Guo et al., ICML
2017). It is fitted on a sample of labelled pixels by the likelihood; the expected calibration error (ECE) says how far
confidence and the share of correct labels are apart, averaged over bins of confidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from segtailor.core.errors import DataProblem
from segtailor.tasks.enlarging import enlarge

BINS = 15  # of confidence, as in the literature
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 20.0
SEARCH_STEPS = 40  # of a golden section: the interval shrinks to 1e-8 of its length
ROWS_PER_STRIP = 256


def probabilities(
    logits: Tensor, size: tuple[int, int], *, align_corners: bool, temperature: float = 1.0
) -> Tensor:
    """Return the probabilities (n, classes, height, width) at a size."""
    return (enlarge(logits, size, align_corners=align_corners).float() / temperature).softmax(1)


def labels_and_confidence(
    logits: Tensor, size: tuple[int, int], *, align_corners: bool, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return labels (n, height, width) in uint8, and the probability of each."""
    full = enlarge(logits, size, align_corners=align_corners)
    shape = (len(full), *size)
    labels = torch.empty(shape, dtype=torch.uint8, device=full.device)
    confidence = torch.empty(shape, dtype=torch.float32, device=full.device)
    for top in range(
        0, size[0], ROWS_PER_STRIP
    ):  # the exponentials of a whole picture would take its memory again
        rows = slice(top, top + ROWS_PER_STRIP)
        strip = full[:, :, rows].float() / temperature
        best, label = strip.max(1)
        labels[:, rows] = label.byte()
        confidence[:, rows] = (best - strip.logsumexp(1)).exp()
    return labels, confidence


@dataclass(frozen=True, kw_only=True)
class ConfidenceCalibration:
    """A temperature, and how far confidence and accuracy are apart without and with it.

    `ece_after` is measured out of sample: the temperature fitted on one half of the images is scored on the other half.
    """

    temperature: float
    ece_before: float
    ece_after: float
    images: int
    pixels: int


def calibrate(logits: list[Tensor], labels: list[Tensor]) -> ConfidenceCalibration:
    """Fit a temperature to sampled pixels: per image, logits (pixels, classes) and labels (pixels)."""
    kept = [(some, true) for some, true in zip(logits, labels, strict=True) if len(true)]
    if len(kept) < 2:
        raise DataProblem(
            f"{len(kept)} image(s) with labelled pixels are too few to calibrate confidence; give 2 or more."
        )
    middle = len(kept) // 2  # not every other image: neighbours in a video are nearly the same
    halves = [kept[:middle], kept[middle:]]
    joined = [
        (torch.cat([some for some, _ in half]), torch.cat([true for _, true in half])) for half in halves
    ]
    after = 0.0
    total = sum(len(true) for _, true in joined)
    for fitted, scored in ((0, 1), (1, 0)):
        temperature = fit_temperature(*joined[fitted])
        after += calibration_error(*joined[scored], temperature) * len(joined[scored][1]) / total
    whole = (torch.cat([joined[0][0], joined[1][0]]), torch.cat([joined[0][1], joined[1][1]]))
    return ConfidenceCalibration(
        temperature=fit_temperature(*whole),
        ece_before=calibration_error(*whole, 1.0),
        ece_after=after,
        images=len(kept),
        pixels=total,
    )


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the temperature of the greatest likelihood for logits (n, classes); the likelihood has one maximum."""

    def loss(exponent: float) -> float:
        value = torch.nn.functional.cross_entropy(logits / math.exp(exponent), labels)
        return float(value)

    low, high = math.log(MIN_TEMPERATURE), math.log(MAX_TEMPERATURE)
    golden = (math.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = loss(left), loss(right)
    for _ in range(SEARCH_STEPS):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = loss(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = loss(right)
    return math.exp((low + high) / 2)


def calibration_error(logits: Tensor, labels: Tensor, temperature: float) -> float:
    """Return the expected calibration error of logits (n, classes) at a temperature."""
    confidence, predicted = (logits / temperature).softmax(1).max(1)
    right = (predicted == labels).double()
    bins = (confidence.double() * BINS).long().clamp(max=BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, confidence.double() - right)
    return float(gaps.abs().sum() / max(len(labels), 1))


def sample_pixels(
    logits: Tensor, labels: Tensor, *, classes: int, most: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return logits (pixels, classes) and labels of at most `most` labelled pixels of one image (classes, h, w)."""
    flat = labels.flatten().long()
    (known,) = torch.nonzero(flat < classes, as_tuple=True)
    if len(known) > most:
        known = known[torch.randperm(len(known), generator=generator)[:most]]
    return logits.flatten(1)[:, known].T.float().contiguous(), flat[known]
