"""Moving pictures: whole, cut, turned, of odd size; memory that does not grow; cameras that are not there."""

from __future__ import annotations

import resource
import struct
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from segtailor.core.errors import DataProblem, Interrupted, Unsupported
from segtailor.predicting import Event, Failure, Form, Look, Progress, Result, Settings, expand, predict_all
from segtailor.predicting.batch import _wanted
from segtailor.predicting.video import open_camera, open_video
from tests.predicting.models import Threshold, halves

av = pytest.importorskip("av", reason="needs the package av (extra `video`)")


def film(
    path: Path,
    *,
    frames: int = 12,
    size: tuple[int, int] = (48, 64),
    codec: str = "libx264",
    muxer: dict[str, str] | None = None,
) -> Path:
    """Write a video whose bright half grows from nothing to everything."""
    options = {"g": "4", "bf": "0"}  # a key picture every four frames
    with av.open(str(path), "w", options=muxer or {}) as container:
        stream = container.add_stream(codec, rate=10, options=options)
        stream.height, stream.width = size
        stream.pix_fmt = "yuv420p"
        for index in range(frames):
            image = np.full((*size, 3), 20, np.uint8)
            image[:, : size[1] * (index + 1) // frames] = 230
            image[:: index % 3 + 2, ::2] ^= 7  # something to compress, so that a cut hits a picture
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))
    return path


def frames_of(path: Path) -> list[NDArray[np.uint8]]:
    with open_video(path) as footage:
        return [image for image, _ in footage]


def labelled(path: Path, out: Path, form: Form = "colour", **options: object) -> list[Event]:
    inputs, problems = expand([str(path)], out=out.parent)
    assert not problems
    settings = Settings(look=Look(form=form), **options)  # type: ignore[arg-type]
    return list(predict_all(Threshold(), [(inputs[0], out)], settings))


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".avi"])
def test_a_whole_video_is_labelled_frame_by_frame(tmp_path: Path, suffix: str) -> None:
    source = film(tmp_path / f"a{suffix}", codec="mpeg4" if suffix == ".avi" else "libx264")
    *progress, result = labelled(source, tmp_path / "out" / "a.mp4", form="overlay")
    assert isinstance(result, Result)
    assert [event.done for event in progress if isinstance(event, Progress)] == list(range(1, 13))
    assert (result.frames, result.size) == (12, (48, 64))
    assert result.facts["bright"] == pytest.approx(
        np.mean([(index + 1) / 12 for index in range(12)]), abs=0.03
    )
    with open_video(result.output) as footage:
        assert footage.rate == Fraction(10)
        written = [image for image, _ in footage]
        assert footage.problem is None
    assert {image.shape for image in written} == {(48, 64, 3)}
    assert len(written) == 12


def test_ids_of_a_video_are_pictures_in_a_folder(tmp_path: Path) -> None:
    source = film(tmp_path / "a.mp4")
    events = labelled(source, tmp_path / "out" / "a", form="ids", frames=5)
    assert isinstance(events[-1], Result)
    files = sorted((tmp_path / "out" / "a").iterdir())
    assert [file.name for file in files] == [f"{index:06d}.png" for index in range(5)]
    for file, image in zip(files, frames_of(source), strict=False):
        np.testing.assert_array_equal(np.asarray(Image.open(file)), Threshold().predict(image))


def test_odd_sizes_are_kept(tmp_path: Path) -> None:
    source = tmp_path / "a.mkv"
    with av.open(str(source), "w") as container:
        stream = container.add_stream("ffv1", rate=5)
        stream.height, stream.width, stream.pix_fmt = 33, 51, "bgr0"
        for _ in range(3):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(halves(33, 51), format="rgb24")))
        container.mux(stream.encode(None))
    labelled(source, tmp_path / "out.mp4")
    assert frames_of(tmp_path / "out.mp4")[0].shape == (33, 51, 3)


@pytest.mark.parametrize("keep", [0.9, 0.7])
@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".avi"])
def test_a_video_that_ends_early_gives_what_could_be_read_and_says_so(
    tmp_path: Path, suffix: str, keep: float
) -> None:
    source = film(
        tmp_path / f"a{suffix}",
        frames=40,
        codec="mpeg4" if suffix == ".avi" else "libx264",
        muxer={"movflags": "faststart"},
    )
    content = source.read_bytes()
    if suffix == ".mkv":
        content = content[
            : content.rindex(b"\x1c\x53\xbb\x6b")
        ]  # without the index that follows the pictures
    source.write_bytes(content[: int(len(content) * keep)])
    *_, result, failure = labelled(source, tmp_path / "out.mp4")
    assert isinstance(result, Result)
    assert isinstance(failure, Failure)
    assert 0 < result.frames < 40  # how many depends on the threads of the encoder
    assert "could be read, and those were labelled" in failure.problem
    assert len(frames_of(tmp_path / "out.mp4")) == result.frames


