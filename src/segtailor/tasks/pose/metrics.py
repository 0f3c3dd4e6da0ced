"""PCKh (Andriluka et al., 2014): the share of joints found within a fraction of the head's size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from segtailor.core.errors import DataProblem
from segtailor.tasks.pose.skeletons import Skeleton


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
    but the unscored ones, as in the published figures. Places that are no number are wrong, not errors.
    """
    places, known = np.asarray(found, np.float64), np.asarray(truth, np.float64)
    sizes = np.asarray(head_sizes, np.float64)  # None becomes a number that is not finite
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


def _distances(
    places: NDArray[np.float64], known: NDArray[np.float64], sizes: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return distances in head sizes; infinite where anything is no number."""
    with np.errstate(divide="ignore", invalid="ignore"):
        distances = np.hypot(*np.moveaxis(places[..., :2] - known[..., :2], -1, 0)) / sizes[:, None]
    return np.where(np.isfinite(distances), distances, np.inf)


def _share(right: NDArray[np.bool_], counted: NDArray[np.bool_]) -> float | None:
    total = int(counted.sum())
    return float(right.sum() / total) if total else None
