"""Object keypoint similarity and the average precision and recall over it, by COCO's rules.

The rules of cocodataset.org/#keypoints-eval: at most 20 people per picture, thresholds 0.50 to 0.95, precision at 101
recalls. Groups, people without joints and people of another size are matched but not counted. The figures equal those
of pycocotools (docs/decisions/0013-oks.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from segtailor.core.errors import DataProblem
from segtailor.tasks.pose.persons import Box, Person
from segtailor.tasks.pose.skeletons import Skeleton

THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0, 1, 101)
MAX_FOUND = 20  # people per picture that are scored, those with the highest scores
ALL, MEDIUM, LARGE = (0.0, 1e10), (32.0**2, 96.0**2), (96.0**2, 1e10)  # square pixels
HIGHEST_SIMILARITY = 1 - 1e-10  # thresholds are capped here, as in COCO
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """One predicted person: joints (joints, 2 or more) in pixels of the picture, and a score (higher is surer)."""

    picture: str
    joints: NDArray[np.floating]
    score: float

    @property
    def area(self) -> float:
        """Square pixels of the box around the joints."""
        spread = np.ptp(np.asarray(self.joints, np.float64)[:, :2], axis=0)
        return float(spread[0] * spread[1])


@dataclass(frozen=True, kw_only=True)
class KeypointScores:
    """Average precision and recall, overall, at two thresholds and by size; None where no person counts."""

    ap: float | None
    ap50: float | None
    ap75: float | None
    ap_medium: float | None
    ap_large: float | None
    ar: float | None
    ar50: float | None
    ar75: float | None
    ar_medium: float | None
    ar_large: float | None


class _Picture(NamedTuple):
    """The people of one picture: similarity (found, true), scores, areas, and which true people do not count."""

    similarity: Floats
    scores: Floats
    found_areas: Floats
    true_areas: Floats
    ignored: Flags
    crowd: Flags


class _Curves(NamedTuple):
    """Precision (thresholds, recalls) and final recall (thresholds); both None where no person counts."""

    precision: Floats | None
    recall: Floats | None


def oks(found: NDArray[np.floating], person: Person, skeleton: Skeleton) -> float:
    """Return the similarity of found joints (joints, 2 or more) to a person: 1 is exact, 0 far away.

    For a person without labelled joints COCO measures how far the found joints lie outside of the enlarged box.
    """
    return _similarity(np.asarray(found, np.float64)[:, :2], person, skeleton, _variances(skeleton))


def keypoint_scores(found: Iterable[Found], people: Iterable[Person], skeleton: Skeleton) -> KeypointScores:
    """Match found people to true ones, picture by picture, and return COCO's ten figures."""
    pictures = _pictures(list(found), list(people), skeleton)
    whole, medium, large = (_curves(pictures, sizes) for sizes in (ALL, MEDIUM, LARGE))
    return KeypointScores(
        ap=_mean(whole.precision),
        ap50=_mean(whole.precision, 0),
        ap75=_mean(whole.precision, 5),
        ap_medium=_mean(medium.precision),
        ap_large=_mean(large.precision),
        ar=_mean(whole.recall),
        ar50=_mean(whole.recall, 0),
        ar75=_mean(whole.recall, 5),
        ar_medium=_mean(medium.recall),
        ar_large=_mean(large.recall),
    )


def _variances(skeleton: Skeleton) -> Floats:
    if not skeleton.sigmas:
        raise DataProblem(
            f"skeleton '{skeleton.name}' has no sigmas, so OKS is not defined for it; use PCKh instead."
        )
    return np.asarray((2 * np.asarray(skeleton.sigmas, np.float64)) ** 2)


def _similarity(places: Floats, person: Person, skeleton: Skeleton, variances: Floats) -> float:
    if places.shape != (skeleton.count, 2) or person.joints.shape != (skeleton.count, 3):
        raise DataProblem(
            f"OKS compares {skeleton.count} joints of '{skeleton.name}', got {places.shape} found and "
            f"{person.joints.shape} true; use one skeleton for both."
        )
    labelled = person.labelled
    known = bool(labelled.any())
    away = places - person.joints[:, :2] if known else _beyond(places, person.box)
    errors = (away**2).sum(1) / variances / (_area(person) + np.spacing(1)) / 2
    likeness = np.exp(-errors[labelled] if known else -errors)
    return float(np.where(np.isnan(likeness), 0.0, likeness).mean())  # a joint at NaN has similarity 0


def _area(person: Person) -> float:
    return person.area if person.area is not None else person.box[2] * person.box[3]


def _beyond(places: Floats, box: Box) -> Floats:
    """Return how far places lie outside the box grown by its own size on each side."""
    corner, size = np.asarray(box[:2]), np.asarray(box[2:])
    return np.asarray(np.maximum(0, corner - size - places) + np.maximum(0, places - corner - 2 * size))


