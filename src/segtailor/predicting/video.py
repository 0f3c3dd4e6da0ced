"""Read and write videos frame by frame, so that memory does not grow with their length. Needs the package av."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from segtailor.core.atomic import new_file, new_folder
from segtailor.core.errors import DataProblem, Unsupported
from segtailor.core.ownership import MARK
from segtailor.data.files import MAX_PIXELS, software_tag

DEFAULT_RATE = Fraction(25)  # frames per second, for files that do not tell
TICKS_PER_SECOND = 90_000  # of the clock of results, fine enough for any rate
MAX_SOUND_SECONDS = 1.0  # that the sound may continue after the last frame
LOCAL_ONLY = {"protocol_whitelist": "file"}  # a playlist file could otherwise fetch from the network
H264_OPTIONS = {"crf": "18", "preset": "veryfast"}
Add: TypeAlias = Callable[[Image.Image, float], None]  # takes a picture and its time in seconds


@dataclass
class Footage:
    """An open video or camera: iterate once over (frame, time in seconds), then look at `problem`."""

    container: Any
    stream: Any
    name: str
    live: bool = False
    problem: str | None = field(default=None, init=False)
    decoded: int = field(default=0, init=False)
    damaged: int = field(default=0, init=False)
    _end: float = field(default=0.0, init=False)

    @property
    def rate(self) -> Fraction:
        """Frames per second."""
        return Fraction(self.stream.average_rate or self.stream.guessed_rate or DEFAULT_RATE)

    @property
    def total(self) -> int | None:
        """Number of frames, if the file tells."""
        return None if self.live else int(self.stream.frames) or round(self._seconds * self.rate) or None

    def __iter__(self) -> Iterator[tuple[NDArray[np.uint8], float]]:
        for frame in self._frames():
            time = float(frame.time) if frame.time is not None else float(self.decoded / self.rate)
            pixels = frame.to_ndarray(format="rgb24")
            held = float((frame.duration or 0) * (frame.time_base or 0))
            self.decoded += 1
            self.damaged += bool(frame.is_corrupt)
            self._end = time + max(held, float(1 / self.rate))
            yield np.ascontiguousarray(np.rot90(pixels, round(frame.rotation / 90))), time
        self.problem = self._verdict()

    def _frames(self) -> Iterator[Any]:
        import av

        packets = self.container.demux(self.stream)
        while True:
            try:
                packet = next(packets, None)
                if packet is None:
                    return
                self.damaged += bool(packet.is_corrupt)
                yield from packet.decode()
            except av.FFmpegError:  # this packet is lost; later ones may be readable
                self.damaged += 1

    @property
    def _seconds(self) -> float:
        """Length that the file states, or 0."""
        import av

        return float((self.container.duration or 0) / av.time_base)

    def _short(self) -> bool:
        """Tell whether fewer frames came than the file states, by number or else by length."""
        import av

        if self.stream.frames:
            return self.decoded < int(self.stream.frames)
        slack = 2 / float(self.rate) + (MAX_SOUND_SECONDS if self.container.streams.audio else 0)
        start = float((self.container.start_time or 0) / av.time_base)
        return self._end - start < self._seconds - slack

    def _verdict(self) -> str | None:
        """Return what is wrong with a video that was read to its end, or None."""
        short = self._short()
        if self.live or not (self.damaged or short):
            return None
        what = "ends early" if short else "has damaged parts"
        of = f" of {self.total}" if short and self.total else ""
        return (
            f"video {self.name} {what}: {self.decoded}{of} frames could be read, and those were labelled. "
            "Copy or record it again for the rest."
        )


def open_video(path: Path) -> AbstractContextManager[Footage]:
    """Open a video file."""
    if path.exists() and not path.is_file():
        raise DataProblem(f"video {path} cannot be read: it is not a regular file. Name another one.")
    return _opened(str(path.absolute()), f"video {path}", name=str(path), options=LOCAL_ONLY)


def open_camera(index: int) -> AbstractContextManager[Footage]:
    """Open a camera by its number."""
    if sys.platform != "linux":
        raise Unsupported(
            f"camera {index} cannot be opened: cameras are read on Linux only. "
            "Use the camera in the page of `segtailor serve`, or record a video first."
        )
    device = Path(f"/dev/video{index}")
    if not device.exists():
        present = sorted(file.name.removeprefix("video") for file in Path("/dev").glob("video*"))
        hint = f"give one of {', '.join(present)}" if present else "connect one, or give a video file"
        raise DataProblem(f"camera {index} is not there: {device} does not exist; {hint}.")
    return _opened(str(device), f"camera {index}", name=str(index), format="v4l2")


@contextmanager
def movie(path: Path, rate: Fraction) -> Iterator[Add]:
    """Yield a function that adds a frame to the MP4 file `path`, which appears when the block ends well."""
    av = _package()
    with new_file(path, what="video") as temporary, av.open(str(temporary), "w", format="mp4") as container:
        container.metadata["comment"] = MARK
        writer = _Writer(container, rate)
        yield writer.add
        writer.finish()


@contextmanager
def frame_folder(path: Path) -> Iterator[Add]:
    """Yield a function that adds a frame to the folder `path`, as 000000.png and so on."""
    with new_folder(path, what="frames") as temporary:
        count = itertools.count()
        yield lambda picture, _: picture.save(temporary / f"{next(count):06d}.png", **software_tag("PNG"))


class _Writer:
    def __init__(self, container: Any, rate: Fraction) -> None:
        self._container, self._rate = container, rate
        self._stream: Any = None
        self._start, self._last = 0.0, -1

    def add(self, picture: Image.Image, time: float) -> None:
        av = _package()
        if self._stream is None:
            self._stream, self._start = self._opened(picture.size), time
        size = (self._stream.width, self._stream.height)
        frame = av.VideoFrame.from_image(picture.convert("RGB").resize(size))  # streams may change their size
        # Times must increase; those of damaged files do not always.
        self._last = frame.pts = max(round((time - self._start) * TICKS_PER_SECOND), self._last + 1)
        frame.time_base = Fraction(1, TICKS_PER_SECOND)
        self._container.mux(self._stream.encode(frame))

    def finish(self) -> None:
        if self._stream is not None:
            self._container.mux(self._stream.encode(None))

    def _opened(self, size: tuple[int, int]) -> Any:
        av = _package()
        common = "libx264" in av.codecs_available
        stream = self._container.add_stream(
            "libx264" if common else "mpeg4", rate=self._rate, options=H264_OPTIONS if common else {}
        )
        stream.width, stream.height = size
        # Colours at half the resolution need even sides.
        stream.pix_fmt = "yuv420p" if size[0] % 2 == size[1] % 2 == 0 else "yuv444p"
        stream.codec_context.time_base = Fraction(1, TICKS_PER_SECOND)
        return stream


@contextmanager
def _opened(source: str, subject: str, *, name: str, **how: Any) -> Iterator[Footage]:
    av = _package()
    try:
        container = av.open(source, **how)
    except (av.FFmpegError, OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise DataProblem(f"{subject} cannot be read: {reason}. Restore, convert or remove it.") from None
    with container:
        if not container.streams.video:
            raise DataProblem(f"{subject} cannot be read: it holds no pictures. Name another file.")
        stream = container.streams.video[0]
        if stream.codec_context is None:
            raise DataProblem(
                f"{subject} cannot be read: its pictures are coded in a way that is not known here. "
                "Convert it, e.g. to H.264 in an MP4 file."
            )
        if (stream.width or 0) * (stream.height or 0) > MAX_PIXELS:
            raise DataProblem(
                f"{subject} cannot be read: frames of {stream.width}x{stream.height} are over the limit "
                f"of {MAX_PIXELS} pixels. Make it smaller first."
            )
        stream.thread_type = "AUTO"
        yield Footage(container, stream, name=name, live="format" in how)


def _package() -> Any:
    try:
        import av
    except ImportError:
        raise Unsupported(
            "videos and cameras need the package av, which is not installed: `pip install 'segtailor[video]'`."
        ) from None
    return av
