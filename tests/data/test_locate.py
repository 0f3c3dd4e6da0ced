"""From text or YAML to a dataset, and what mistakes say."""

from __future__ import annotations

from pathlib import Path

import pytest

from segtailor.core.errors import DataProblem, UnknownName, UserError
from segtailor.data.folder import Folder
from segtailor.data.locate import DATASETS, locate
from segtailor.data.synthetic import Synthetic
from tests.data.trees import write_pairs

NAMES = [f"n{index}" for index in range(4)]


def test_every_promised_name_is_registered() -> None:
    assert set(DATASETS.names()) == {
        "synthetic",
        "synthetic-depth",
        "folder",
        "folder-depth",
        "camvid",
        "cityscapes",
        "cityscapes-coarse",
        "bdd100k",
        "voc",
        "nyudv2",
        "mpii",
        "coco-keypoints",
        "synthetic-pose",
        "coco",
        "cvat",
        "labelme",
        "labelstudio",
        "yolo",
    }


def test_options_are_typed(tmp_path: Path) -> None:
    write_pairs(tmp_path, NAMES)
    found = locate(f"folder:{tmp_path}?val=0.5&seed=3&classes=a,b,c&ignore=254,%23000000&binary=false")
    assert found == Folder(
        path=tmp_path, val=0.5, seed=3, classes=("a", "b", "c"), ignore=("254", "#000000"), binary=False
    )
    assert found.labels == Folder(path=tmp_path, count=3, ignore=(254, (0, 0, 0))).labels


def test_palette_is_a_list_of_colours(tmp_path: Path) -> None:
    write_pairs(tmp_path, NAMES)
    found = locate(f"folder:{tmp_path}?palette=804080,%23464646")
    assert found.task.palette == ((128, 64, 128), (70, 70, 70))


@pytest.mark.parametrize(
    "text", ["synthetic", "synthetic:size=32x64,train=3,val=2", "synthetic:size=32x64&train=3"]
)
def test_synthetic_needs_no_path(text: str) -> None:
    found = locate(text)
    assert isinstance(found, Synthetic)
    if "size" in text:
        assert found.size == (32, 64)
        assert len(found.samples("train")) == 3


def test_yaml_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    write_pairs(tmp_path / "photos", NAMES)
    (tmp_path / "more").mkdir()
    file = tmp_path / "more" / "set.yaml"
    file.write_text(
        "dataset: folder\npath: ../photos\nclasses: [a, b, c]\npalette: [[0, 0, 0], '#010101', '020202']\n"
    )
    found = locate(str(file))
    assert found.task.classes == ("a", "b", "c")
    assert found.task.palette == ((0, 0, 0), (1, 1, 1), (2, 2, 2))
    file.write_text("dataset: synthetic\nsize: [32, 64]\ntrain: 2\n")
    assert locate(str(file)).samples("train")[1].read().labels.shape == (32, 64)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("foldr:ROOT", "did you mean 'folder'"),
        ("folder", "write folder:PATH"),
        ("folder:", "write folder:PATH"),
        ("ROOT", "write e.g. folder:"),
        ("folder:ROOT?vall=0.2", "did you mean 'val'"),
        ("folder:ROOT?val=much", "val: Input should be a valid number"),
        ("folder:ROOT?val=1.5", "must be under 1"),
        ("folder:ROOT?val=nan", "must be under 1"),
        ("folder:ROOT?encoding=rgb", "encoding: Input should be 'auto'"),
        ("folder:ROOT?seed", "write seed=VALUE"),
        ("folder:ROOT?seed=1&seed=2", "given twice"),
        ("folder:ROOT?path=/tmp", "gives the path twice"),
        ("folder:ROOT/nowhere", "does not exist"),
        ("folder:" + "x" * 5000, "cannot be opened"),
        ("x" * 5000, "no dataset is called"),
        ("folder:~nobody-here", "does not exist"),
        ("camvid:ROOT", "is not a CamVid folder"),
        ("cityscapes:ROOT?fold=1", "option of 'cityscapes'"),
        ("ROOT/nowhere.yaml", "cannot be read"),
        ("synthetic:trian=3", "unknown option 'trian'"),
    ],
)
def test_mistakes_say_what_to_do(tmp_path: Path, text: str, message: str) -> None:
    write_pairs(tmp_path, NAMES)
    with pytest.raises(UserError) as caught:
        locate(text.replace("ROOT", str(tmp_path)))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "content",
    ["", "- a", "dataset: 3", "path: x", "dataset: folder", "a: [", "\x00", "dataset: *a", "d: 2020-99-99"],
)
def test_bad_yaml_is_explained(tmp_path: Path, content: str) -> None:
    (tmp_path / "set.yaml").write_text(content)
    with pytest.raises(DataProblem, match=r"set\.yaml|needs a path"):
        locate(str(tmp_path / "set.yaml"))


def test_yaml_names_unknown_options_too(tmp_path: Path) -> None:
    (tmp_path / "set.yaml").write_text("dataset: folder\npath: .\nclases: [a]\n")
    with pytest.raises(UnknownName, match="did you mean 'classes'"):
        locate(str(tmp_path / "set.yaml"))
