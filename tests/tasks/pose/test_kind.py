"""Pose as a kind: joints follow their crops, mirrored people change sides, maps are learnt where joints are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from segtailor.core.errors import DataProblem, Unsupported, UserError
from segtailor.core.task import Preprocessing, Task
from segtailor.data.augment import Augment, draw, resample
from segtailor.data.locate import locate
from segtailor.tasks import Look, LossSettings, kind_of
from segtailor.tasks.pose.heatmaps import HeatMaps
from segtailor.tasks.pose.scoring import PoseMeter
from segtailor.tasks.pose.skeletons import COCO, MPII

SIZE = (32, 48)
TASK = Task(classes=MPII.joints, kind="pose", skeleton="mpii", crop=SIZE)
PLAIN = Preprocessing(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
CPU = torch.device("cpu")


def marked(seed: int) -> tuple[Tensor, Tensor]:
    """A picture whose only bright pixel is where the first joint is; the others are at the same place."""
    rng = np.random.default_rng(seed)
    y, x = int(rng.integers(8, 24)), int(rng.integers(12, 36))
    image = torch.zeros(1, 3, *SIZE, dtype=torch.uint8)
    image[..., y, x] = 255
    target = torch.tensor([[x, y, 2.0]]).repeat(17, 1)
    target[-1] = torch.tensor([6.0, 50.0, 0.0])
    return image, target[None]


def test_joints_stay_on_their_pixels_whatever_happens_to_the_crop() -> None:
    targets = kind_of(TASK).targets(TASK)
    augment = Augment(crop=SIZE, scale=(0.8, 1.4), flip=0.5, rotate=40.0)
    seen = 0
    for seed in range(40):
        image, target = marked(seed)
        drawn = draw(augment, np.array([SIZE]), rng=np.random.default_rng(seed))
        crop, joints = resample(
            image, target, index=np.arange(1), drawn=drawn, preprocessing=PLAIN, targets=targets
        )
        if joints[0, 0, 2] == 0:  # it has left the crop
            continue
        weight = crop[0, 0] / crop[0, 0].sum()
        row, column = (
            (weight.sum(1) * torch.arange(SIZE[0])).sum(),
            (weight.sum(0) * torch.arange(SIZE[1])).sum(),
        )
        assert joints[0, 0, :2].tolist() == pytest.approx([float(column), float(row)], abs=0.75)
        seen += 1
    assert seen > 20


def test_a_mirrored_person_changes_sides() -> None:
    target = torch.zeros(1, 17, 3)
    target[0, 0] = torch.tensor([5.0, 7.0, 2.0])  # the right ankle
    drawn = draw(
        Augment(crop=SIZE, scale=(1.0, 1.0), flip=1.0), np.array([SIZE]), rng=np.random.default_rng(0)
    )
    image = torch.zeros(1, 3, *SIZE, dtype=torch.uint8)
    targets = kind_of(TASK).targets(TASK)
    _, found = resample(image, target, index=np.arange(1), drawn=drawn, preprocessing=PLAIN, targets=targets)
    left = MPII.joints.index("left ankle")
    assert found[0, left].tolist() == [42.0, 7.0, 2.0]
    assert not found[0, 0].any()


def test_measures_follow_the_scale() -> None:
    image, target = marked(0)
    drawn = draw(
        Augment(crop=SIZE, scale=(2.0, 2.0), flip=0.0), np.array([SIZE]), rng=np.random.default_rng(0)
    )
    targets = kind_of(TASK).targets(TASK)
    _, found = resample(image, target, index=np.arange(1), drawn=drawn, preprocessing=PLAIN, targets=targets)
    assert found[0, -1].tolist() == [12.0, 200.0, 0.0]


def test_labels_and_depth_turn_with_their_pictures() -> None:
    labels = torch.zeros(1, 9, 9, dtype=torch.uint8)
    labels[0, 0, 4] = 7
    task = Task(classes=tuple("abcdefgh"))
    quarter = torch.tensor([np.pi / 2], dtype=torch.float32)
    found = kind_of(task).targets(task).turn(labels, quarter, (9, 9))
    assert found[0].argmax().item() == 4 * 9 + 8  # the top goes to the right: clockwise
    wide = kind_of(task).targets(task).turn(torch.zeros(1, 4, 12, dtype=torch.uint8), quarter, (4, 12))
    assert set(wide.unique().tolist()) == {0, 255}


def test_the_loss_is_the_squared_error_of_labelled_joints() -> None:
    _, target = marked(1)
    target[0, 3, 2] = 0
    criterion = kind_of(TASK).criterion(LossSettings(), task=TASK, device=CPU)
    maps, weights = HeatMaps(size=SIZE).encode(target[:, :-1])
    assert float(criterion.normaliser(target)) == 15 == float(weights.sum())
    perfect = criterion({"main": maps}, target, normaliser=criterion.normaliser(target))
    zeros = criterion({"main": torch.zeros_like(maps)}, target, normaliser=criterion.normaliser(target))
    assert float(perfect) == 0
    expected = np.mean([float((maps[0, joint] ** 2).mean()) for joint in range(16) if joint != 3])
    assert float(zeros) == pytest.approx(expected)
    with pytest.raises(Unsupported, match="has no effect for the task 'pose'"):
        kind_of(TASK).criterion(LossSettings(ohem=0.5), task=TASK, device=CPU)


def test_encoded_joints_decode_to_where_they_were() -> None:
    target = torch.tensor([[9.5 + joint, 6.0 + joint, 2.0] for joint in range(16)])[None]
    maps, _ = HeatMaps(size=SIZE).encode(target)
    found = kind_of(TASK).decode(maps, SIZE, task=TASK, align_corners=False)
    assert (found[0, :, :2] - target[0, :, :2]).abs().max() <= 2.0  # half a map pixel


def test_figures_without_head_sizes_are_average_precision() -> None:
    people = torch.rand(4, 17, 3) * 100 + 1
    truth = torch.cat([people, torch.tensor([[[0.0, 900.0, 0.0]]]).repeat(4, 1, 1)], dim=1)
    meter = PoseMeter(COCO)
    meter.add(people, truth)
    scores = meter.scores()
    assert scores.pckh is None
    assert scores.ap == scores.quality == pytest.approx(1.0)
    assert PoseMeter(COCO).scores().quality == 0


def test_pose_is_scored_by_one_process() -> None:
    meter = PoseMeter(MPII)
    meter.merge(lambda own: own)
    with pytest.raises(Unsupported, match="one process"):
        meter.merge(lambda own: own + 3)


def test_a_picture_of_any_shape_is_seen_as_one_person_and_joints_come_back_to_it() -> None:
    kind = kind_of(TASK)
    picture = np.zeros((90, 60, 3), np.uint8)
    seen, back = kind.view(picture, TASK)
    assert seen.shape == (*SIZE, 3)
    middle = np.array([[(SIZE[1] - 1) / 2, (SIZE[0] - 1) / 2, 0.9]], np.float32)
    assert back(middle)[0].tolist() == pytest.approx([29.5, 44.5, 0.9], abs=1e-4)


def test_pictures_legends_and_numbers_of_people() -> None:
    kind = kind_of(TASK)
    joints = np.tile(np.array([[20.0, 10.0, 0.8]], np.float32), (16, 1))
    joints[:, 0] += np.arange(16)
    image = np.full((*SIZE, 3), 60, np.uint8)
    assert (np.asarray(kind.paint(image, joints, TASK, Look())) != image).any()
    assert kind.describe(joints, TASK)["head top"] == pytest.approx(0.8)
    assert "100.0%" in kind.legend([np.concatenate([joints, joints[:1]])], TASK)[-1][1]
    assert kind.agree(joints, joints + 1.0).all()
    assert not kind.agree(joints, joints + 20.0).any()
    tied = joints + np.array([20.0, 0.0, 0.0], np.float32)
    assert kind.agree(joints, tied).all()  # another peak of the same height


def test_nonsense_is_refused() -> None:
    kind = kind_of(TASK)
    with pytest.raises(UserError, match="not numbers"):
        kind.finish(np.full((16, 8, 12), np.nan), SIZE, task=TASK)
    with pytest.raises(DataProblem, match="joints"):
        kind.targets(Task(classes=("a",), kind="pose", skeleton="mpii"))
    with pytest.raises(DataProblem, match="multiples of 4"):
        locate("synthetic:task=pose,crop=30x30")
    with pytest.raises(DataProblem, match="known: size"):
        locate("synthetic:task=pose,crops=30x30")
