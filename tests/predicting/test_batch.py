"""Pictures through the loop: forms, sizes, orientation, and inputs that fail without stopping the others."""

from __future__ import annotations

import resource
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from segtailor.core.errors import Interrupted, Unsupported
from segtailor.predicting import (
    NETWORK_PIXELS,
    Event,
    Failure,
    Form,
    Look,
    Result,
    Settings,
    destinations,
    expand,
    label,
    predict_all,
)
from segtailor.predicting.labelling import network_size
from tests.predicting.models import TASK, Threshold, halves


def predicted(
    out: Path, *texts: Path | str, settings: Settings | None = None, model: Threshold | None = None
) -> list[Event]:
    wanted = settings or Settings()
    inputs, problems = expand([str(text) for text in texts], out=out)
    assert not problems
    work = list(zip(inputs, destinations(inputs, out, wanted.look.form), strict=True))
    return list(predict_all(model or Threshold(), work, wanted))


def saved(path: Path, pixels: np.ndarray | None = None, **options: object) -> Path:
    Image.fromarray(halves() if pixels is None else pixels).save(path, **options)  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize(("form", "mode"), [("colour", "P"), ("ids", "L"), ("overlay", "RGB")])
def test_each_form_is_one_png_of_the_pictures_size(tmp_path: Path, form: Form, mode: str) -> None:
    (result,) = predicted(
        tmp_path / "out", saved(tmp_path / "a.png"), settings=Settings(look=Look(form=form, opacity=0.5))
    )
    assert isinstance(result, Result)
    assert (result.output, result.size, result.frames) == (tmp_path / "out" / "a.png", (40, 60), 1)
    assert result.facts == {"dark": 0.5, "bright": 0.5}
    with Image.open(result.output) as picture:
        assert (picture.mode, picture.size) == (mode, (60, 40))
        values, colours = np.asarray(picture), np.asarray(picture.convert("RGB"))
    if mode != "RGB":
        np.testing.assert_array_equal(values, Threshold().predict(halves()))
    if form == "colour":
        assert tuple(colours[0, 0]) == TASK.palette[0]
        assert tuple(colours[0, -1]) == TASK.palette[1]
    if form == "overlay":
        np.testing.assert_allclose(values[0, -1], (np.array([230] * 3) + TASK.palette[1]) / 2, atol=1)


def test_every_kind_of_picture_is_read_as_it_looks(tmp_path: Path) -> None:
    grey = halves()[..., 0]
    inside = tmp_path / "in"
    inside.mkdir()
    Image.fromarray(grey).save(inside / "grey.png")
    Image.fromarray(grey.astype(np.uint16) * 257).save(inside / "grey16.png")
    Image.fromarray(grey.astype(np.uint16) * 257).save(inside / "grey16.tif")
    Image.fromarray(halves()).convert("CMYK").save(inside / "cmyk.jpg")
    Image.fromarray(halves()).quantize(4).save(inside / "palette.png")
    Image.fromarray(grey).convert("1", dither=Image.Dither.NONE).save(inside / "bits.png")
    Image.fromarray(halves()).save(inside / "web.webp", lossless=True)
    Image.fromarray(np.dstack([halves(), np.full_like(grey, 7)])).save(inside / "alpha.png")
    events = predicted(tmp_path / "out", inside, settings=Settings(look=Look(form="ids")))
    assert len(events) == 8
    for event in events:
        assert isinstance(event, Result), event
        np.testing.assert_array_equal(
            np.asarray(Image.open(event.output)), Threshold().predict(halves()), event.text
        )


