"""What texts stand for, and where the results go."""

from __future__ import annotations

from pathlib import Path

import pytest

from segtailor.core.errors import UserError
from segtailor.predicting import Form, destinations, expand


def touch(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    return root


def placed(root: Path, *texts: str, form: Form = "colour") -> dict[str, str]:
    inputs, problems = expand(texts, out=root / "out")
    assert not problems
    paths = destinations(inputs, root / "out", form)
    assert len({str(path).casefold() for path in paths}) == len(inputs)
    return {
        item.text.removeprefix(f"{root}/"): path.relative_to(root / "out").as_posix()
        for item, path in zip(inputs, paths, strict=True)
    }


def test_a_folder_gives_its_pictures_and_videos_and_keeps_its_shape(tmp_path: Path) -> None:
    touch(tmp_path, "in/a.jpg", "in/deep/B.PNG", "in/clip.mp4", "in/notes.txt", "in/.hidden.png")
    assert placed(tmp_path, str(tmp_path / "in")) == {
        "in/a.jpg": "a.png",
        "in/clip.mp4": "clip.mp4",
        "in/deep/B.PNG": "deep/B.png",
    }
    assert placed(tmp_path, str(tmp_path / "in/clip.mp4"), form="ids") == {"in/clip.mp4": "clip"}


def test_patterns_match_media_only_and_every_file_counts_once(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", "b.jpg", "c.txt", "deep/d.jpg")
    texts = [str(tmp_path / "b.jpg"), str(tmp_path / "*"), str(tmp_path / "**" / "*.jpg")]
    assert placed(tmp_path, *texts) == {"b.jpg": "b.png", "a.jpg": "a.png", "deep/d.jpg": "d.png"}


def test_names_with_signs_of_patterns_are_taken_literally(tmp_path: Path) -> None:
    touch(tmp_path, "a[1].jpg", "7")
    assert placed(tmp_path, str(tmp_path / "a[1].jpg")) == {"a[1].jpg": "a[1].png"}
    assert placed(tmp_path, str(tmp_path / "7")) == {"7": "7.png"}


def test_numbers_are_cameras() -> None:
    (item,), problems = expand(["3"], out=Path("out"))
    assert (item.kind, item.camera, item.text, problems) == ("camera", 3, "camera 3", [])


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["x/1.jpg", "y/1.jpg"], ["x-1.png", "y-1.png"]),
        (["x/1.jpg", "x/1.png"], ["x-1.jpg.png", "x-1.png.png"]),
        (["x/1.jpg", "y/x/1.jpg"], ["x-1.jpg.png", "x-1.jpg-2.png"]),
        (["x/a.jpg", "y/A.jpg"], ["x-a.png", "y-A.png"]),
        (["x/1.jpg", "y/1.jpg", "z/x-1.jpg"], ["x-1.jpg.png", "y-1.png", "z-x-1.jpg.png"]),
        (["x/1.mp4", "x/1.jpg"], ["1.mp4", "1.png"]),
    ],
)
def test_results_named_alike_are_kept_apart(tmp_path: Path, names: list[str], wanted: list[str]) -> None:
    touch(tmp_path, *names)
    found = placed(tmp_path, *[str(tmp_path / name) for name in names])
    assert list(found.values()) == wanted


def test_results_of_an_earlier_call_are_no_inputs(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", "out/a.png")
    assert placed(tmp_path, str(tmp_path)) == {"a.jpg": "a.png"}
    assert placed(tmp_path, str(tmp_path / "**" / "*")) == {"a.jpg": "a.png"}


def test_the_folder_of_results_is_no_input(tmp_path: Path) -> None:
    touch(tmp_path, "real/a.jpg")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    _, ((_, problem),) = expand([str(tmp_path / "link")], out=tmp_path / "real")
    assert "is where the results go; choose another one with --out" in problem


def test_a_result_never_replaces_an_input(tmp_path: Path) -> None:
    touch(tmp_path, "a.png")
    inputs, _ = expand([str(tmp_path / "a.png")], out=tmp_path)
    with pytest.raises(UserError, match=r"would replace an input; choose another folder"):
        destinations(inputs, tmp_path, "colour")


def test_texts_without_inputs_are_explained(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    texts = [str(tmp_path / "none.jpg"), str(tmp_path / "empty"), str(tmp_path / "*.jpg"), "a\0b"]
    inputs, problems = expand(texts, out=tmp_path / "out")
    assert not inputs
    assert [text for text, _ in problems] == texts
    for (_, problem), says in zip(
        problems, ("does not exist", "holds no", "no picture or video", ""), strict=True
    ):
        assert says in problem
