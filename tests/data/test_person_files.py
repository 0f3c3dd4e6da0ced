"""MPII and COCO people, each on a tiny tree in its own layout, and annotations nobody should trust."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segtailor.core.errors import DataProblem, UnknownName
from segtailor.data import coco_keypoints, mpii
from segtailor.data.coco_keypoints import CocoKeypoints
from segtailor.data.mpii import Mpii
from segtailor.data.person_crops import PersonFiles
from tests.data.trees import write_image

SIZE = (40, 60)


def mpii_row(**changes: Any) -> dict[str, Any]:
    row = {
        "image": "a.png",
        "joints": [[3.0 + joint, 5.0 + 2 * joint] for joint in range(16)],
        "joints_vis": [1] * 15 + [0],
        "center": [31.0, 21.0],
        "scale": 0.2,
    }
    return {**row, **changes}


def coco_row(**changes: Any) -> dict[str, Any]:
    joints = [value for joint in range(17) for value in (joint + 2, 2 * joint + 1, joint % 3)]
    row = {
        "id": 9,
        "image_id": 4,
        "keypoints": joints,
        "num_keypoints": 11,
        "bbox": [1, 2, 30.5, 35],
        "area": 700.5,
    }
    return {**row, "iscrowd": 0, "category_id": 1, **changes}


def mpii_tree(root: Path, *rows: Any) -> Mpii:
    write_image(root / "images" / "a.png", SIZE)
    (root / "annot").mkdir(exist_ok=True)
    (root / "annot" / "train.json").write_text(json.dumps(rows or [mpii_row()]))
    return Mpii(path=root)


def coco_tree(root: Path, *rows: Any, **image: Any) -> CocoKeypoints:
    write_image(root / "val2017" / "a.png", SIZE)
    (root / "annotations").mkdir(exist_ok=True)
    images = [{"id": 4, "file_name": "a.png", "height": SIZE[0], "width": SIZE[1], **image}]
    document = {"images": images, "annotations": list(rows) or [coco_row()]}
    (root / "annotations" / "person_keypoints_val2017.json").write_text(json.dumps(document))
    return CocoKeypoints(path=root)


def messages(source: PersonFiles) -> list[str]:
    return [f"{severity}: {message}. {fix}" for severity, _, _, message, fix in source.problems()]


def test_mpii_people_count_pixels_from_zero(tmp_path: Path) -> None:
    source = mpii_tree(tmp_path)
    (sample,) = source.samples("train")
    image, person = sample.read()
    assert image.shape == (*SIZE, 3)
    assert person.joints[3].tolist() == [5, 10, 1]
    assert person.joints[15].tolist() == [0, 0, 0]
    x, y, width, height = person.box  # 200 * scale pixels; the centre moves down by 15 * scale
    assert (width, height) == (40, 40)
    assert (x + (width - 1) / 2, y + (height - 1) / 2) == pytest.approx((30, 20 + 3))
    assert person.head_size == pytest.approx(np.hypot(1, 2))  # from upper neck to head top
    assert source.splits == ("train",)
    assert messages(source) == []


def test_mpii_head_boxes_give_the_published_head_size(tmp_path: Path) -> None:
    hidden = [1] * 8 + [0] * 8
    source = mpii_tree(tmp_path, mpii_row(headbox=[10, 10, 13, 14]), mpii_row(joints_vis=hidden))
    assert [one.head_size for one in source.people("train")] == [pytest.approx(0.6 * 5), None]


def test_mpii_accepts_one_file_and_names_its_splits(tmp_path: Path) -> None:
    mpii_tree(tmp_path)
    (tmp_path / "annot" / "valid.json").write_text(json.dumps([mpii_row(), mpii_row()]))
    assert Mpii(path=tmp_path).splits == ("train", "val")
    alone = Mpii(path=tmp_path / "annot" / "valid.json")
    assert [sample.name for sample in alone.samples("val")] == ["000000", "000001"]
    assert alone.samples("val")[0].read().image.shape == (*SIZE, 3)
    with pytest.raises(UnknownName, match="did you mean 'train'"):
        Mpii(path=tmp_path).samples("trian")


def test_coco_people_keep_their_numbers(tmp_path: Path) -> None:
    source = coco_tree(tmp_path)
    (sample,) = source.samples("val")
    _, person = sample.read()
    assert (person.id, person.box, person.area, person.crowd) == ("9", (1, 2, 30.5, 35), 700.5, False)
    assert person.joints[:3].tolist() == [[0, 0, 0], [3, 3, 1], [4, 5, 2]]
    assert source.splits == ("val",)
    assert messages(source) == []
    assert CocoKeypoints(path=tmp_path / "annotations" / "person_keypoints_val2017.json").splits == ("val",)


def test_coco_groups_and_people_without_joints_are_known_but_no_samples(tmp_path: Path) -> None:
    rows = (coco_row(), coco_row(id=10, iscrowd=1), coco_row(id=11, keypoints=[0] * 51))
    source = coco_tree(tmp_path, *rows)
    assert [one.id for one in source.people("val")] == ["9", "10", "11"]
    assert [sample.name for sample in source.samples("val")] == ["9"]


def test_joints_outside_the_picture_are_told_and_not_counted(tmp_path: Path) -> None:
    far = coco_row()["keypoints"].copy()
    far[3:6], far[6:9] = (60, 5, 2), (5, -1, 1)
    source = coco_tree(tmp_path, coco_row(keypoints=far))
    assert messages(source) == [
        "warning: person 9: left eye, right eye outside the picture; not counted. "
        "Set their visibility to 0, or correct their place."
    ]
    assert source.people("val")[0].joints[1:3].tolist() == [[0, 0, 0], [0, 0, 0]]


def test_mpii_joints_beyond_the_far_border_are_dropped_on_reading(tmp_path: Path) -> None:
    joints = mpii_row()["joints"]
    joints[2] = [61.5, 7.0]
    source = mpii_tree(tmp_path, mpii_row(joints=joints))
    _, person = source.samples("train")[0].read()
    assert person.labelled.tolist() == [joint not in (2, 15) for joint in range(16)]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"scale": 0.0}, "a box of 0 x 0 pixels, which holds nothing"),
        ({"scale": -1}, "which holds nothing"),
        ({"scale": "large"}, "Give [x, y] and a number"),
        ({"center": [1, None]}, "Give [x, y] and a number"),
        ({"joints": [[1, 2]] * 17, "joints_vis": [1] * 17}, "has joints of shape (17, 3)"),
        ({"joints": [[1, 2]] * 15}, "Give 16 of each"),
        ({"joints": [[1, 2]] * 15 + [[1]]}, "expected are 16 x 3 numbers"),
        ({"joints": [[float("nan"), 2]] * 16}, "joint 0 at [nan, 2.0, 1.0], which is not a place"),
        ({"joints": [[10**400, 2]] * 16}, "expected are 16 x 3 numbers"),
        ({"image": "../../secret.png"}, "is not a file below"),
        ({"image": "/etc/passwd"}, "is not a file below"),
        ({"image": 3}, "is not a file below"),
        ({"headbox": [1, 2, 3]}, "Give four numbers: x1, y1, x2, y2"),
    ],
)
def test_an_unusable_mpii_person_is_left_out_and_explained(tmp_path: Path, change: Any, told: str) -> None:
    source = mpii_tree(tmp_path, mpii_row(), mpii_row(**change))
    assert len(source.samples("train")) == 1
    (message,) = messages(source)
    assert message.startswith("error: person 1 ")
    assert told in message


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"bbox": [5, 5, 0, 10]}, "a box of 0 x 10 pixels, which holds nothing"),
        ({"bbox": [5, 5, float("nan"), 10]}, "which is not one. Give four numbers"),
        ({"bbox": None}, "which is not one. Give four numbers"),
        ({"bbox": [True, 5, 6, 10]}, "which is not one. Give four numbers"),
        ({"keypoints": [1, 2, 2] * 16}, "has joints of shape (16, 3)"),
        ({"keypoints": [1, 2, 2] * 16 + [1, 2]}, "expected are 17 x 3 numbers"),
        ({"keypoints": "many"}, "expected are 17 x 3 numbers"),
        ({"keypoints": [1, float("inf"), 2] * 17}, "which is not a place in a picture"),
        ({"image_id": 5}, "which is not listed"),
        ({"image_id": [4]}, "which is not listed"),
        ({"area": -3}, "has area -3"),
    ],
)
def test_an_unusable_coco_person_is_left_out_and_explained(tmp_path: Path, change: Any, told: str) -> None:
    source = coco_tree(tmp_path, coco_row(), coco_row(id=10, **change))
    assert len(source.samples("val")) == 1
    (message,) = messages(source)
    assert message.startswith("error: annotation 10 ")
    assert told in message


def test_missing_fields_rows_and_doubled_ids_are_told(tmp_path: Path) -> None:
    short_row = {"id": 11, "image_id": 4}
    source = coco_tree(tmp_path, coco_row(), coco_row(), short_row, "row")
    told = messages(source)
    assert len(told) == 3
    assert "the id 9 stands for two people" in told[0]
    assert "annotation 11 has no keypoints, bbox" in told[1]
    assert "annotation number 3 is 'row'" in told[2]
    lone = mpii_tree(tmp_path, mpii_row(), {"image": "a.png"}, 5)
    assert "person 1 has no joints, joints_vis, center, scale" in messages(lone)[0]
    assert "person 2 is 5" in messages(lone)[1]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "not valid JSON"),
        ("[]", "an empty list"),
        ("{}", "no list but a dict"),
        ("[1]", "no usable person"),
    ],
)
def test_an_mpii_file_without_people_is_refused(tmp_path: Path, content: str, told: str) -> None:
    source = mpii_tree(tmp_path)
    (tmp_path / "annot" / "train.json").write_text(content)
    with pytest.raises(DataProblem, match=told):
        source.samples("train")


@pytest.mark.parametrize("content", ["", "[]", '{"images": []}', '{"images": [], "annotations": []}', "[[[["])
def test_a_coco_file_without_people_is_refused(tmp_path: Path, content: str) -> None:
    source = coco_tree(tmp_path)
    (tmp_path / "annotations" / "person_keypoints_val2017.json").write_text(content)
    with pytest.raises(DataProblem, match=r"not valid JSON|Expected is the JSON of COCO"):
        source.samples("val")


def test_wrong_places_matlab_files_and_huge_files_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (Mpii, CocoKeypoints):
        with pytest.raises(DataProblem, match=r"has no annot.*Expected is"):
            _ = kind(path=tmp_path / "nowhere").splits
    (tmp_path / "mpii.mat").write_bytes(b"MATLAB 5.0")
    with pytest.raises(DataProblem, match=r"MATLAB file, which is not read. Expected is a JSON list"):
        Mpii(path=tmp_path / "mpii.mat").samples("mpii")
    monkeypatch.setattr(mpii, "MAX_FILE_BYTES", 10)
    monkeypatch.setattr(coco_keypoints, "MAX_FILE_BYTES", 10)
    with pytest.raises(DataProblem, match="at most 10 are read"):
        mpii_tree(tmp_path).samples("train")
    with pytest.raises(DataProblem, match="at most 10 are read"):
        coco_tree(tmp_path).samples("val")


def scrambled(value: Any, rng: random.Random) -> Any:
    """Leave things out and put junk in their place."""
    if rng.random() < 0.15:
        return rng.choice(
            [None, True, -1, 1e308, float("nan"), 10**400, "", "a\0b", "..", [], {}, [[]], ["a"] * 4]
        )
    if isinstance(value, dict):
        kept = {key: one for key, one in value.items() if rng.random() > 0.04}
        return {key: scrambled(one, rng) if rng.random() < 0.3 else one for key, one in kept.items()}
    if isinstance(value, list):
        return [scrambled(one, rng) if rng.random() < 0.1 else one for one in value if rng.random() > 0.02]
    return value


def test_scrambled_files_are_read_or_refused_but_never_crash(tmp_path: Path) -> None:
    images = [{"id": 4, "file_name": "a.png", "height": SIZE[0], "width": SIZE[1]}]
    coco = {"images": images, "annotations": [coco_row(), coco_row(id=10)]}
    read = 0
    for seed in range(120):
        document, kind = (coco, CocoKeypoints) if seed % 2 else ([mpii_row()] * 2, Mpii)
        file = tmp_path / "person_keypoints_val.json"
        file.write_text(json.dumps(scrambled(document, random.Random(seed))))
        source = kind(path=file)
        try:
            people = source.people(*source.splits)
        except DataProblem:
            continue
        read += 1
        assert all(np.isfinite(one.joints).all() and min(one.box[2:]) > 0 for one in people)
    assert 20 < read < 115


def test_a_stamp_changes_with_picture_and_annotation(tmp_path: Path) -> None:
    first = mpii_tree(tmp_path).samples("train")[0]
    moved = mpii_tree(tmp_path, mpii_row(scale=0.3)).samples("train")[0]
    assert first.fingerprint.split(":")[0] == moved.fingerprint.split(":")[0]
    assert first.fingerprint != moved.fingerprint
    (tmp_path / "images" / "a.png").unlink()
    with pytest.raises(DataProblem, match=r"a\.png"):
        first.read()