def test_a_video_without_its_index_cannot_be_read_at_all(tmp_path: Path) -> None:
    source = film(tmp_path / "a.mp4")
    source.write_bytes(source.read_bytes()[:-600])  # the index of an MP4 file is at its end
    (failure,) = labelled(source, tmp_path / "out.mp4")
    assert isinstance(failure, Failure)
    assert "a.mp4 cannot be read" in failure.problem
    assert not (tmp_path / "out.mp4").exists()


def test_damage_in_the_middle_costs_frames_not_the_rest(tmp_path: Path) -> None:
    clusters = {"cluster_time_limit": "400"}  # milliseconds; reading goes on with the next whole one
    source = film(tmp_path / "a.mkv", frames=40, muxer=clusters)
    content = bytearray(source.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 400] = bytes(400)
    source.write_bytes(content)
    events = labelled(source, tmp_path / "out.mp4")
    (result,) = [event for event in events if isinstance(event, Result)]
    assert 24 <= result.frames < 40
    with open_video(source) as footage:
        assert [time for _, time in footage][-1] == pytest.approx(3.9)


def test_a_turned_video_is_written_upright(tmp_path: Path) -> None:
    source = film(tmp_path / "a.mp4", frames=2)
    content = bytearray(source.read_bytes())
    matrix = content.index(b"tkhd") + 4 + 40  # of a version 0 track header
    content[matrix : matrix + 36] = struct.pack(
        ">9i", 0, 1 << 16, 0, -1 << 16, 0, 0, 0, 0, 1 << 30
    )  # 90 degrees
    source.write_bytes(content)
    first = frames_of(source)[0]
    assert first.shape == (64, 48, 3)
    assert first[: 64 // 2 - 4].mean() > 150 > first[64 // 2 + 4 :].mean()  # its left half is now on top
    labelled(source, tmp_path / "out.mp4")
    assert frames_of(tmp_path / "out.mp4")[0].shape == (64, 48, 3)


def test_a_wish_to_stop_leaves_no_half_video(tmp_path: Path) -> None:
    inputs, _ = expand([str(film(tmp_path / "a.mp4"))], out=tmp_path / "out")
    asked = iter([False, False, False, True, True])
    with pytest.raises(Interrupted, match="nothing was kept"):
        list(
            predict_all(
                Threshold(), [(inputs[0], tmp_path / "out" / "a.mp4")], Settings(), stop=lambda: next(asked)
            )
        )
    assert not list((tmp_path / "out").iterdir())


def test_a_live_source_ends_at_a_wish_and_keeps_what_it_has(tmp_path: Path) -> None:
    with open_video(film(tmp_path / "a.mp4")) as footage:
        footage.live = True
        asked = iter([False, False, True])
        assert len(list(_wanted(footage, None, lambda: next(asked)))) == 3


def test_a_video_on_a_full_disk_is_named_and_leaves_no_remains(tmp_path: Path) -> None:
    source = film(tmp_path / "a.mp4", frames=60)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, hard))  # fails as a full disk does
    try:
        events = labelled(source, tmp_path / "out" / "a.mp4", form="overlay")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert isinstance(events[-1], Failure)
    assert "Free some disk space" in events[-1].problem
    assert not list((tmp_path / "out").iterdir())


def test_lists_of_addresses_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_text(
        "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nhttp://127.0.0.1:9/x.ts\n#EXT-X-ENDLIST\n"
    )
    (failure,) = labelled(tmp_path / "a.mp4", tmp_path / "out.mp4")
    assert isinstance(failure, Failure)


@pytest.mark.skipif(sys.platform != "linux", reason="cameras are read on Linux only")
def test_a_camera_that_is_not_there_is_named() -> None:
    with (
        pytest.raises(DataProblem, match=r"camera 97 is not there: /dev/video97 does not exist"),
        open_camera(97),
    ):
        pass


def test_a_file_of_sound_has_no_pictures(tmp_path: Path) -> None:
    import wave

    with wave.open(str(tmp_path / "a.mkv"), "wb") as sound:  # content decides, not the name
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(bytes(1600))
    (failure,) = labelled(tmp_path / "a.mkv", tmp_path / "out.mp4")
    assert isinstance(failure, Failure)
    assert "holds no pictures" in failure.problem


def test_without_the_package_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with (
        pytest.raises(Unsupported, match=r"pip install 'segtailor\[video\]'"),
        open_video(tmp_path / "a.mp4"),
    ):
        pass


@pytest.mark.slow
def test_memory_does_not_grow_with_the_length_of_a_video(tmp_path: Path) -> None:
    import psutil

    source = film(tmp_path / "a.mp4", frames=400, size=(480, 640))
    inputs, _ = expand([str(source)], out=tmp_path / "out")
    process, sizes = psutil.Process(), []
    for event in predict_all(Threshold(), [(inputs[0], tmp_path / "out" / "a.mp4")], Settings()):
        if isinstance(event, Progress) and event.done % 100 == 0:
            sizes.append(process.memory_info().rss)
    assert len(sizes) == 4
    assert sizes[-1] - sizes[0] < 40e6  # the 300 frames between would take 276 MB
