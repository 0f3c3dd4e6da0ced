"""Annotation formats: one scene written in each of them gives the same masks back."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
from pycocotools import mask as oracle

from segtailor.core.errors import DataProblem
from segtailor.data.annotations.dataset import AnnotatedDataset
from segtailor.data.annotations.recognise import recognise
from segtailor.data.annotations.runs import BrokenRuns, counts_of_text, mask_of_brush, mask_of_counts
from segtailor.data.annotations.shapes import Ellipse, Outlines, rectangle
from segtailor.data.doctor import check
from segtailor.data.folder import Folder
from segtailor.data.locate import locate
from segtailor.testing import check_dataset
from tests.data import annotated
from tests.data.annotated import FORMATS, PICTURES, SIZE, expected
from tests.data.trees import write_image, write_mask


def opened(text: str) -> AnnotatedDataset:
    dataset = locate(text)
    assert isinstance(dataset, AnnotatedDataset)
    return dataset


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("asked", ["folder", "by name"])
def test_a_scene_comes_back_equal_from_every_format(name: str, asked: str, tmp_path: Path) -> None:
    kind, write = FORMATS[name]
    root = tmp_path / "my set"
    write(root)
    dataset = opened(f"{'folder' if asked == 'folder' else kind}:{root}")
    assert recognise(root) == kind
    void = name == "coco panoptic"
    classes = dataset.task.classes
    assert set(classes) == {*annotated.NAMES.values()} | (set() if void else {"background"})
    assert void or classes[0] == "background"
    samples = {sample.name: sample for split in dataset.splits for sample in dataset.samples(split)}
    assert {sample.rpartition("/")[2] for sample in samples} == set(PICTURES)
    for sample in samples.values():
        labels = sample.read().labels
        wanted = expected(sample.name.rpartition("/")[2], classes, 255 if void else 0)
        np.testing.assert_array_equal(labels, wanted, err_msg=sample.name)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_passes_the_kit_for_datasets(name: str, tmp_path: Path) -> None:
    kind, write = FORMATS[name]
    write(tmp_path)
    check_dataset(opened(f"{kind}:{tmp_path}"))


@pytest.mark.parametrize("name", FORMATS)
def test_the_doctor_finds_no_error_in_a_sound_set_of_any_format(name: str, tmp_path: Path) -> None:
    kind, write = FORMATS[name]
    write(tmp_path)
    diagnosis = check(opened(f"{kind}:{tmp_path}"))
    assert not diagnosis.errors
    kinds = {finding.kind for finding in diagnosis.findings}
    assert ("not-drawn" in kinds) == (name in ("cvat", "labelme"))  # they have polylines


def test_a_single_class_with_the_rest_ignored_is_not_taken_for_a_binary_mask(tmp_path: Path) -> None:
    annotated.write_coco(tmp_path)
    diagnosis = check(opened(f"coco:{tmp_path}?classes=car&unlabelled=ignore"))
    assert not diagnosis.errors
    assert {"all-ignored"} <= {
        finding.kind for finding in diagnosis.findings
    }  # the picture without annotations


def test_files_alone_and_yaml_files_open_too(tmp_path: Path) -> None:
    annotated.write_coco(tmp_path)
    one = opened(f"coco:{tmp_path}/annotations/instances_train2017.json?val=0.25")
    assert one.splits == ("train", "val")
    (tmp_path / "set.yaml").write_text("dataset: folder\npath: .\nclasses: [car, road]\n")
    assert opened(str(tmp_path / "set.yaml")).task.classes == ("background", "car", "road")
    annotated.write_cvat(tmp_path / "cvat")
    assert len(opened(f"folder:{tmp_path}/cvat/annotations.xml?val=0").samples("train")) == len(PICTURES)


def test_options_choose_classes_and_what_does_not_count(tmp_path: Path) -> None:
    annotated.write_coco(tmp_path)
    full = opened(f"coco:{tmp_path}")
    assert full.task.classes == ("background", "road", "sign", "car", "tree")  # by id: 3, 5, 7, 90
    some = opened(f"coco:{tmp_path}?classes=tree,car&ignore=car&unlabelled=ignore")
    assert some.task.classes == ("tree",)
    before, after = full.samples("val")[0].read().labels, some.samples("val")[0].read().labels
    np.testing.assert_array_equal(after == 0, before == 4)
    assert set(np.unique(after)) == {0, 255}
    small = opened(f"coco:{tmp_path}?size=12x20").samples("val")[0]
    assert small.read().labels.shape == (12, 20)
    assert small.fingerprint != full.samples("val")[0].fingerprint
    with pytest.raises(Exception, match="did you mean 'road'"):
        _ = opened(f"coco:{tmp_path}?classes=rode").task


def test_crowds_lie_under_single_objects_and_can_be_ignored(tmp_path: Path) -> None:
    annotated.write_coco(tmp_path, "text")
    file = tmp_path / "annotations" / "instances_val2017.json"
    document = json.loads(file.read_text())
    document["annotations"].reverse()  # crowds, the roads, come last in the file
    file.write_text(json.dumps(document))
    dataset = opened(f"coco:{tmp_path}")
    labels = dataset.samples("val")[0].read().labels
    things = {thing.name: thing.mask for thing in PICTURES["p3"]}
    assert (
        labels[things["car"] & things["road"] & ~things["sign"]] == dataset.task.classes.index("car")
    ).all()
    ignored = opened(f"coco:{tmp_path}?crowd=ignore")
    alone = things["road"] & ~things["car"] & ~things["tree"] & ~things["sign"]
    assert (ignored.samples("val")[0].read().labels[alone] == 255).all()
    assert ignored.task.classes == dataset.task.classes


def test_later_objects_cover_earlier_ones_whatever_their_size(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png", SIZE)
    small, large = [[4, 4, 8, 4, 8, 8, 4, 8]], [[0, 0, 20, 0, 20, 20, 0, 20]]
    rows = [
        {"id": at, "image_id": 1, "category_id": at, "segmentation": part}
        for at, part in enumerate((small, large), start=1)
    ]
    document = {
        "images": [{"id": 1, "file_name": "a.png"}],
        "annotations": rows,
        "categories": [{"id": 1, "name": "small"}, {"id": 2, "name": "large"}],
    }
    annotated.write_json(tmp_path / "set.json", document)
    labels = opened(f"coco:{tmp_path}?val=0").samples("train")[0].read().labels
    assert set(np.unique(labels)) == {0, 2}


def test_pixels_are_those_whose_centres_lie_inside() -> None:
    square = Outlines(rings=(np.array([(2.0, 1.0), (5.0, 1.0), (5.0, 4.0), (2.0, 4.0)]),)).patch((8, 8))
    assert (square.top, square.left, square.mask.shape, square.mask.all()) == (1, 2, (3, 3), True)
    half = Outlines(rings=(np.array([(2.6, 1.0), (4.4, 1.0), (4.4, 2.0), (2.6, 2.0)]),)).patch((8, 8))
    assert (half.left, half.mask.tolist()) == (2, [[False, True, False]])
    turned = rectangle((4.0, 1.0), 3.0, 2.0, degrees=90).patch((8, 8))
    assert (turned.top, turned.left, turned.mask.sum()) == (1, 2, 6)


def test_the_loss_of_coarse_outlines_stays_at_the_border() -> None:
    """An outline of 32 corners of a circle: what differs is thinner than the polygon's distance from the circle."""
    size, centre, radius, corners = (80, 100), (48.3, 41.7), 30.0, 32
    circle = Ellipse(centre=centre, radii=(radius, radius)).patch(size)
    full = np.zeros(size, np.bool_)
    full[circle.top : circle.top + circle.mask.shape[0], circle.left : circle.left + circle.mask.shape[1]] = (
        circle.mask
    )
    angles = np.linspace(0, 2 * math.pi, corners, endpoint=False)
    ring = np.stack([centre[0] + radius * np.cos(angles), centre[1] + radius * np.sin(angles)], axis=1)
    patch = Outlines(rings=(ring,)).patch(size)
    drawn = np.zeros(size, np.bool_)
    drawn[patch.top : patch.top + patch.mask.shape[0], patch.left : patch.left + patch.mask.shape[1]] = (
        patch.mask
    )
    assert not (drawn & ~full).any()
    y, x = np.nonzero(full & ~drawn)
    sagitta = radius * (1 - math.cos(math.pi / corners))
    assert (np.hypot(x + 0.5 - centre[0], y + 0.5 - centre[1]) >= radius - sagitta - 1e-9).all()
    assert abs(int(full.sum()) - math.pi * radius**2) < 2 * math.pi * radius * 0.1


