"""`segtailor data convert`: masks written once, completely or not at all, and files of others spared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from segtailor.core.errors import DataProblem
from segtailor.data import convert as converting
from segtailor.data.doctor import examine
from segtailor.data.folder import Folder
from segtailor.data.locate import locate
from segtailor.verbs.main import run
from tests.data import annotated
from tests.data.annotated import FORMATS
from tests.data.trees import write_image
from tests.schemas import conforming


def call(dataset: object, out: object, *more: str) -> int:
    return run(["data", "convert", str(dataset), "--to", "folder", str(out), *more])


@pytest.mark.parametrize("name", FORMATS)
def test_the_folder_that_is_written_holds_the_same_samples(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, write = FORMATS[name]
    root, out = tmp_path / "set", tmp_path / "out"
    write(root)
    assert call(f"{kind}:{root}", out, "--json") == 0
    facts = conforming("data convert", capsys.readouterr().out)
    before, after = locate(f"{kind}:{root}"), locate(f"folder:{out}")
    assert isinstance(after, Folder)
    assert after.task == before.task
    assert facts["images"] == 6
    assert set(facts["splits"]) == set(before.splits) == set(after.splits)
    for split in before.splits:
        old = {sample.name.rpartition("/")[2]: sample.read() for sample in before.samples(split)}
        new = {sample.name.rpartition("/")[2]: sample.read() for sample in after.samples(split)}
        assert old.keys() == new.keys()
        for sample in old:
            np.testing.assert_array_equal(old[sample].image, new[sample].image)
            np.testing.assert_array_equal(old[sample].labels, new[sample].labels)
    assert examine(lambda: after).ok
    assert facts["files"] == sum(path.is_file() for path in out.rglob("*"))
    assert (
        sum(facts["pixels"].values()) + facts["ignored_pixels"] == 6 * annotated.SIZE[0] * annotated.SIZE[1]
    )


def test_other_datasets_can_be_converted_too_and_pictures_linked(tmp_path: Path) -> None:
    out, again = tmp_path / "out", tmp_path / "again"
    assert call("synthetic:size=32x64,train=3,val=2", out) == 0
    assert call(f"folder:{out}?size=16x32", tmp_path / "small") == 0
    assert locate(f"folder:{tmp_path / 'small'}").samples("val")[0].read().labels.shape == (16, 32)
    assert call(f"folder:{out}", again, "--images", "link") == 0
    pictures = list((again / "images").rglob("*.png"))
    assert len(pictures) == 5
    assert all(path.is_symlink() and path.resolve().is_relative_to(out) for path in pictures)
    assert call(f"folder:{again}", again) == 1  # onto itself
    assert call(f"folder:{again}", again / "inside") == 1
    assert call("synthetic:task=depth,size=32x64,train=2,val=2", tmp_path / "depth") == 1


def test_a_dry_run_counts_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    annotated.write_cvat(tmp_path / "set")
    assert call(f"cvat:{tmp_path / 'set'}", tmp_path / "out", "--dry-run", "--json") == 0
    facts = conforming("data convert", capsys.readouterr().out)
    assert (facts["images"], facts["classes"][0]) == (6, "background")
    assert not (tmp_path / "out").exists()


def test_files_of_others_are_spared_and_ours_written_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    annotated.write_coco(tmp_path / "set")
    data, out = f"coco:{tmp_path / 'set'}", tmp_path / "out"
    out.mkdir()  # empty
    assert call(data, out) == 0
    annotated.write_json(
        tmp_path / "set" / "annotations" / "instances_val2017.json", annotated.coco_document(["p3"])
    )
    assert call(data, out) == 0  # ours, so it is replaced
    assert len(locate(f"folder:{out}").samples("val")) == 1
    (out / "notes.txt").write_text("mine")
    for more in ((), ("--force",)):  # a conversion would not replace it but remove it
        capsys.readouterr()
        assert call(data, out, *more) == 1
        assert "notes.txt is there already" in capsys.readouterr().err
    (out / "notes.txt").unlink()
    (out / "conversion.json").write_text('{"made_by": "somebody", "files": ["notes.txt"]}')
    assert call(data, out) == 1
    assert "--force" in capsys.readouterr().err
    assert call(data, out, "--force") == 0
    (tmp_path / "file").write_text("x")
    assert call(data, tmp_path / "file") == 1
    (tmp_path / "link").symlink_to(out)
    assert call(data, tmp_path / "link", "--force") == 1


def test_a_stop_in_the_middle_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    annotated.write_coco(tmp_path / "set")
    place = tmp_path / "place"
    place.mkdir()
    data, out = f"coco:{tmp_path / 'set'}", place / "out"
    assert call(data, out) == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    plan = converting.plan_conversion(locate(data), out)

    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        converting.convert(plan, progress=stop)
    assert list(place.iterdir()) == [out]
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_two_samples_of_one_file_name_are_refused(tmp_path: Path) -> None:
    names = ["p0", "p1"]
    annotated.write_pictures(tmp_path / "set", names)
    write_image(tmp_path / "set" / "train" / "p0.png", annotated.SIZE)
    document: dict[str, Any] = annotated.coco_document(names)
    document["images"].append({"id": 77, "file_name": "train/p0.png"})
    annotated.write_json(tmp_path / "set" / "set.json", document)
    with pytest.raises(DataProblem, match="two samples called 'p0'"):
        converting.plan_conversion(locate(f"coco:{tmp_path / 'set'}?val=0"), tmp_path / "out")


def test_masks_show_colours_and_bear_our_mark(tmp_path: Path) -> None:
    annotated.write_labelme(tmp_path / "set")
    assert call(f"labelme:{tmp_path / 'set'}", tmp_path / "out") == 0
    record = json.loads((tmp_path / "out" / "conversion.json").read_text())
    masks = [name for name in record["files"] if name.startswith("masks/")]
    with Image.open(tmp_path / "out" / masks[0]) as picture:
        assert picture.mode == "P"
        assert picture.info["Software"] == "made by segtailor"


@pytest.mark.parametrize("name", ["coco polygons", "yolo"])
def test_a_network_is_trained_and_scored_on_annotation_files(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, write = FORMATS[name]
    write(tmp_path / "set")
    data = ["--data", f"{kind}:{tmp_path / 'set'}"]
    around = ["--cache", str(tmp_path / "cache"), "--device", "cpu"]
    out = tmp_path / "run"
    words = ["train", "lpsnet-step0", *data, "--out", str(out), "--start", "none", "--set", "fit.steps=2"]
    assert run([*words, "--batch", "2", "--crop", "24x40", *around]) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert run(["eval", str(out / "weights"), *data, "--json", *around]) == 0
    found = conforming("eval", capsys.readouterr().out)
    assert set(found["per_class"]) == {"background", *annotated.NAMES.values()}
    assert found["images"] == 2