def test_a_turned_photograph_gives_an_upright_result(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    (result,) = predicted(tmp_path / "out", saved(tmp_path / "a.jpg", exif=exif))
    assert isinstance(result, Result)
    with Image.open(result.output) as picture:
        assert picture.size == (40, 60)
        assert not picture.getexif()
        labels = np.asarray(picture)
    assert (labels[:20] == 0).all()
    assert (labels[40:] == 1).all()


def test_one_pixel_is_a_picture(tmp_path: Path) -> None:
    (result,) = predicted(tmp_path / "out", saved(tmp_path / "a.png", np.full((1, 1, 3), 255, np.uint8)))
    assert isinstance(result, Result)
    assert np.asarray(Image.open(result.output)).tolist() == [[1]]


def test_bad_files_are_explained_and_the_others_done(tmp_path: Path) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    saved(inside / "a.png"), saved(inside / "z.png")
    (inside / "cut.png").write_bytes((inside / "a.png").read_bytes()[:60])
    (inside / "empty.jpg").touch()
    (inside / "text.jpg").write_text("I am no picture")
    (inside / "video.mp4").write_text("nor a video")
    events = predicted(tmp_path / "out", inside)
    failures = {Path(event.text).name: event.problem for event in events if isinstance(event, Failure)}
    assert set(failures) == {"cut.png", "empty.jpg", "text.jpg", "video.mp4"}
    for name, problem in failures.items():
        assert name in problem
        assert problem.endswith("Restore, convert or remove it.")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.png", "z.png"]


def test_a_bitmap_of_400_million_pixels_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "huge.bmp").open("wb") as stream:
        header = struct.pack("<IIIIHHIIIIII", 0, 0, 54, 40, 1, 24, 0, 0, 0, 0, 0, 0)
        size = struct.pack("<ii", 20000, 20000)
        stream.write(b"BM" + header[:16] + size + header[16:])
        stream.truncate(20000 * 20000 * 3 + 54)  # a file with a hole: it takes no space
    events = predicted(tmp_path / "out", tmp_path / "huge.bmp", saved(tmp_path / "a.png"))
    assert isinstance(events[0], Failure)
    assert "over the limit of 134217728 pixels. Convert it to an upright TIFF in tiles." in events[0].problem
    assert isinstance(events[1], Result)


def test_the_network_sees_the_size_asked_for_and_labels_come_back_at_the_pictures(tmp_path: Path) -> None:
    model = Threshold()
    (result,) = predicted(
        tmp_path / "out", saved(tmp_path / "a.png"), settings=Settings(size=(16, 24)), model=model
    )
    assert isinstance(result, Result)
    assert (model.seen, result.network_size, result.note) == ([(16, 24)], (16, 24), None)
    np.testing.assert_array_equal(np.asarray(Image.open(result.output)), Threshold().predict(halves()))


def test_pictures_beyond_memory_are_shown_to_the_network_smaller() -> None:
    for own in ((4096, 4096), (6000, 8000), (1, 2**27), (2**27, 1), (11585, 11585)):
        height, width = network_size(own)
        assert 1 <= height <= own[0]
        assert 1 <= width <= own[1]
        cost = max(height, 32) * max(
            width, 32
        )  # the depth of a network has a row for up to 32 of the picture
        assert 0.99 * NETWORK_PIXELS < cost <= NETWORK_PIXELS
    assert network_size((6000, 8000))[1] / network_size((6000, 8000))[0] == pytest.approx(8 / 6, rel=1e-3)
    with pytest.raises(Unsupported, match="too much memory"):
        network_size((10, 10), (20000, 20000))


@pytest.mark.slow
def test_a_reduced_picture_keeps_its_size_in_the_labels() -> None:
    model = Threshold()
    found = label(model, np.zeros((4100, 4100, 3), np.uint8))
    assert found.labels.shape == (4100, 4100)
    assert model.seen == [found.network_size] == [(4096, 4096)]


def test_a_full_disk_is_named_and_leaves_no_remains(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    big = saved(tmp_path / "a.png", np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    small = saved(tmp_path / "b.png", np.zeros((1, 1, 3), np.uint8))
    resource.setrlimit(resource.RLIMIT_FSIZE, (900, hard))  # fails as a full disk does
    try:
        events = predicted(tmp_path / "out", big, small, settings=Settings(look=Look(form="overlay")))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [type(event) for event in events] == [Failure, Result]
    assert "could not write the prediction" in events[0].problem  # type: ignore[union-attr]
    assert "Free some disk space" in events[0].problem  # type: ignore[union-attr]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["b.png"]


def test_a_folder_that_cannot_be_made_fails_that_input_only(tmp_path: Path) -> None:
    out, inside = tmp_path / "out", tmp_path / "in"
    out.mkdir()
    (inside / "taken").mkdir(parents=True)
    (out / "taken").write_text("a file where a folder is needed")
    saved(inside / "taken" / "a.png"), saved(inside / "b.png")
    events = predicted(out, inside)
    assert [type(event) for event in events] == [Result, Failure]
    assert "could not write the folder" in events[1].problem  # type: ignore[union-attr]


def test_a_wish_to_stop_is_heard_between_inputs(tmp_path: Path) -> None:
    inputs, _ = expand([str(saved(tmp_path / "a.png"))], out=tmp_path / "out")
    with pytest.raises(Interrupted, match="Run the same command again"):
        list(predict_all(Threshold(), [(inputs[0], tmp_path / "b.png")], Settings(), stop=lambda: True))
    assert not (tmp_path / "b.png").exists()


def test_opacity_has_bounds() -> None:
    with pytest.raises(Unsupported, match=r"outside 0\.\.1"):
        Look(opacity=1.5)