@pytest.mark.parametrize("seed", range(20))
def test_polygons_agree_with_the_reference_program_but_for_the_border(seed: int) -> None:
    rng = np.random.default_rng(seed)
    angles = np.sort(rng.uniform(0, 2 * math.pi, rng.integers(4, 14)))
    radii = rng.uniform(8, 25, len(angles))
    ring = np.stack([40 + radii * np.cos(angles), 30 + radii * np.sin(angles)], axis=1)
    patch = Outlines(rings=(ring,)).patch((60, 80))
    ours = np.zeros((60, 80), np.bool_)
    ours[patch.top : patch.top + patch.mask.shape[0], patch.left : patch.left + patch.mask.shape[1]] = (
        patch.mask
    )
    (encoded,) = oracle.frPyObjects([ring.ravel().tolist()], 60, 80)
    theirs = oracle.decode(encoded).astype(np.bool_)
    edges = np.diff(np.concatenate([ring, ring[:1]]), axis=0)
    assert (ours != theirs).sum() <= np.hypot(*edges.T).sum()  # at most one pixel along the border
    core = theirs[1:-1, 1:-1] & theirs[:-2, 1:-1] & theirs[2:, 1:-1] & theirs[1:-1, :-2] & theirs[1:-1, 2:]
    assert ours[1:-1, 1:-1][core].mean() > 0.99