def _pictures(found: Sequence[Found], people: Sequence[Person], skeleton: Skeleton) -> list[_Picture]:
    """Group people by picture, names sorted; found people by falling score, ties in the given order."""
    by_picture: dict[str, tuple[list[Found], list[Person]]] = {}
    for person in people:
        by_picture.setdefault(person.picture, ([], []))[1].append(person)
    for one in found:
        if not math.isfinite(one.score):
            raise DataProblem(f"someone found in {one.picture} has score {one.score}; give a number.")
        by_picture.setdefault(one.picture, ([], []))[0].append(one)
    pictures, variances = [], _variances(skeleton)
    for name in sorted(by_picture):
        best = sorted(by_picture[name][0], key=lambda one: -one.score)[:MAX_FOUND]
        true = by_picture[name][1]
        places = [np.asarray(one.joints, np.float64)[:, :2] for one in best]
        similarity = [[_similarity(xy, person, skeleton, variances) for person in true] for xy in places]
        pictures.append(
            _Picture(
                similarity=np.array(similarity, np.float64).reshape(len(best), len(true)),
                scores=np.array([one.score for one in best], np.float64),
                found_areas=np.array([one.area for one in best], np.float64),
                true_areas=np.array([_area(person) for person in true], np.float64),
                ignored=np.array([one.crowd or not one.labelled.any() for one in true], np.bool_),
                crowd=np.array([one.crowd for one in true], np.bool_),
            )
        )
    return pictures


def _curves(pictures: Sequence[_Picture], sizes: tuple[float, float]) -> _Curves:
    matched, skipped, total = [], [], 0
    for picture in pictures:
        ignored = picture.ignored | _beyond_sizes(picture.true_areas, sizes)
        total += int((~ignored).sum())
        hits, unseen = _match(picture, ignored)
        matched.append(hits)
        skipped.append(unseen | (~hits & _beyond_sizes(picture.found_areas, sizes)))
    if total == 0:
        return _Curves(None, None)
    scores = np.concatenate([picture.scores for picture in pictures])
    order = np.argsort(-scores, kind="stable")
    hits, counts = np.concatenate(matched, 1)[:, order], ~np.concatenate(skipped, 1)[:, order]
    right, wrong = np.cumsum(hits & counts, 1), np.cumsum(~hits & counts, 1)
    recall = right / total
    precision = right / (right + wrong + np.spacing(1))
    best = np.maximum.accumulate(precision[:, ::-1], 1)[:, ::-1]  # best precision at this recall or above
    read = np.array([_read_at(*rows) for rows in zip(recall, best, strict=True)])
    final = recall[:, -1] if recall.shape[1] else np.zeros(len(THRESHOLDS))
    return _Curves(read, final)


def _match(picture: _Picture, ignored: Flags) -> tuple[Flags, Flags]:
    """Give every found person, best first, the most similar true person that is free, at each threshold.

    Return who was matched and who was matched with an ignored person, both (thresholds, found). Ignored people are
    used only where no counted one is similar enough; a group can be matched any number of times.
    """
    shape = (len(THRESHOLDS), len(picture.scores))
    hits, skipped = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
    if not len(ignored):
        return hits, skipped
    taken = np.zeros((len(THRESHOLDS), len(ignored)), np.bool_)
    least = np.minimum(THRESHOLDS, HIGHEST_SIMILARITY)[:, None]
    every = np.arange(len(THRESHOLDS))
    for index, row in enumerate(picture.similarity):
        near = (row >= least) & (~taken | picture.crowd)
        counted = near & ~ignored
        wanted = np.where(counted.any(1, keepdims=True), counted, near)
        similar = np.where(wanted, row, -1.0)
        choice = len(ignored) - 1 - similar[:, ::-1].argmax(1)  # of equals the last, as COCO does
        hits[:, index] = wanted.any(1)
        skipped[:, index] = hits[:, index] & ignored[choice]
        taken[every, choice] |= hits[:, index]
    return hits, skipped


def _beyond_sizes(areas: Floats, sizes: tuple[float, float]) -> Flags:
    return np.asarray((areas < sizes[0]) | (areas > sizes[1]))


def _read_at(recall: Floats, precision: Floats) -> Floats:
    """Read the precision at `RECALLS`; 0 at recalls that are never reached."""
    places = np.searchsorted(recall, RECALLS, side="left")
    return np.append(precision, 0.0)[np.minimum(places, len(precision))]


def _mean(curve: Floats | None, threshold: int | None = None) -> float | None:
    if curve is None:
        return None
    return float(np.mean(curve if threshold is None else curve[threshold]))
