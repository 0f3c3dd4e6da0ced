"""People as samples: cut by their boxes, cached, examined by the doctor."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from segtailor.core.errors import DataProblem
from segtailor.data import doctor
from segtailor.data.cache import open_pixels
from segtailor.data.checks.rules import joint_counts
from segtailor.data.locate import locate
from segtailor.data.sheet import contact_sheet
from segtailor.tasks.pose.heatmaps import HeatMaps

PEOPLE = "synthetic:task=pose,size=64x64,crop=64x48,train=6,val=2"


def mpii(folder: Path, *, scale: float = 0.2, place: tuple[float, float] = (30.0, 20.0)) -> Path:
    (folder / "images").mkdir(parents=True)
    (folder / "annot").mkdir()
    Image.fromarray(np.full((48, 64, 3), 90, np.uint8)).save(folder / "images/a.png")
    row = {
        "image": "a.png",
        "joints": [[place[0] + joint, place[1]] for joint in range(16)],
        "joints_vis": [1] * 16,
        "center": [32.0, 24.0],
        "scale": scale,
        "headbox": [28, 10, 34, 18],
    }
    for split in ("train", "valid"):
        (folder / f"annot/{split}.json").write_text(json.dumps([row]))
    return folder


def test_a_sample_is_a_crop_with_joints_and_measures(tmp_path: Path) -> None:
    data = locate(f"mpii:{mpii(tmp_path / 'mpii')}?height=64&width=64")
    assert data.task.kind == "pose"
    assert data.task.crop == (64, 64)
    pair = data.samples("train")[0].read()
    assert pair.image.shape == (64, 64, 3)
    assert pair.labels.shape == (17, 3)
    zoom = 64 / (0.2 * 200 * 1.25)  # the box of 40 pixels and its margin fill the crop
    assert pair.labels[1, 0] - pair.labels[0, 0] == pytest.approx(zoom, rel=1e-4)
    assert pair.labels[-1, 0] == pytest.approx(0.6 * np.hypot(6, 8) * zoom, rel=1e-4)


def test_people_go_through_the_cache_unchanged(tmp_path: Path) -> None:
    data = locate(PEOPLE)
    pixels = open_pixels(data, "train", tmp_path)
    for index, sample in enumerate(data.samples("train")):
        assert (pixels.pair(index).labels == sample.read().labels).all()
        assert (pixels.pair(index).image == sample.read().image).all()
    images, joints = pixels.canvas()
    assert images.shape == (6, 64, 48, 3)
    assert joints.shape == (6, 17, 3)


def test_another_size_is_another_sample() -> None:
    one, other = (locate(PEOPLE.replace("64x48", size)).samples("train")[0] for size in ("64x48", "64x64"))
    assert one.fingerprint != other.fingerprint


def test_the_doctor_finds_healthy_people_healthy() -> None:
    report = doctor.check(locate(PEOPLE))
    assert report.ok
    assert report.splits["train"].shares.keys() == set(locate(PEOPLE).task.classes)


def test_people_without_a_joint_in_their_box_stop_a_training(tmp_path: Path) -> None:
    report = doctor.check(locate(f"mpii:{mpii(tmp_path / 'mpii', scale=0.02, place=(50.0, 40.0))}"))
    assert "no-joints" in {finding.kind for finding in report.errors}


def test_joints_outside_of_the_crop_stay_in_the_truth_and_boxes_without_area_are_refused(
    tmp_path: Path,
) -> None:
    beyond = locate(f"mpii:{mpii(tmp_path / 'a', place=(44.0, 20.0))}").samples("train")[0].read()
    size = (beyond.image.shape[0], beyond.image.shape[1])
    assert (beyond.labels[:-1, 2] > 0).all()  # those beyond the crop are part of the truth
    assert 0 < joint_counts(beyond.labels, size=size)[:16].sum() < 16  # but a network cannot see them
    _, weights = HeatMaps(size=size).encode(torch.from_numpy(beyond.labels[:-1])[None])
    assert weights.sum() == joint_counts(beyond.labels, size=size)[:16].sum()
    with pytest.raises(DataProblem, match="holds nothing"):
        locate(f"mpii:{mpii(tmp_path / 'b', scale=0.0)}").samples("train")


def test_joints_are_counted_by_their_number() -> None:
    target = np.zeros((4, 3), np.float32)
    target[1] = (3, 4, 2)
    counts = joint_counts(target)
    assert counts[:3].tolist() == [0, 1, 0]
    assert counts[255] == 2


def test_a_contact_sheet_draws_people() -> None:
    assert contact_sheet(locate(PEOPLE), "train", count=2).picture.size[0] > 600