@pytest.mark.parametrize("seed", range(10))
def test_run_lengths_agree_with_the_reference_program(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = tuple(int(side) for side in rng.integers(1, 60, 2))
    mask = np.repeat(rng.random(size[0] * size[1]) < 0.5, 1).reshape(size)
    if seed % 2:
        mask = np.zeros(size, np.bool_) if seed == 1 else np.ones(size, np.bool_)
    text = oracle.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"].decode()
    decoded = mask_of_counts(counts_of_text(text), mask.size).reshape(size[1], size[0]).T
    np.testing.assert_array_equal(decoded, mask)
    np.testing.assert_array_equal(mask_of_brush(bytes(annotated.brush(mask)), mask.size).reshape(size), mask)


def test_scrambled_runs_are_refused_or_of_the_right_size() -> None:
    rng = np.random.default_rng(3)
    for _ in range(300):
        junk = bytes(rng.integers(0, 256, rng.integers(0, 40), dtype=np.uint8))
        for decode in (
            lambda data: mask_of_counts(counts_of_text(data.decode("latin-1")), 96),
            lambda data: mask_of_brush(data, 96),
        ):
            with contextlib.suppress(BrokenRuns):
                assert decode(junk).shape == (96,)


def test_masks_win_over_annotation_files_beside_them(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_image(tmp_path / "images" / f"{name}.png")
        write_mask(tmp_path / "masks" / f"{name}.png")
    annotated.write_json(tmp_path / "set.json", annotated.coco_document(["p0"]))
    assert isinstance(locate(f"folder:{tmp_path}"), Folder)
    (tmp_path / "masks").rename(tmp_path / "labels")
    (tmp_path / "set.json").unlink()
    assert isinstance(locate(f"folder:{tmp_path}"), Folder)


def test_roboflow_layouts_are_found(tmp_path: Path) -> None:
    for split, names in (("train", ["p0", "p1"]), ("valid", ["p2"])):
        annotated.write_pictures(tmp_path / "coco" / split, names)
        annotated.write_json(
            tmp_path / "coco" / split / "_annotations.coco.json", annotated.coco_document(names)
        )
        annotated.write_pictures(tmp_path / "yolo" / split / "images", names)
        for name in names:
            path = tmp_path / "yolo" / split / "labels" / f"{name}.txt"
            path.parent.mkdir(exist_ok=True)
            path.write_text("\n".join(annotated.yolo_line(0, thing.mask) for thing in PICTURES[name]))
    (tmp_path / "yolo" / "data.yaml").write_text(
        "train: ../train/images\nval: ../valid/images\nnames: [thing]\n"
    )
    for kind in ("coco", "yolo"):
        dataset = opened(f"folder:{tmp_path / kind}")
        assert [len(dataset.samples(split)) for split in ("train", "val")] == [2, 1]
        labels = dataset.samples("val")[0].read().labels
        np.testing.assert_array_equal(labels > 0, np.any([thing.mask for thing in PICTURES["p2"]], axis=0))


def test_boxes_and_circles_are_drawn(tmp_path: Path) -> None:
    write_image(tmp_path / "yolo" / "images" / "a.png", SIZE)
    (tmp_path / "yolo" / "labels").mkdir()
    (tmp_path / "yolo" / "labels" / "a.txt").write_text("0 0.5 0.5 0.25 0.5\n")
    (tmp_path / "yolo" / "classes.txt").write_text("thing\n")
    labels = opened(f"yolo:{tmp_path / 'yolo'}?val=0").samples("train")[0].read().labels
    assert labels.sum() == 10 * 12
    assert labels[6:18, 15:25].all()
    write_image(tmp_path / "me" / "a.png", SIZE)
    circle = {"label": "disc", "shape_type": "circle", "points": [[20, 12], [20, 17]]}
    annotated.write_json(tmp_path / "me" / "a.json", {"shapes": [circle], "imagePath": "C:\\pics\\a.png"})
    labels = opened(f"labelme:{tmp_path / 'me'}?val=0").samples("train")[0].read().labels
    assert abs(int(labels.sum()) - math.pi * 25) < 6


def test_names_that_lead_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    write_image(tmp_path / "secret.png", SIZE)
    root = tmp_path / "set"
    for name in ("../secret.png", str(tmp_path / "secret.png"), "C:\\secret.png", "images/../../secret.png"):
        document = annotated.coco_document(["p0"])
        document["images"][0]["file_name"] = name
        annotated.write_json(root / "set.json", document)
        with pytest.raises(DataProblem, match="does not lie below"):
            opened(f"coco:{root}?val=0").samples("train")
