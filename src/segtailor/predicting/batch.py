"""Label many inputs, one after the other. An input that fails is reported; the others are still labelled."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from segtailor.core.atomic import write_bytes, writing
from segtailor.core.codec import Json
from segtailor.core.errors import DataProblem, Interrupted, Unsupported, UserError
from segtailor.core.task import KIND_FACTS, Preprocessing, needs_classes
from segtailor.data.bands import read_bands
from segtailor.data.large import WindowRows, band_windows
from segtailor.data.parts import LARGE_PIXELS, Rows, WholeRows, open_rows, read_whole
from segtailor.data.tiles import Tiling, label_bands
from segtailor.predicting.inputs import Input, Kind
from segtailor.predicting.labelling import (
    NETWORK_PIXELS,
    Labelled,
    Predictor,
    confidence_picture,
    described,
    label,
    network_size,
    own_tile,
    paint,
    png,
    scores_of,
    scoring,
    unsure_picture,
)
from segtailor.predicting.png_stream import Mode, png_rows
from segtailor.predicting.video import Footage, frame_folder, movie, open_camera, open_video
from segtailor.tasks import Look
from segtailor.tasks.bands import scaled_bands


@dataclass(frozen=True, kw_only=True)
class Progress:
    """One frame of a moving input is done, or some rows of a large picture; `total` where it is known."""

    text: str
    done: int
    total: int | None
    frame: bool = True


@dataclass(frozen=True, kw_only=True)
class Result:
    """What was written for one input; `note` is for the user.

    `facts` are numbers about the prediction, averaged over frames, and `described` is their name. `tiles` is the number
    of tiles that a picture was labelled in; `beside` are files of other content, by name.
    """

    text: str
    kind: Kind
    output: Path
    size: tuple[int, int]
    network_size: tuple[int, int]
    frames: int
    seconds: float
    described: str
    facts: Mapping[str, float]
    note: str | None = None
    tiles: int = 1
    beside: Mapping[str, Path] = field(default_factory=dict)

    def document(self) -> dict[str, Json]:
        """Return plain data."""
        return {
            "input": self.text,
            "kind": self.kind,
            "output": str(self.output),
            "height": self.size[0],
            "width": self.size[1],
            "network_size": list(self.network_size),
            "frames": self.frames,
            "seconds": self.seconds,
            self.described: dict(self.facts),
            "note": self.note,
            "tiles": self.tiles,
            **{name: str(path) for name, path in self.beside.items()},
        }


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why an input could not be labelled, or not completely."""

    text: str
    problem: str


