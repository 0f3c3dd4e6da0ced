"""What to look at next: samples whose labels are probably wrong, and unlabelled pictures that would teach most.

A label is suspect where a network that has not seen the sample disagrees with it. Two signs are computed for each
sample: the surprise (mean negative logarithm of the probability of the given labels), and the gain in agreement when
the mask is moved as a whole, which tells masks that are displaced. Samples are ranked by the larger of the two, each
in units of its usual spread over the samples.

Unlabelled pictures are chosen one after the other: the next one is both uncertain (entropy) and far, in the features of
the network, from everything that is labelled or chosen already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from segtailor.core.errors import DataProblem
from segtailor.core.ranges import check_whole
from segtailor.data.cache import Pixels
from segtailor.data.subset import smaller_image, take

CELLS = 64  # of the longer side of a picture, for comparing displaced masks
MAX_SHIFT_SHARE = 0.12  # of a side
LEAST_PROBABILITY = 1e-3  # so that one pixel cannot outweigh a picture
SPREAD_TO_DEVIATION = (
    1.4826  # from the median absolute deviation to the standard deviation of a normal distribution
)
MIN_SPREAD = 1e-3

Probabilities = Callable[[NDArray[np.uint8]], NDArray[np.float32]]


class Scorer(Protocol):
    """A trained network that gives probabilities (`nets.bundle.Model`)."""

    def probabilities(self, image: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return (classes, height, width)."""


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A sample by name, how suspicious its labels are, and the main reason.

    `score` is in standard deviations of usual samples. `given` and `found` are the most frequent confident
    disagreement, `share` its share of the labelled pixels. `shift` (rows, columns) is by how much the mask fits better
    when it is moved.
    """

    name: str
    score: float
    surprise: float
    gain: float
    given: str
    found: str
    share: float
    shift: tuple[int, int]


def examine_labels(
    probabilities: NDArray[np.floating], labels: NDArray[np.uint8], *, name: str, classes: Sequence[str]
) -> Suspect:
    """Compare the probabilities (classes, height, width) of a sample with its labels (height, width); no score yet."""
    count = len(classes)
    known = labels < count
    if not known.any():
        return Suspect(
            name=name, score=0.0, surprise=0.0, gain=0.0, given="", found="", share=0.0, shift=(0, 0)
        )
    true = np.where(known, labels, 0).astype(np.int64)
    given = np.take_along_axis(probabilities, true[None], 0)[0].astype(np.float64)
    found = probabilities.argmax(0)
    surprise = float(-np.log(np.maximum(given[known], LEAST_PROBABILITY)).mean())
    wrong = known & (found != true) & (probabilities.max(0) - given > 0.5)
    pairs = np.bincount(true[wrong] * count + found[wrong], minlength=count * count)
    worst = int(pairs.argmax())
    gain, shift = _displacement(probabilities, labels, count)
    return Suspect(
        name=name,
        score=0.0,
        surprise=surprise,
        gain=gain,
        given=classes[worst // count] if pairs[worst] else "",
        found=classes[worst % count] if pairs[worst] else "",
        share=float(pairs[worst] / known.sum()),
        shift=shift,
    )


def ranked(suspects: Sequence[Suspect]) -> list[Suspect]:
    """Return samples with their scores, the most suspicious first."""
    surprise = _spreads([one.surprise for one in suspects])
    gain = _spreads([one.gain for one in suspects])
    scored = [
        replace(one, score=float(max(first, second)))
        for one, first, second in zip(suspects, surprise, gain, strict=True)
    ]
    return sorted(scored, key=lambda one: (-one.score, one.name))


def _spreads(values: Sequence[float]) -> NDArray[np.float64]:
    """Return distances from the median in robust standard deviations."""
    array = np.asarray(values, np.float64)
    middle = np.median(array)
    spread = SPREAD_TO_DEVIATION * np.median(np.abs(array - middle))
    return np.asarray((array - middle) / max(spread, MIN_SPREAD))


def _displacement(
    probabilities: NDArray[np.floating], labels: NDArray[np.uint8], classes: int
) -> tuple[float, tuple[int, int]]:
    """Return how much better labels agree when they are moved by the best shift (in pixels), and that shift."""
    step = max(1, math.ceil(max(labels.shape) / CELLS))
    coarse, cells = probabilities[:, ::step, ::step].astype(np.float32), labels[::step, ::step]
    log = np.log(np.maximum(coarse, LEAST_PROBABILITY))
    height, width = cells.shape
    reach = [int(MAX_SHIFT_SHARE * side) for side in (height, width)]
    true, known = np.where(cells < classes, cells, 0).astype(np.int64), cells < classes
    best, moved = 0.0, (0, 0)
    for down in range(-reach[0], reach[0] + 1):
        for right in range(-reach[1], reach[1] + 1):
            if not (down or right):
                continue
            there = (slice(max(down, 0), height + min(down, 0)), slice(max(right, 0), width + min(right, 0)))
            here = (
                slice(max(-down, 0), height + min(-down, 0)),
                slice(max(-right, 0), width + min(-right, 0)),
            )
            mask, label = known[here], true[here][None]
            if not mask.any():
                continue
            after = np.take_along_axis(log[:, there[0], there[1]], label, 0)[0][mask].mean()
            before = np.take_along_axis(log[:, here[0], here[1]], label, 0)[0][mask].mean()
            if after - before > best:
                best, moved = float(after - before), (down * step, right * step)
    return best, moved


def cross_fitted(
    pixels: Pixels,
    train: Callable[[Pixels, int], Scorer],
    *,
    folds: int = 3,
    max_pixels: int,
) -> list[Suspect]:
    """Examine every sample by a network that was trained on the others (`train(samples, fold)`), and rank them.

    Every k-th sample is in the same fold: neighbours of a recording then train for each other, which finds single wrong
    masks best. A mistake that all of them share is not found.
    """
    check_whole("folds", folds, least=2)
    if len(pixels) < 2 * folds:
        raise DataProblem(
            f"{len(pixels)} images are too few for {folds} folds; give {2 * folds} or more, or a --model."
        )
    found: list[Suspect] = []
    for fold in range(folds):
        rest = [index for index in range(len(pixels)) if index % folds != fold]
        model = train(take(pixels, rest, max_pixels=max_pixels), fold)
        held = [index for index in range(len(pixels)) if index % folds == fold]
        found += examined(take(pixels, held, max_pixels=max_pixels), model)
    return ranked(found)


def examined(pixels: Pixels, model: Scorer) -> list[Suspect]:
    """Examine every sample by one network; without scores."""
    return [
        examine_labels(
            model.probabilities(pixels.pair(index).image),
            pixels.pair(index).labels,
            name=pixels.names[index],
            classes=pixels.task.classes,
        )
        for index in range(len(pixels))
    ]


@dataclass(frozen=True, kw_only=True)
class UnlabelledPicture:
    """An unlabelled picture: its rank, mean entropy (0 to 1), and distance to what is labelled or chosen before it."""

    name: str
    entropy: float
    distance: float


def describe_picture(
    image: NDArray[np.uint8], model: Scorer, *, max_pixels: int
) -> tuple[float, NDArray[np.float64]]:
    """Return the mean entropy of a picture and its features: mean probabilities of classes in a grid, and colours."""
    small = smaller_image(image, max_pixels)
    found = model.probabilities(small).astype(np.float64)
    entropy = -(found * np.log(np.maximum(found, 1e-9))).sum(0).mean() / math.log(max(len(found), 2))
    rows, columns = (_quarters(side) for side in found.shape[1:])
    grid = [found[:, row, column].mean((1, 2)) for row in rows for column in columns]
    colours = [small[..., channel].astype(np.float64) / 255 for channel in range(small.shape[2])]
    looks = [value for channel in colours for value in (channel.mean(), channel.std())]
    return float(entropy), np.concatenate([*grid, looks])


def _quarters(side: int) -> list[slice]:
    """Return four equal parts of a side; of one shorter than four pixels, parts that overlap."""
    return [slice(at * side // 4, max(at * side // 4 + 1, (at + 1) * side // 4)) for at in range(4)]


def choose_pictures(
    names: Sequence[str],
    entropy: Sequence[float],
    features: NDArray[np.float64],
    labelled: NDArray[np.float64],
    *,
    count: int,
) -> list[UnlabelledPicture]:
    """Choose pictures one after the other by entropy times distance to the labelled and the chosen ones."""
    features = np.asarray(features, np.float64)
    known = np.asarray(labelled, np.float64).reshape(-1, features.shape[1])
    if len(known):
        distance = np.min(np.linalg.norm(features[:, None] - known[None], axis=2), axis=1)
    else:
        distance = np.linalg.norm(features - features.mean(0), axis=1) + MIN_SPREAD
    uncertain = np.asarray(entropy, np.float64)
    free = np.ones(len(names), bool)
    chosen = []
    for _ in range(min(count, len(names))):
        best = int(np.argmax(np.where(free, uncertain * distance, -1.0)))
        chosen.append(
            UnlabelledPicture(
                name=names[best], entropy=float(uncertain[best]), distance=float(distance[best])
            )
        )
        free[best] = False
        distance = np.minimum(distance, np.linalg.norm(features - features[best], axis=1))
    return chosen
