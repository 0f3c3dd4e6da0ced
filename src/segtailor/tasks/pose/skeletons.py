"""Skeletons: names and order of the joints, pairs of left and right, limbs. MPII has 16 joints, COCO 17."""

from __future__ import annotations

from dataclasses import dataclass

from segtailor.core.errors import DataProblem, unknown


@dataclass(frozen=True, kw_only=True)
class Skeleton:
    """Joints in the order of a dataset; `pairs`, `limbs` and `unscored` hold indices of joints.

    `pairs` are (one side, other side), swapped when a picture is mirrored; `limbs` are lines to draw; `unscored`
    joints do not count in the mean PCKh; `sigmas` scale the distances of OKS (empty: the dataset has none);
    `head` is (lower, upper end) of the head where the skeleton has both.
    """

    name: str
    joints: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]
    limbs: tuple[tuple[int, int], ...]
    sigmas: tuple[float, ...] = ()
    unscored: tuple[int, ...] = ()
    head: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.sigmas and len(self.sigmas) != len(self.joints):
            raise DataProblem(
                f"skeleton '{self.name}' has {len(self.sigmas)} sigmas for {len(self.joints)} joints; give one each."
            )
        used = {
            index for part in (*self.pairs, *self.limbs, self.unscored, self.head or ()) for index in part
        }
        if not used <= set(range(len(self.joints))):
            raise DataProblem(
                f"skeleton '{self.name}' has {len(self.joints)} joints but names joint {max(used)}; count from 0."
            )

    @property
    def count(self) -> int:
        """Number of joints: the channels a network for this skeleton predicts."""
        return len(self.joints)

    @property
    def mirrored(self) -> tuple[int, ...]:
        """For every joint, the joint that takes its place when left and right are swapped."""
        order = list(range(self.count))
        for one, other in self.pairs:
            order[one], order[other] = other, one
        return tuple(order)

    def side(self, joint: int) -> str:
        """Return `left`, `right` or `middle`, as the joint's name says."""
        first = self.joints[joint].split()[0]
        return first if first in ("left", "right") else "middle"


# Andriluka et al., 2D Human Pose Estimation, CVPR 2014; order of the released annotations (ids 0 to 15).
# The published mean PCKh leaves out pelvis and thorax, which annotators place too differently.
MPII = Skeleton(
    name="mpii",
    joints=(
        "right ankle",
        "right knee",
        "right hip",
        "left hip",
        "left knee",
        "left ankle",
        "pelvis",
        "thorax",
        "upper neck",
        "head top",
        "right wrist",
        "right elbow",
        "right shoulder",
        "left shoulder",
        "left elbow",
        "left wrist",
    ),
    pairs=((0, 5), (1, 4), (2, 3), (10, 15), (11, 14), (12, 13)),
    limbs=(
        (0, 1),
        (1, 2),
        (2, 6),
        (6, 3),
        (3, 4),
        (4, 5),
        (6, 7),
        (7, 8),
        (8, 9),
        (10, 11),
        (11, 12),
        (12, 7),
        (7, 13),
        (13, 14),
        (14, 15),
    ),
    unscored=(6, 7),
    head=(8, 9),
)

# Order, limbs and sigmas of the COCO keypoint challenge (cocodataset.org/#keypoints-eval); the sigmas are the spread
# between annotators per joint, relative to the root of the person's area.
COCO = Skeleton(
    name="coco",
    joints=(
        "nose",
        "left eye",
        "right eye",
        "left ear",
        "right ear",
        "left shoulder",
        "right shoulder",
        "left elbow",
        "right elbow",
        "left wrist",
        "right wrist",
        "left hip",
        "right hip",
        "left knee",
        "right knee",
        "left ankle",
        "right ankle",
    ),
    pairs=tuple((index, index + 1) for index in range(1, 17, 2)),
    limbs=(
        (15, 13),
        (13, 11),
        (16, 14),
        (14, 12),
        (11, 12),
        (5, 11),
        (6, 12),
        (5, 6),
        (5, 7),
        (6, 8),
        (7, 9),
        (8, 10),
        (1, 2),
        (0, 1),
        (0, 2),
        (1, 3),
        (2, 4),
        (3, 5),
        (4, 6),
    ),
    sigmas=(
        *(0.026, 0.025, 0.025, 0.035, 0.035, 0.079, 0.079, 0.072, 0.072),
        *(0.062, 0.062, 0.107, 0.107, 0.087, 0.087, 0.089, 0.089),
    ),
)

SKELETONS = {skeleton.name: skeleton for skeleton in (MPII, COCO)}


def skeleton_called(name: str) -> Skeleton:
    """Return a skeleton by name, or raise `UnknownName`."""
    if name not in SKELETONS:
        raise unknown("skeleton", name, SKELETONS)
    return SKELETONS[name]