Event: TypeAlias = Progress | Result | Failure


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How inputs are labelled; `frames` is the most that are read from a video or camera.

    `tile` (height, width) labels pictures in overlapping tiles; those too large for the network as a whole are
    labelled in tiles anyway, unless a `size` is given. `confidence` also writes how likely each label is, and `unsure`
    a mask of the labels that are less likely than this.
    """

    look: Look = field(default_factory=Look)
    size: tuple[int, int] | None = None
    frames: int | None = None
    tile: tuple[int, int] | None = None
    confidence: bool = False
    unsure: float | None = None

    def __post_init__(self) -> None:
        if self.tile is not None:
            Tiling(tile=self.tile)  # raises if it is too small or too large
            if self.size is not None:
                raise Unsupported(
                    "size and tile: tiles are cut from the picture at its own size; give one of both."
                )
        if self.unsure is not None and not 0 < self.unsure <= 1:
            raise Unsupported(
                f"unsure: {self.unsure:g} is no probability; give more than 0 and at most 1, e.g. 0.6."
            )
        if self.size is not None:
            network_size(self.size, self.size)  # raises if it is too large
        if self.frames is not None and self.frames < 1:
            raise Unsupported(f"{self.frames} frames leave nothing to label; give 1 or more.")

    @property
    def sure(self) -> bool:
        """Whether the probability of labels is needed."""
        return self.confidence or self.unsure is not None


def files_beside(path: Path, settings: Settings) -> dict[str, Path]:
    """Return the files that are written beside the result `path` of a picture, by what they hold."""
    wanted = {"confidence": settings.confidence, "unsure": settings.unsure is not None}
    return {name: path.with_suffix(f".{name}.png") for name, asked in wanted.items() if asked}


def predict_all(
    predictor: Predictor,
    work: Sequence[tuple[Input, Path]],
    settings: Settings,
    *,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Event]:
    """Label every input and write its result. Where `stop` returns true, a camera ends and anything else raises."""
    for item, path in work:
        if stop():
            raise Interrupted(
                "interrupted; what was finished is complete. Run the same command again for the rest."
            )
        try:
            with writing(path, what="folder"):
                path.parent.mkdir(parents=True, exist_ok=True)
            if item.kind == "image":
                yield from _picture(predictor, item, path, settings, stop)
            elif settings.sure or settings.tile:
                raise Unsupported(
                    f"{item.text}: tiles and confidence are for pictures; label videos and cameras without."
                )
            else:
                yield from _moving(predictor, item, path, settings, stop)
        except UserError as problem:
            yield Failure(text=item.text, problem=str(problem))
        except MemoryError:
            yield Failure(
                text=item.text, problem=f"{item.text} does not fit in memory. Give --size, e.g. 512x1024."
            )


def _picture(
    predictor: Predictor, item: Input, path: Path, settings: Settings, stop: Callable[[], bool]
) -> Iterator[Event]:
    given = _in_bands(predictor, item.path)
    if given is not None:
        tiling = _tiling(predictor, given, settings)
        if tiling is not None:
            yield from _in_tiles(predictor, item, path, settings, rows=given, tiling=tiling, stop=stop)
        else:
            yield _whole(predictor, item, path, settings, given.read(0, given.size[0]))
        return
    with open_rows(item.path) as rows:
        if rows is None or (settings.tile is None and rows.size[0] * rows.size[1] <= NETWORK_PIXELS):
            rows = WholeRows(pixels=_pixels(item.path, rows))
        tiling = _tiling(predictor, rows, settings)
        if tiling is not None:
            yield from _in_tiles(predictor, item, path, settings, rows=rows, tiling=tiling, stop=stop)
        else:
            image = rows.pixels if isinstance(rows, WholeRows) else read_whole(item.path)
            yield _whole(predictor, item, path, settings, image)


def _in_bands(predictor: Predictor, path: Path) -> Rows | None:
    """Return a picture as a network for other bands than RGB reads it; nothing for a network for colour pictures."""
    preprocessing = getattr(predictor, "preprocessing", None)
    if not isinstance(preprocessing, Preprocessing) or preprocessing.ranges is None:
        return None
    windows = band_windows(path, preprocessing.ranges)
    if windows is not None and math.prod(windows.size) > LARGE_PIXELS:
        return WindowRows(windows=windows)
    values = read_bands(path, bands=preprocessing.channels)
    return WholeRows(pixels=scaled_bands(values, preprocessing.ranges))


def _pixels(path: Path, rows: Rows | None) -> NDArray[np.uint8]:
    if path.suffix.lower() == ".npy" and rows is not None:
        return rows.read(0, rows.size[0])
    return read_whole(path)


def _tiling(predictor: Predictor, rows: Rows, settings: Settings) -> Tiling | None:
    """Return how a picture is divided: as asked, or because the network cannot take it as a whole."""
    if settings.tile is not None:
        needs_classes(predictor.task, "a prediction in tiles")
        return Tiling(tile=settings.tile)
    height, width = rows.size
    labelled = KIND_FACTS[predictor.task.kind].labelled
    if settings.size is not None or not labelled or height * width <= NETWORK_PIXELS:
        return None
    return Tiling(tile=own_tile(predictor))


def _whole(
    predictor: Predictor, item: Input, path: Path, settings: Settings, image: NDArray[np.uint8]
) -> Result:
    start = time.perf_counter()
    labelled = label(predictor, image, size=settings.size, confidence=settings.sure)
    picture = paint(image, labelled.labels, predictor.task, settings.look)
    write_bytes(path, png(picture), what="prediction")
    beside = files_beside(path, settings)
    if labelled.confidence is not None:
        for name, file in beside.items():
            content = Image.fromarray(_beside(name, labelled.confidence, settings))
            write_bytes(file, png(content), what=name)
    tally = _Tally(predictor)
    tally.add(image, labelled)
    return replace(tally.result(item, path, start, reduced=settings.size is None), beside=beside)


def _in_tiles(
    predictor: Predictor, item: Input, path: Path, settings: Settings, *, rows: Rows, tiling: Tiling,
    stop: Callable[[], bool],
) -> Iterator[Event]:  # fmt: skip
    """Label a picture in tiles and write its results row by row."""
    start, beside = time.perf_counter(), files_beside(path, settings)
    scores = scoring(predictor).probabilities if settings.sure else scores_of(predictor)
    task, (height, width) = predictor.task, rows.size
    counts = np.zeros(task.outputs, np.int64)
    mode: Mode = {"colour": "P", "ids": "L", "overlay": "RGB"}[settings.look.form]  # type: ignore[assignment]
    palette = [value for colour in task.palette for value in colour]
    with ExitStack() as files:
        labels = files.enter_context(png_rows(path, rows.size, mode, palette))
        others = {name: files.enter_context(png_rows(file, rows.size, "L")) for name, file in beside.items()}
        for band in label_bands(rows, scores, tiling, classes=task.outputs):
            if stop():
                raise Interrupted(
                    f"interrupted in {item.text}, of which nothing was kept. Run the same command again."
                )
            labels.add(np.asarray(paint(band.pixels, band.labels, task, settings.look)))
            for name, writer in others.items():
                writer.add(_beside(name, band.confidence, settings))
            for line in band.labels:
                counts += np.bincount(line, minlength=task.outputs)
            yield Progress(text=item.text, done=band.top + len(band.labels), total=height, frame=False)
    tiles = tiling.count(rows.size)
    shape = (min(tiling.tile[0], height), min(tiling.tile[1], width))
    note = None
    if settings.tile is None:
        note = f"{item.text} is large: it was labelled in {tiles} tiles of {shape[0]}x{shape[1]}."
    shares = zip(task.classes, counts / (height * width), strict=True)
    yield Result(
        text=item.text,
        kind=item.kind,
        output=path,
        size=rows.size,
        network_size=shape,
        frames=1,
        seconds=time.perf_counter() - start,
        described=KIND_FACTS[task.kind].described,
        facts={name: float(share) for name, share in shares if share > 0},
        note=note,
        tiles=tiles,
        beside=beside,
    )


def _beside(name: str, confidence: NDArray[np.float32], settings: Settings) -> NDArray[np.uint8]:
    if name == "unsure" and settings.unsure is not None:
        return unsure_picture(confidence, settings.unsure)
    return confidence_picture(confidence)


def _moving(
    predictor: Predictor, item: Input, path: Path, settings: Settings, stop: Callable[[], bool]
) -> Iterator[Event]:
    start, tally = time.perf_counter(), _Tally(predictor)
    with open_camera(item.camera) if item.kind == "camera" else open_video(item.path) as footage:
        total = min((count for count in (footage.total, settings.frames) if count), default=None)
        writer = frame_folder(path) if settings.look.form == "ids" else movie(path, footage.rate)
        with writer as add:
            for image, moment in _wanted(footage, settings.frames, stop):
                labelled = label(predictor, image, size=settings.size)
                add(paint(image, labelled.labels, predictor.task, settings.look), moment)
                tally.add(image, labelled)
                yield Progress(text=item.text, done=tally.frames, total=total)
            if not tally.frames:
                raise DataProblem(
                    f"{item.text} holds no frame that can be read. Restore, convert or remove it."
                )
        yield tally.result(item, path, start, reduced=settings.size is None)
        if footage.problem:
            yield Failure(text=item.text, problem=footage.problem)


def _wanted(
    footage: Footage, most: int | None, stop: Callable[[], bool]
) -> Iterator[tuple[NDArray[np.uint8], float]]:
    for count, frame in enumerate(footage, start=1):
        yield frame
        if count == most:
            return
        if stop():
            if footage.live:
                return  # the usual way to end a camera
            raise Interrupted(
                f"interrupted in {footage.name}, of which nothing was kept. Run the same command again."
            )


class _Tally:
    """Counts frames and sums up the numbers that describe their predictions."""

    def __init__(self, predictor: Predictor) -> None:
        self.frames = 0
        self._task = predictor.task
        self._sums: dict[str, float] = {}
        self._sizes = ((0, 0), (0, 0))

    def add(self, image: NDArray[np.uint8], labelled: Labelled) -> None:
        self.frames += 1
        for name, value in described(labelled.labels, self._task).items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._sizes = ((image.shape[0], image.shape[1]), labelled.network_size)

    def result(self, item: Input, path: Path, start: float, *, reduced: bool) -> Result:
        image_size, input_size = self._sizes
        note = None
        if reduced and image_size != input_size:
            note = f"{item.text} is large: the network saw it at {input_size[0]}x{input_size[1]}."
        return Result(
            text=item.text,
            kind=item.kind,
            output=path,
            size=image_size,
            network_size=input_size,
            frames=self.frames,
            seconds=time.perf_counter() - start,
            described=KIND_FACTS[self._task.kind].described,
            facts={name: total / self.frames for name, total in self._sums.items() if total > 0},
            note=note,
        )
