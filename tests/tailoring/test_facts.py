"""Data as it comes: a few bad files are set aside by name, more of them stop the work."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from segtailor.core.errors import DataProblem
from segtailor.data.locate import locate
from segtailor.tailoring.facts import DataFacts, data_facts, usable_data


def folder(root: Path, *, count: int = 12, sizes: tuple[tuple[int, int], ...] = ((32, 48), (40, 40))) -> Path:
    rng = np.random.default_rng(0)
    for kind in ("images", "masks"):
        (root / kind).mkdir(parents=True)
    for index in range(count):
        height, width = sizes[index % len(sizes)]
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        labels = np.zeros((height, width), dtype=np.uint8)
        labels[:, width // 2 :] = 1 + index % 2
        Image.fromarray(pixels).save(root / "images" / f"p{index}.png")
        Image.fromarray(labels).save(root / "masks" / f"p{index}.png")
    return root


def facts_of(data: str, cache: Path) -> DataFacts:
    return data_facts(data, locate(data), cache)


def test_sound_data_is_used_as_it_is(tmp_path: Path) -> None:
    data = f"folder:{folder(tmp_path / 'set')}"
    found = usable_data(data)
    assert found.data == data
    assert found.set_aside == ()


def test_a_damaged_picture_is_set_aside_by_name_and_still_told(tmp_path: Path) -> None:
    root = folder(tmp_path / "set")
    (root / "images" / "p3.png").write_bytes(b"no picture")
    found = usable_data(f"folder:{root}")
    assert found.set_aside == ("p3",)
    assert any("p3" in finding.file for finding in found.diagnosis.errors)
    names = {sample.name for split in ("train", "val") for sample in locate(found.data).samples(split)}
    assert len(names) == 11
    assert "p3" not in names


def test_a_picture_without_mask_is_set_aside_too(tmp_path: Path) -> None:
    root = folder(tmp_path / "set")
    (root / "masks" / "p5.png").unlink()
    found = usable_data(f"folder:{root}?val=0.25")
    assert found.set_aside == ("p5",)
    assert len(locate(found.data).samples("train")) + len(locate(found.data).samples("val")) == 11


@pytest.mark.parametrize("options", ["?skip=p1", "?val=0.25,seed=3", "?skip=p1&val=0.25"])
def test_what_is_set_aside_is_added_to_the_options_given(tmp_path: Path, options: str) -> None:
    root = folder(tmp_path / "set")
    (root / "images" / "p3.png").write_bytes(b"no picture")
    found = usable_data(f"folder:{root}{options}")
    before, after = locate(f"folder:{root}{options}"), locate(found.data)
    for split in ("train", "val"):
        rest = [sample.name for sample in before.samples(split) if sample.name != "p3"]
        assert [sample.name for sample in after.samples(split)] == rest


def test_a_damaged_picture_of_a_dataset_file_is_set_aside_too(tmp_path: Path) -> None:
    root = folder(tmp_path / "set")
    (root / "images" / "p3.png").write_bytes(b"no picture")
    (tmp_path / "own.yaml").write_text("dataset: folder\npath: set\nval: 0.25\n")
    found = usable_data(str(tmp_path / "own.yaml"))
    assert found.set_aside == ("p3",)
    assert len(locate(found.data).samples("trainval")) == 11


def test_pictures_of_annotation_files_are_set_aside_too(tmp_path: Path) -> None:
    root = folder(tmp_path / "set")
    (root / "labels").mkdir()
    for index in range(12):
        (root / "labels" / f"p{index}.txt").write_text("0 0 0 0.5 0 0.5 0.5\n")
    shutil.rmtree(root / "masks")
    data = f"yolo:{root}?val=0.25"
    (root / "images" / "p3.png").write_bytes(b"no picture")
    assert usable_data(data).set_aside == ("images/p3",)
    (root / "images" / "p3.png").unlink()
    (root / "labels" / "p5.txt").write_text("0 0.1 0.1\n")  # a polygon of one point
    found = usable_data(data)
    assert found.set_aside == ("images/p5",)
    assert len(locate(found.data).samples("trainval")) == 10
    (root / "data.yaml").write_text("names: {x: y}\n")
    with pytest.raises(DataProblem, match="class number"):
        usable_data(data)


def test_data_that_is_mostly_damaged_is_refused(tmp_path: Path) -> None:
    root = folder(tmp_path / "set")
    for index in range(6):
        (root / "images" / f"p{index}.png").write_bytes(b"no picture")
    with pytest.raises(DataProblem, match="correct them"):
        usable_data(f"folder:{root}")


def test_facts_are_those_of_the_training_split(tmp_path: Path) -> None:
    root = folder(tmp_path / "set", sizes=((32, 48), (32, 48), (40, 64)))
    facts = facts_of(f"folder:{root}?val=0.25", tmp_path / "cache")
    assert (facts.images, facts.validation, facts.classes) == (9, 3, 3)
    assert facts.usual == (32, 48)
    assert facts.largest == (40, 64)


def test_data_without_validation_is_refused_with_the_remedy(tmp_path: Path) -> None:
    root = folder(tmp_path / "whole")
    (tmp_path / "set" / "train").mkdir(parents=True)
    (root / "images").rename(tmp_path / "set" / "train" / "images")
    (root / "masks").rename(tmp_path / "set" / "train" / "masks")
    with pytest.raises(DataProblem, match=r"val=0\.2"):
        facts_of(f"folder:{tmp_path / 'set'}", tmp_path / "cache")
