"""How many images are needed: quality over the number of training images, as a fitted curve with its uncertainty.

The curve is `ceiling - gap * n ** -rate`, the usual form of learning curves. It is fitted by least squares: for a fixed
rate the rest is linear. The uncertainty comes from fitting it again to trainings drawn with replacement, and from the
scatter of trainings around the curve. It says nothing about images of another kind than those at hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from segtailor.core.errors import DataProblem

LEAST_PASSES = (
    8  # over the largest subset: with fewer, the number of steps and not of images limits the quality
)
ALWAYS_TRAINED = 16  # images of the largest subset, however few steps there are
RATES = np.linspace(0.1, 2.0, 39)
DRAWS = 400
INTERVAL = (10.0, 90.0)  # percentiles


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """One training: its number of images, seed and quality (0 to 1)."""

    images: int
    seed: int
    quality: float


@dataclass(frozen=True, kw_only=True)
class CurveEstimate:
    """The quality expected from a number of images; `low` to `high` holds it with a probability of 80 %."""

    images: int
    quality: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class LearningCurve:
    """`ceiling - gap * n ** -rate`."""

    ceiling: float
    gap: float
    rate: float

    def at(self, images: float) -> float:
        """Return the quality at a number of images, from 0 to 1."""
        return float(np.clip(self.ceiling - self.gap * images**-self.rate, 0.0, 1.0))


def fit_curve(points: Sequence[CurvePoint]) -> LearningCurve:
    """Fit a curve that never falls and never exceeds 1."""
    counts = np.array([point.images for point in points], np.float64)
    quality = np.array([point.quality for point in points], np.float64)
    if len(set(counts.tolist())) < 3:
        raise DataProblem(
            "a curve needs trainings on 3 or more numbers of images; give more images or shares."
        )
    best = min((_with_rate(counts, quality, float(rate)) for rate in RATES), key=lambda found: found[0])
    return best[1]


def estimates(points: Sequence[CurvePoint], numbers: Sequence[int], *, seed: int = 0) -> list[CurveEstimate]:
    """Return what is to be expected from these numbers of images."""
    curve, rng = fit_curve(points), np.random.default_rng(seed)
    scatter = np.array([point.quality - curve.at(point.images) for point in points])
    freedom = max(len(points) - 3, 1)
    deviation = float(np.sqrt((scatter**2).sum() / freedom))
    drawn = np.array([[one.at(number) for number in numbers] for one in _drawn(points, rng)])
    drawn += deviation * rng.standard_normal((len(drawn), 1))
    low, high = np.clip(np.percentile(drawn, INTERVAL, axis=0), 0, 1)
    return [
        CurveEstimate(images=number, quality=curve.at(number), low=float(below), high=float(above))
        for number, below, above in zip(numbers, low, high, strict=True)
    ]


def subset_sizes(images: int, *, count: int = 4, least: int = 2) -> list[int]:
    """Return numbers of images, each half of the next, up to all of them."""
    sizes = sorted({max(least, images >> power) for power in range(count)})
    sizes = [size for size in sizes if size <= images]
    if len(sizes) < 3:
        raise DataProblem(
            f"{images} training images are too few for a curve; {least * 4} or more are needed."
        )
    return sizes


def largest_subset(images: int, *, steps: int, batch: int) -> int:
    """Return how many images a training of so many steps can make use of, at most all `images`.

    A training that sees each image only two or three times is as good with a quarter of them: its curve would be flat,
    and say that more images do not help.
    """
    return min(images, max(steps * batch // LEAST_PASSES, ALWAYS_TRAINED))


def _drawn(points: Sequence[CurvePoint], rng: np.random.Generator) -> list[LearningCurve]:
    """Fit curves to trainings drawn with replacement; draws with fewer than three numbers of images are left out."""
    curves = []
    for _ in range(DRAWS):
        chosen = [points[index] for index in rng.integers(0, len(points), len(points))]
        if len({point.images for point in chosen}) >= 3:
            curves.append(fit_curve(chosen))
    return curves or [fit_curve(points)]


def _with_rate(
    counts: NDArray[np.float64], quality: NDArray[np.float64], rate: float
) -> tuple[float, LearningCurve]:
    """Return the squared error and the curve of the best ceiling and gap for one rate."""
    falling = counts**-rate
    spread = falling - falling.mean()
    slope = float((spread * quality).sum() / max((spread**2).sum(), 1e-30))
    gap = max(-slope, 0.0)
    ceiling = float(quality.mean() + gap * falling.mean())
    if ceiling > 1.0:
        ceiling = 1.0
        gap = max(float((falling * (1 - quality)).sum() / (falling**2).sum()), 0.0)
    error = float(((ceiling - gap * falling - quality) ** 2).sum())
    return error, LearningCurve(ceiling=ceiling, gap=gap, rate=rate)
