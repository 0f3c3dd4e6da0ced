"""People of one picture scored together, boxes of a detector, and training crops cut out of the whole picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import segtailor
from segtailor.core.errors import DataProblem
from segtailor.core.task import Preprocessing
from segtailor.data import doctor
from segtailor.data.augment import Augment
from segtailor.data.batches import Batches, batches_of
from segtailor.data.cache import Pixels, open_pixels
from segtailor.data.locate import locate
from segtailor.runs import Context
from segtailor.tasks import kind_of
from segtailor.tasks.pose import COCO
from segtailor.training.evaluate import score_predictions

LEFT, RIGHT = (20, 20, 40, 60), (110, 20, 40, 60)  # boxes: x, y, width, height
SIZE = "height=64&width=48"


def joints_in(box: tuple[int, ...], seed: int) -> list[list[float]]:
    rng = np.random.default_rng(seed)
    places = rng.uniform(0.1, 0.9, (17, 2)) * box[2:] + box[:2]
    return [[float(x), float(y), 2] for x, y in np.round(places)]


def coco(folder: Path, *boxes: tuple[int, ...], joints: bool = True) -> Path:
    """Write one picture of 100x180 with a person in each box, each joint a bright dot; the same for both splits."""
    picture = np.full((100, 180, 3), 40, np.uint8)
    rows: list[dict[str, Any]] = []
    for number, box in enumerate(boxes, start=1):
        places = joints_in(box, number)
        for x, y, _ in places:
            picture[int(y) - 1 : int(y) + 2, int(x) - 1 : int(x) + 2] = 255
        flat = [value for place in places for value in place] if joints else [0] * 51
        row = {"id": number, "image_id": 7, "category_id": 1, "keypoints": flat, "bbox": list(box)}
        rows.append({**row, "area": box[2] * box[3], "iscrowd": 0})
    (folder / "annotations").mkdir(parents=True)
    for split in ("train", "val"):
        (folder / f"{split}2017").mkdir()
        Image.fromarray(picture).save(folder / f"{split}2017/a.png")
        document = {"images": [{"id": 7, "file_name": "a.png"}], "annotations": rows}
        (folder / f"annotations/person_keypoints_{split}2017.json").write_text(json.dumps(document))
    return folder


def detections(file: Path, *boxes: tuple[tuple[int, ...], float]) -> Path:
    rows = [{"image_id": 7, "category_id": 1, "bbox": list(box), "score": score} for box, score in boxes]
    file.write_text(json.dumps(rows))
    return file


def opened(folder: Path, cache: Path, options: str = "") -> Pixels:
    return open_pixels(locate(f"coco-keypoints:{folder}?{SIZE}{options}"), "val", cache)


def scores_of(pixels: Pixels, found_in_picture: list[list[list[float]]]) -> Any:
    """Score predictions that are given for every crop, in pixels of the picture."""
    meter = kind_of(pixels.task).meter(pixels.task, torch.device("cpu"))
    for index, people in enumerate(found_in_picture):
        joints = np.array(people, np.float64)
        joints[:, 2] = 0.9
        crop = pixels.samples[index].crop  # type: ignore[attr-defined]
        meter.add(
            torch.from_numpy(crop.to_crop(joints))[None],
            torch.from_numpy(np.array(pixels.pair(index).labels))[None],
        )
        meter.images += 1
    meter.know(pixels.samples)  # type: ignore[attr-defined]
    return meter.scores()


def test_someone_found_in_the_box_of_a_neighbour_is_matched_with_the_neighbour(tmp_path: Path) -> None:
    pixels = opened(coco(tmp_path / "two", LEFT, RIGHT), tmp_path / "cache")
    left, right = joints_in(LEFT, 1), joints_in(RIGHT, 2)
    assert scores_of(pixels, [left, right]).ap == pytest.approx(1.0)
    assert scores_of(pixels, [right, left]).ap == pytest.approx(1.0)
    twice = scores_of(pixels, [left, left])
    assert twice.ar == pytest.approx(0.5)  # nobody is found twice
    assert twice.ap < 0.6


def test_the_boxes_of_a_detector_replace_the_annotated_ones_outside_of_training(tmp_path: Path) -> None:
    folder = coco(tmp_path / "two", LEFT, RIGHT)
    file = detections(tmp_path / "boxes.json", ((22, 18, 38, 62), 0.9), ((20, 22, 42, 58), 0.8))
    data = locate(f"coco-keypoints:{folder}?{SIZE}&boxes={file}")
    assert len(data.samples("train")) == 2
    assert [sample.name for sample in data.samples("train")] == ["1", "2"]
    pixels = open_pixels(data, "val", tmp_path / "cache")
    assert pixels.names == ("box 0", "box 1")
    left = joints_in(LEFT, 1)
    score = scores_of(pixels, [left, left])  # the same person twice: the second is left out
    assert score.ar == pytest.approx(0.5)  # nobody looked for the right one
    assert score.ap == pytest.approx(51 / 101)  # precision 1 up to a recall of a half
    assert doctor.check(data).ok  # it examines the annotated people


def test_pictures_in_which_a_detector_found_nobody_count_as_misses(tmp_path: Path) -> None:
    folder = coco(tmp_path / "two", LEFT)
    document = json.loads((folder / "annotations/person_keypoints_val2017.json").read_text())
    document["images"].append({"id": 8, "file_name": "b.png"})
    document["annotations"].append({**document["annotations"][0], "id": 9, "image_id": 8})
    (folder / "annotations/person_keypoints_val2017.json").write_text(json.dumps(document))
    file = detections(tmp_path / "boxes.json", (LEFT, 0.9))
    pixels = opened(folder, tmp_path / "cache", f"&boxes={file}")
    assert scores_of(pixels, [joints_in(LEFT, 1)]).ar == pytest.approx(0.5)


def test_the_score_of_a_box_orders_people(tmp_path: Path) -> None:
    folder = coco(tmp_path / "one", LEFT)
    wrong, right = RIGHT, LEFT
    for sure, unsure, better in ((right, wrong, 1.0), (wrong, right, 0.5)):
        file = detections(tmp_path / "boxes.json", (sure, 0.9), (unsure, 0.3))
        pixels = opened(folder, tmp_path / f"cache{better}", f"&boxes={file}")
        found = [joints_in(box, number) for number, box in enumerate((sure, unsure), start=1)]
        found[(sure, unsure).index(right)] = joints_in(LEFT, 1)
        found[(sure, unsure).index(wrong)] = joints_in(RIGHT, 2)
        assert scores_of(pixels, found).ap == pytest.approx(better)


def test_a_file_that_holds_no_boxes_is_refused(tmp_path: Path) -> None:
    folder = coco(tmp_path / "two", LEFT)
    for text, words in (("{}", "no list"), ('[{"image_id": 7, "category_id": 3}]', "no box of a person")):
        (tmp_path / "boxes.json").write_text(text)
        data = locate(f"coco-keypoints:{folder}?{SIZE}&boxes={tmp_path / 'boxes.json'}")
        with pytest.raises(DataProblem, match=words):
            data.samples("val")


def test_evaluation_tells_the_meter_which_people_it_saw(tmp_path: Path) -> None:
    folder = coco(tmp_path / "two", LEFT, RIGHT)
    pixels = opened(folder, tmp_path / "cache")
    truth = [joints_in(LEFT, 1), joints_in(RIGHT, 2)]
    answers = iter(reversed(range(2)))

    def swapped(image: np.ndarray) -> np.ndarray:
        del image
        index = next(answers)
        joints = np.array(truth[index], np.float64)
        return pixels.samples[1 - index].crop.to_crop(joints)  # type: ignore[attr-defined, no-any-return]

    scores: Any = score_predictions(swapped, pixels, task=pixels.task)
    assert scores.ap == pytest.approx(1.0)  # 0 where every crop is a picture of its own


def batches(pixels: Pixels, **changes: Any) -> Batches:
    augment = Augment(crop=(64, 48), **{"scale": (1.0, 1.0), "flip": 0.0, **changes})
    plain = Preprocessing(mean=(0.0, 0.0, 0.0), std=(1 / 255, 1 / 255, 1 / 255))
    return batches_of(pixels, augment, plain, device=torch.device("cpu"))(batch=2, seed=3)


def test_a_smaller_person_is_surrounded_by_the_picture_and_not_by_nothing(tmp_path: Path) -> None:
    pixels = opened(coco(tmp_path / "one", (70, 30, 30, 40)), tmp_path / "cache")
    small = {"scale": (0.6, 0.6), "rotate": 30.0}
    around = batches(pixels, **small).at(0).images
    cut = batches(pixels, from_picture=False, **small).at(0).images
    assert float(around.min()) > 30  # the picture's ground everywhere
    assert float((cut == 0).float().mean()) > 0.3  # the crop's surroundings are lost


def test_joints_move_with_the_picture(tmp_path: Path) -> None:
    pixels = opened(coco(tmp_path / "two", LEFT, RIGHT), tmp_path / "cache")
    source = batches(pixels, scale=(0.7, 1.3), rotate=40.0, flip=0.5)
    mirrored = []
    for step in range(6):
        found = source.at(step)
        mirrored += [variation.mirrored for variation in source.variations(step)]
        for image, rows in zip(found.images, found.labels, strict=True):
            seen = rows[:-1][rows[:-1, 2] > 0]
            assert len(seen) >= 10
            dots = [float(image[0, round(float(y)), round(float(x))]) for x, y, _ in seen]
            assert min(dots) > 100  # each joint is a bright dot on a dark ground
    assert len(set(mirrored)) == 2


def test_cuts_stay_in_their_ranges_and_follow_the_seed(tmp_path: Path) -> None:
    pixels = opened(coco(tmp_path / "two", LEFT, RIGHT), tmp_path / "cache")
    source, same = (batches(pixels, scale=(0.7, 1.3), rotate=40.0, flip=0.5) for _ in range(2))
    drawn = [variation for step in range(100) for variation in source.variations(step)]
    assert all(0.7 <= one.zoom <= 1.3 and abs(one.degrees) <= 40 for one in drawn)
    assert max(one.degrees for one in drawn) > 30 > -30 > min(one.degrees for one in drawn)
    assert 60 < sum(one.mirrored for one in drawn) < 140
    assert source.variations(7) == same.variations(7) != source.variations(8)
    chosen = batches(pixels, scales=(0.5, 2.0))
    assert {one.zoom for step in range(20) for one in chosen.variations(step)} == {0.5, 2.0}


def test_left_and_right_are_exchanged_where_a_person_is_mirrored(tmp_path: Path) -> None:
    pixels = opened(coco(tmp_path / "one", LEFT), tmp_path / "cache")
    plain, mirrored = (batches(pixels, flip=flip).at(0).labels[0] for flip in (0.0, 1.0))
    expected = plain[list(COCO.mirrored)]
    assert torch.allclose(mirrored[:-1, 0], 47 - expected[:, 0], atol=1e-3)
    assert torch.allclose(mirrored[:-1, 1], expected[:, 1], atol=1e-3)


def test_cuts_do_not_depend_on_the_number_of_processes_and_need_no_second_reading(tmp_path: Path) -> None:
    pixels = opened(coco(tmp_path / "two", LEFT, RIGHT), tmp_path / "cache")
    augment = Augment(crop=(64, 48), scale=(0.7, 1.3), rotate=40.0)
    make = batches_of(pixels, augment, Preprocessing(), device=torch.device("cpu"))
    whole = make(batch=4, seed=5).at(3)
    parts = [make(batch=4, seed=5, rank=rank, world=2).at(3) for rank in range(2)]
    assert torch.equal(whole.images, torch.cat([part.images for part in parts]))
    assert torch.equal(whole.labels, torch.cat([part.labels for part in parts]))
    forgetful = make(batch=4, seed=5, memory=0.0).at(3)
    assert torch.equal(whole.images, forgetful.images)


def test_people_are_trained_and_scored_in_boxes_of_both_kinds(tmp_path: Path) -> None:
    folder = coco(tmp_path / "two", LEFT, RIGHT)
    file = detections(tmp_path / "boxes.json", (LEFT, 0.9), (RIGHT, 0.7), ((24, 22, 36, 56), 0.5))
    context = Context(cache=tmp_path / "cache", device="cpu")
    data = f"coco-keypoints:{folder}?{SIZE}"  # a size that is no multiple of 32
    changes = ["fit.steps=2", "fit.batch=2"]
    run = tmp_path / "run"
    segtailor.train("ddrnet-23-slim", run, data=data, changes=changes, check=False, context=context)
    for place, boxes in ((data, 2), (f"{data}&boxes={file}", 3)):
        scores = segtailor.evaluate(run / "weights", place, context=context)
        assert scores["images"] == boxes
        figures = {"ap", "ap50", "ap75", "ap_large", "ap_medium"} & scores.keys()
        figures |= {"ar", "ar50", "ar75", "ar_large", "ar_medium"} & scores.keys()
        assert len(figures) >= 8  # sizes of people that there are
