"""Label many inputs, one after the other. An input that fails is reported; the others are still labelled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from segtailor.core.atomic import write_bytes, writing
from segtailor.core.codec import Json
from segtailor.core.errors import DataProblem, Interrupted, Unsupported, UserError
from segtailor.core.task import KIND_FACTS
from segtailor.data.files import read_image
from segtailor.predicting.inputs import Input, Kind
from segtailor.predicting.labelling import Labelled, Predictor, described, label, network_size, paint, png
from segtailor.predicting.video import Footage, frame_folder, movie, open_camera, open_video
from segtailor.tasks import Look


@dataclass(frozen=True, kw_only=True)
class Progress:
    """One frame of a moving input is done; `total` where it is known."""

    text: str
    done: int
    total: int | None


@dataclass(frozen=True, kw_only=True)
class Result:
    """What was written for one input; `note` is for the user.

    `facts` are numbers about the prediction, averaged over frames, and `described` is their name.
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
        }


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why an input could not be labelled, or not completely."""

    text: str
    problem: str


Event: TypeAlias = Progress | Result | Failure


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How inputs are labelled; `frames` is the most that are read from a video or camera."""

    look: Look = field(default_factory=Look)
    size: tuple[int, int] | None = None
    frames: int | None = None

    def __post_init__(self) -> None:
        if self.size is not None:
            network_size(self.size, self.size)  # raises if it is too large
        if self.frames is not None and self.frames < 1:
            raise Unsupported(f"{self.frames} frames leave nothing to label; give 1 or more.")


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
                yield _picture(predictor, item, path, settings)
            else:
                yield from _moving(predictor, item, path, settings, stop)
        except UserError as problem:
            yield Failure(text=item.text, problem=str(problem))
        except MemoryError:
            yield Failure(
                text=item.text, problem=f"{item.text} does not fit in memory. Give --size, e.g. 512x1024."
            )


def _picture(predictor: Predictor, item: Input, path: Path, settings: Settings) -> Result:
    start = time.perf_counter()
    image = read_image(item.path)
    labelled = label(predictor, image, size=settings.size)
    picture = paint(image, labelled.labels, predictor.task, settings.look)
    write_bytes(path, png(picture), what="prediction")
    tally = _Tally(predictor)
    tally.add(image, labelled)
    return tally.result(item, path, start, reduced=settings.size is None)


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
