"""Figures of predicted joints over a split: PCKh (Andriluka et al., 2014) where head sizes are known, average precision
where OKS is defined.

PCKh compares each crop with the person whose box it shows. Average precision puts all crops back into their pictures
(`pictures.py`); where these are not known, every crop counts as a picture of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from segtailor.core.codec import Json
from segtailor.core.errors import DataProblem, Unsupported
from segtailor.tasks.pose.oks import Found, KeypointScores, keypoint_scores
from segtailor.tasks.pose.persons import Person
from segtailor.tasks.pose.pictures import CutOut, found_people, from_pictures, person_score
from segtailor.tasks.pose.skeletons import Skeleton

COCO_FIGURES = tuple(item.name for item in fields(KeypointScores))  # all ten
COARSE_HEAD_SIZES, FINE_HEAD_SIZES = 0.5, 0.1  # thresholds of PCKh


@dataclass(frozen=True, kw_only=True)
class PoseScores:
    """Figures of one evaluation, from 0 to 1; None where the data lacks head sizes or areas."""

    pckh: float | None = None
    pckh_fine: float | None = None
    ap: float | None = None
    ap50: float | None = None
    ap75: float | None = None
    ap_medium: float | None = None
    ap_large: float | None = None
    ar: float | None = None
    ar50: float | None = None
    ar75: float | None = None
    ar_medium: float | None = None
    ar_large: float | None = None
    joints: tuple[float | None, ...] = field(default=())
    images: int = 0

    @property
    def quality(self) -> float:
        """The headline figure: PCKh@0.5, or average precision where no head size is known."""
        return next((value for value in (self.pckh, self.ap) if value is not None), 0.0)

    @property
    def reward(self) -> float:
        """The headline figure."""
        return self.quality

    def figures(self) -> dict[str, float]:
        """Return the figures that there are, by name."""
        named = {name: getattr(self, name) for name in ("pckh", "pckh_fine", *COCO_FIGURES)}
        known = {name: value for name, value in named.items() if value is not None}
        return {"pose_quality": self.quality, **known}

    def document(self, classes: Sequence[str]) -> dict[str, Json]:
        """Return the JSON form with the names of the joints."""
        rows: dict[str, Json] = {
            name: {"pckh": value} for name, value in zip(classes, self.joints, strict=False)
        }
        return {**self.figures(), "per_class": rows, "images": self.images}


class PoseMeter:
    """Keeps all joints until the end: average precision needs all people at once."""

    def __init__(self, skeleton: Skeleton) -> None:
        self.skeleton = skeleton
        self.images = 0
        self._found: list[NDArray[np.float32]] = []
        self._truth: list[NDArray[np.float32]] = []
        self._cuts: Sequence[CutOut] = ()

    def know(self, samples: Sequence[object]) -> None:
        """Learn which sample each person is, in the order in which they were added."""
        self._cuts = samples if from_pictures(samples) else ()

    def add(self, predicted: Tensor, targets: Tensor) -> None:
        """Keep a batch: joints (people, joints, 3) as x, y, score, and targets as in `JointRows`."""
        self._found += list(predicted.float().cpu().numpy())
        self._truth += list(targets.cpu().numpy())
        self.images += len(targets)

    def merge(self, add_up: Callable[[Tensor], Tensor]) -> None:
        """Raise `Unsupported` where several processes evaluated: the people of the others are missing here."""
        own = torch.tensor(float(len(self._truth)))
        if float(add_up(own.clone())) != float(own):
            raise Unsupported(
                "pose is scored by one process; train with val_split=null, then run `segtailor eval`."
            )

    def scores(self, *, without: Sequence[int] = ()) -> PoseScores:
        """Return all figures that the data allows."""
        del without
        if not self._truth:
            return PoseScores()
        found, truth = np.stack(self._found), np.stack(self._truth)
        heads = np.where(truth[:, -1, 0] > 0, truth[:, -1, 0], np.nan)
        coarse, fine = (
            pckh(found, truth[:, :-1], heads, skeleton=self.skeleton, threshold=threshold)
            for threshold in (COARSE_HEAD_SIZES, FINE_HEAD_SIZES)
        )
        precise = self._precision(found, truth) if self.skeleton.sigmas else None
        return PoseScores(
            pckh=coarse.mean,
            pckh_fine=fine.mean,
            **({} if precise is None else {name: getattr(precise, name) for name in COCO_FIGURES}),
            joints=tuple(coarse.per_joint[name] for name in self.skeleton.joints),
            images=self.images,
        )

    def _precision(self, found: NDArray[np.float32], truth: NDArray[np.float32]) -> KeypointScores:
        if self._cuts:
            return keypoint_scores(*found_people(found, self._cuts, self.skeleton), self.skeleton)
        people = [
            Person(
                id=str(index),
                picture=str(index),
                box=_box(row[:-1]),
                joints=row[:-1],
                area=float(row[-1, 1]) or None,
            )
            for index, row in enumerate(truth)
        ]
        guesses = [
            Found(picture=str(index), joints=joints[:, :2], score=person_score(joints))
            for index, joints in enumerate(found)
        ]
        return keypoint_scores(guesses, people, self.skeleton)


@dataclass(frozen=True, kw_only=True)
class Pckh:
    """Shares between 0 and 1, None where no joint counted; `counted` joints went into `mean`."""

    threshold: float
    mean: float | None
    per_joint: dict[str, float | None]
    counted: int


def pckh(
    found: ArrayLike, truth: ArrayLike, head_sizes: ArrayLike, *, skeleton: Skeleton, threshold: float = 0.5
) -> Pckh:
    """Compare found joints (people, joints, 2 or more) with the truth (people, joints, 3), all in picture pixels.

    A joint counts where the truth is labelled and the person's head size (people,) is known, i.e. finite and above 0;
    it is right at a distance of at most `threshold` head sizes. The mean is over all counted joints of the skeleton
    but the unscored ones, as in the published figures. A found joint at NaN counts as wrong.
    """
    places, known = np.asarray(found, np.float64), np.asarray(truth, np.float64)
    sizes = np.asarray(head_sizes, np.float64)  # None becomes NaN
    people = len(known)
    if (
        known.shape != (people, skeleton.count, 3)
        or places.shape[:2] != known.shape[:2]
        or places.ndim != 3
        or places.shape[2] < 2
        or sizes.shape != (people,)
    ):
        raise DataProblem(
            f"PCKh of joints {places.shape} against {known.shape} with head sizes {sizes.shape} cannot be computed; "
            f"give (people, {skeleton.count}, 3) twice and (people,)."
        )
    counted = (known[:, :, 2] > 0) & (np.isfinite(sizes) & (sizes > 0))[:, None]
    right = _distances(places, known, sizes) <= threshold
    right &= counted
    scored = [joint for joint in range(skeleton.count) if joint not in skeleton.unscored]
    return Pckh(
        threshold=threshold,
        mean=_share(right[:, scored], counted[:, scored]),
        per_joint={
            name: _share(right[:, joint], counted[:, joint]) for joint, name in enumerate(skeleton.joints)
        },
        counted=int(counted[:, scored].sum()),
    )


def _box(joints: NDArray[np.float32]) -> tuple[float, float, float, float]:
    """Return the box around the labelled joints: its area is used where the area of the person is unknown."""
    known = joints[joints[:, 2] > 0, :2]
    if not len(known):
        return 0.0, 0.0, 1.0, 1.0
    (left, top), (right, bottom) = known.min(0), known.max(0)
    return float(left), float(top), float(max(right - left, 1)), float(max(bottom - top, 1))


def _distances(
    places: NDArray[np.float64], known: NDArray[np.float64], sizes: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return distances in head sizes; infinite where anything is NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        distances = np.hypot(*np.moveaxis(places[..., :2] - known[..., :2], -1, 0)) / sizes[:, None]
    return np.where(np.isfinite(distances), distances, np.inf)


def _share(right: NDArray[np.bool_], counted: NDArray[np.bool_]) -> float | None:
    total = int(counted.sum())
    return float(right.sum() / total) if total else None
