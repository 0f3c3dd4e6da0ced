"""The skeletons hold together: sides, limbs, sigmas."""

from __future__ import annotations

import pytest

from segtailor.core.errors import DataProblem, UnknownName
from segtailor.tasks.pose.skeletons import COCO, MPII, SKELETONS, Skeleton, skeleton_called


@pytest.mark.parametrize("skeleton", SKELETONS.values(), ids=SKELETONS)
def test_pairs_are_exactly_the_two_sides_of_each_joint(skeleton: Skeleton) -> None:
    for one, other in enumerate(skeleton.mirrored):
        swaps = {"left": "right", "right": "left"}
        words = [swaps.get(word, word) for word in skeleton.joints[one].split()]
        assert skeleton.joints[other] == " ".join(words)


@pytest.mark.parametrize("skeleton", SKELETONS.values(), ids=SKELETONS)
def test_limbs_connect_every_joint_to_every_other(skeleton: Skeleton) -> None:
    reached = {0}
    for _ in skeleton.joints:
        reached |= {joint for limb in skeleton.limbs if reached & set(limb) for joint in limb}
    assert reached == set(range(skeleton.count))
    mirrored = {frozenset(skeleton.mirrored[joint] for joint in limb) for limb in skeleton.limbs}
    assert mirrored == {frozenset(limb) for limb in skeleton.limbs}


def test_counts_and_sigmas_are_the_published_ones() -> None:
    assert (MPII.count, COCO.count) == (16, 17)
    assert sum(COCO.sigmas) == pytest.approx(1.138)  # 0.26 + 2 (0.25 + 0.35 + 0.79 + ... + 0.89), over 10
    assert all(COCO.sigmas[one] == COCO.sigmas[other] for one, other in COCO.pairs)
    assert [MPII.joints[joint] for joint in MPII.unscored] == ["pelvis", "thorax"]
    assert [MPII.joints[joint] for joint in MPII.head or ()] == ["upper neck", "head top"]


def test_names_are_looked_up_and_mistakes_explained() -> None:
    assert skeleton_called("coco") is COCO
    with pytest.raises(UnknownName, match="did you mean 'mpii'"):
        skeleton_called("mpi")
    with pytest.raises(DataProblem, match="names joint 2"):
        Skeleton(name="pair", joints=("a", "b"), pairs=(), limbs=((0, 2),))
    with pytest.raises(DataProblem, match="1 sigmas for 2 joints"):
        Skeleton(name="pair", joints=("a", "b"), pairs=(), limbs=(), sigmas=(0.1,))
