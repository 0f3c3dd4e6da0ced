"""Verbs that write files: those of others are spared unless --force, ours are written anew, a full disk harms none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from segtailor.core.ownership import is_drawing, is_frames, is_page, is_picture, marked_svg
from segtailor.deploy.formats import EXPORTED_FILES, INT8_FILES, recognised_by
from segtailor.verbs.main import run
from tests.predicting.models import halves, save_small_bundle
from tests.runs.toy_job import files_up_to

DATA = "synthetic:size=32x64,train=4,val=2"
MINE = b"mine, and nobody else's\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_bundle(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture
def place(tmp_path: Path, model: Path) -> Path:
    """Return a folder with a photo, a video's frames and a run to make things from."""
    Image.fromarray(halves(33, 47)).save(tmp_path / "photo.jpg")
    for name in ("run", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.json").write_text(json.dumps({"kind": "train", "data": DATA}))
    (tmp_path / "model").symlink_to(model)
    return tmp_path


def call(words: str, folder: Path, *more: str) -> int:
    return run([word.replace("@", str(folder)) for word in words.split()] + list(more))


VERBS = [
    ("show lpsnet-s --svg @/net.svg", "net.svg"),
    (f"data show {DATA} --out @/sheet.png", "sheet.png"),
    (f"data show {DATA} --out @/sheet.jpg", "sheet.jpg"),
    (f"data show {DATA} --out @/sheet.tif", "sheet.tif"),
    ("report @/run", "run/report/index.html"),
    ("report @/run --out @/page.html", "page.html"),
    ("report @/run @/other --out @/both.html", "both.html"),
    ("predict @/model @/photo.jpg --out @/out", "out/photo.png"),
    ("predict @/model @/photo.jpg --out @/out --as overlay", "out/photo.png"),
    ("predict @/model @/photo.jpg --out @/out --as ids", "out/photo.png"),
]


@pytest.mark.parametrize(("words", "name"), VERBS)
def test_a_file_of_others_is_spared_and_ours_is_written_anew(
    words: str, name: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = place / name
    file.parent.mkdir(parents=True, exist_ok=True)
    for content in (MINE, b""):
        file.write_bytes(content)
        assert call(words, place) == 1
        told = capsys.readouterr().err
        assert f"{file} is there already" in told
        assert "--force" in told
        assert "Traceback" not in told
        assert file.read_bytes() == content
    assert call(words, place, "--force") == 0
    assert file.read_bytes() not in (MINE, b"")
    first = file.stat().st_ino
    assert call(words, place) == 0  # ours now
    assert file.stat().st_ino != first
    assert not [path for path in file.parent.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(("words", "name"), [row for row in VERBS if not row[0].startswith("show")])
def test_a_dry_run_refuses_what_the_verb_would(words: str, name: str, place: Path) -> None:
    (place / name).parent.mkdir(parents=True, exist_ok=True)
    (place / name).write_bytes(MINE)
    assert call(words, place, "--dry-run") == 1
    assert call(words, place, "--dry-run", "--force") == 0
    assert (place / name).read_bytes() == MINE


@pytest.mark.parametrize(("words", "name"), VERBS)
def test_a_full_disk_leaves_the_file_that_was_there(
    words: str, name: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(words, place) == 0
    file = place / name
    before, small = file.read_bytes(), file.stat().st_size // 2
    capsys.readouterr()
    with files_up_to(small):
        assert call(words, place) == 1
    told = capsys.readouterr().err
    assert "intact" in told
    assert "Traceback" not in told
    assert file.read_bytes() == before
    assert not [path for path in file.parent.iterdir() if path.name.startswith(".")]


def test_devices_are_not_replaced_even_by_force(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(place / "pipe.png")
    for words in ("show lpsnet-s --svg @/pipe.png", f"data show {DATA} --out @/pipe.png"):
        assert call(words, place) == 1
        assert call(words, place, "--force") == 1
        assert "device or pipe" in capsys.readouterr().err
    assert not (place / "pipe.png").is_file()


def test_a_bmp_sheet_bears_no_mark_and_asks_each_time(place: Path) -> None:
    words = f"data show {DATA} --out @/sheet.bmp"
    assert call(words, place) == 0
    assert call(words, place) == 1
    assert call(words, place, "--force") == 0


@pytest.fixture
def video(place: Path) -> Path:
    av = pytest.importorskip("av")
    with av.open(str(place / "clip.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
        for _ in range(3):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(halves(32, 48)), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return place


def test_videos_of_others_are_spared_and_ours_are_made_anew(video: Path) -> None:
    words, file = "predict @/model @/clip.mp4 --out @/out", video / "out" / "clip.mp4"
    file.parent.mkdir()
    file.write_bytes((video / "clip.mp4").read_bytes())
    assert call(words, video) == 1
    assert file.read_bytes() == (video / "clip.mp4").read_bytes()
    assert call(words, video, "--force") == 0
    assert call(words, video) == 0


def test_a_folder_is_made_anew_only_where_all_in_it_is_ours(video: Path) -> None:
    words, folder = "predict @/model @/clip.mp4 --as ids --out @/out", video / "out" / "clip"
    assert call(words, video) == 0
    assert call(words, video) == 0
    (folder / "notes.txt").write_bytes(MINE)
    assert call(words, video) == 1
    assert (folder / "notes.txt").read_bytes() == MINE
    assert sorted(path.name for path in folder.iterdir()) == [
        "000000.png", "000001.png", "000002.png", "notes.txt",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model.onnx", "verify.json"])
def test_exports_spare_files_of_others(place: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = "export @/model --image 32x64 --out @/out"
    (place / "out").mkdir()
    (place / "out" / name).write_bytes(b'{"file": "model.onnx"}')
    (place / "out" / "model.int8.onnx").write_bytes(MINE)
    assert call(words, place) == 1
    assert "--force" in capsys.readouterr().err
    assert (place / "out" / name).read_bytes() == b'{"file": "model.onnx"}'
    assert call(words, place, "--dry-run") == 1
    assert call(words, place, "--force") == 0
    assert call(words, place) == 0
    assert (place / "out" / "model.int8.onnx").read_bytes() == MINE  # not made from the file that was here


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "files"),
    [
        ("openvino", ["model.xml", "model.bin"]),
        ("torchscript", ["model.ts"]),
        ("exported-program", ["model.pt2"]),
    ],
)
def test_exports_of_every_kind_spare_files_of_others(place: Path, kind: str, files: list[str]) -> None:
    if kind == "openvino":
        pytest.importorskip("openvino")
    words = f"export @/model --image 32x64 --out @/out --to {kind}"
    (place / "out").mkdir()
    for name in files:
        (place / "out" / name).write_bytes(MINE)
        assert call(words, place) == 1
        assert (place / "out" / name).read_bytes() == MINE
        (place / "out" / name).unlink()
    assert call(words, place) == 0
    assert call(words, place) == 0


@pytest.mark.parametrize("name", ["pack.json", "pack.svg"])
def test_calibrations_spare_files_of_others(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "calibrate --space scalable_path --target cpu/eager/fp32 --image 64x64 --out @/pack.json"
    (tmp_path / name).write_bytes(MINE)
    assert call(words, tmp_path) == 1
    assert call(words, tmp_path, "--dry-run") == 1
    assert "--force" in capsys.readouterr().err
    assert call(words, tmp_path, "--dry-run", "--force") == 0
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == MINE


def test_zips_for_boards_spare_files_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "board.zip"
    file.write_bytes(MINE)
    space = "--space scalable_path --target cpu/onnxruntime/fp32 --image 64x64"
    assert call(f"calibrate {space} --bundle @/board.zip", tmp_path) == 1
    assert f"{file} is there already" in capsys.readouterr().err
    assert file.read_bytes() == MINE


@pytest.mark.parametrize(
    "content",
    [
        b"<!doctype html><title>made by segtailor</title> my notes about segtailor",
        b"<svg >" + b" " * 5000 + b"<!-- made by segtailor -->",
        b'<html><meta name="generator" content="segtailor">',
        b'{"segtailor": 1}',
        b"segtailor",
    ],
)
def test_a_file_about_us_is_not_ours(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    checks = [ours for files in INT8_FILES.values() for ours in files.values()]
    known: list[Any] = [is_page, is_drawing, is_frames, *EXPORTED_FILES.values(), *checks]
    assert not any(ours(file) for ours in known)
    assert not recognised_by("anything")(file)
    assert not is_picture(tmp_path / "nothing")


def test_the_mark_of_a_drawing_is_where_it_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "a.svg").write_text(marked_svg('<svg xmlns="http://www.w3.org/2000/svg"></svg>'))
    assert is_drawing(tmp_path / "a.svg")
