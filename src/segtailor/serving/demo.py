"""What the page shows of a picture: the prediction as a picture and in numbers, and the time of every stage.

Independent of the web server.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from segtailor.core.codec import Json
from segtailor.core.errors import DataProblem, Interrupted
from segtailor.core.task import KIND_FACTS, Preprocessing
from segtailor.data.bands import uploaded_bands, uploaded_size
from segtailor.data.files import decode_image, image_size
from segtailor.data.parts import WholeRows
from segtailor.data.tiles import MAX_KEPT_BYTES, Tiling, label_bands
from segtailor.predicting.labelling import (
    Labelled,
    Predictor,
    ScoringPredictor,
    described,
    label,
    own_tile,
    paint,
    png,
    scores_of,
)
from segtailor.tasks import Look
from segtailor.tasks.bands import scaled_bands, shown_picture

Answer: TypeAlias = dict[str, Json]
JPEG = b"\xff\xd8"
SCAN = b"\xff\xda"  # starts a pass over a JPEG picture


@dataclass(frozen=True, kw_only=True)
class UploadLimits:
    """The most that one visitor may send, and the most that all of them may occupy."""

    upload_bytes: int = 32 * 2**20
    pixels: int = 2**25
    side: int = 2**13
    """Pixels of the longer side."""
    aspect: int = 32
    """Of the longer side to the shorter one, at most."""
    scans: int = 100
    """Passes over a progressive JPEG, each of which takes as long as a plain JPEG; ten are usual."""
    network_pixels: int = 2**22
    """Of what the network gets at once; larger pictures are labelled in tiles, or reduced where that is too slow."""
    tile_seconds: float = 30.0
    """For all tiles of a picture; one that would take longer is reduced instead."""
    small_pixels: int = 2**20
    """Up to this size, pictures do not wait for larger ones."""
    pictures: int = 16
    """Of all visitors together, waiting or being worked on."""
    memory_bytes: int = 8 * 32 * 2**20
    """For what all visitors together are sending."""


@dataclass(frozen=True, kw_only=True)
class Demo:
    """A network to show: its name, the description of what runs it, and the limits of uploads."""

    predictor: Predictor
    name: str
    runtime: str
    note: str | None = None
    limits: UploadLimits = field(default_factory=UploadLimits)

    def document(self) -> Answer:
        """Describe the model to the page."""
        task = self.predictor.task
        facts = KIND_FACTS[task.kind]
        named = zip(task.classes, task.palette, strict=True) if facts.labelled else ()
        return {
            "model": self.name,
            "runtime": self.runtime,
            "note": self.note,
            "kind": task.kind,
            "described": facts.described,
            "classes": [{"name": name, "colour": list(colour)} for name, colour in named],
            "upload_bytes": self.limits.upload_bytes,
        }

    @property
    def _ranges(self) -> tuple[tuple[float, float], ...] | None:
        """The ranges of the bands that the network reads; None for colour pictures."""
        preprocessing = getattr(self.predictor, "preprocessing", None)
        return preprocessing.ranges if isinstance(preprocessing, Preprocessing) else None

    def measure(self, data: bytes) -> tuple[int, int]:
        """Return height and width of the picture in `data` without decoding it; one too costly to decode raises."""
        if self._ranges is None:
            height, width = image_size(data, name="you sent", limit=self.limits.pixels)
        else:
            height, width = uploaded_size(data, bands=len(self._ranges), limit=self.limits.pixels)
        shorter, longer = sorted((height, width))
        reason = ""
        if longer > self.limits.side:
            reason = f"{width}x{height} is over the limit of {self.limits.side} pixels for a side"
        elif longer > self.limits.aspect * shorter:
            reason = f"{width}x{height} is longer than {self.limits.aspect} times its other side"
        elif data.startswith(JPEG) and data.count(SCAN) > self.limits.scans:
            reason = f"it is built up in more than {self.limits.scans} passes"
        if reason:
            raise DataProblem(f"image you sent cannot be read: {reason}. Cut or convert it first.")
        return height, width

    def analyse(self, data: bytes, *, gone: Callable[[], bool] = lambda: False) -> Answer:
        """Predict the picture in `data` (the content of an image file); the mask is a PNG in base 64.

        Where `gone` returns true, nobody waits for the answer any more, and work in tiles ends.
        """
        times = [time.perf_counter()]
        image = self._decoded(data)
        times.append(time.perf_counter())
        labelled, tiles = self._labelled(image, gone)
        times.append(time.perf_counter())
        facts = described(labelled.labels, self.predictor.task)
        painted = paint(image, labelled.labels, self.predictor.task, Look())
        times.append(time.perf_counter())
        mask = png(painted)
        times.append(time.perf_counter())
        decode, _, colour, encode = (1e3 * (end - start) for start, end in pairwise(times))
        return {
            "height": image.shape[0],
            "width": image.shape[1],
            "network_size": list(labelled.network_size),
            "tiles": tiles,
            "shares": [facts.get(name, 0.0) for name in self.predictor.task.classes],
            "facts": {name: value for name, value in facts.items() if value > 0},
            "confidence": None if labelled.confidence is None else float(labelled.confidence.mean()),
            "mask": base64.b64encode(mask).decode(),
            "picture": self._shown(image),
            "timings_ms": {
                "decode": decode,
                "resize": labelled.resize_ms,
                "network": labelled.network_ms,
                "colour": colour,
                "encode": encode,
            },
        }

    def _decoded(self, data: bytes) -> NDArray[np.uint8]:
        if self._ranges is None:
            return decode_image(data, name="you sent", limit=self.limits.pixels)
        values = uploaded_bands(data, bands=len(self._ranges), limit=self.limits.pixels)
        return scaled_bands(values, self._ranges)

    def _shown(self, image: NDArray[np.uint8]) -> str | None:
        """Return the picture as a PNG in base 64 where a browser could not show the file: the first three bands."""
        if self._ranges is None:
            return None
        return base64.b64encode(png(Image.fromarray(shown_picture(image)))).decode()

    def _labelled(self, image: NDArray[np.uint8], gone: Callable[[], bool]) -> tuple[Labelled, int]:
        """Label a picture, and return in how many tiles; a large one is reduced where tiles cost too much."""
        limits, predictor = self.limits, self.predictor
        size = (image.shape[0], image.shape[1])
        sure = isinstance(predictor, ScoringPredictor) and predictor.confident
        if size[0] * size[1] > limits.network_pixels and KIND_FACTS[predictor.task.kind].labelled:
            tiling = Tiling(tile=own_tile(predictor))
            if tiling.kept_bytes(size, predictor.task.outputs) <= MAX_KEPT_BYTES:  # more would go to disk
                with suppress(_TooSlow):
                    return self._in_tiles(image, tiling, gone, sure=sure), tiling.count(size)
        return label(predictor, image, pixels=limits.network_pixels, confidence=sure), 1

    def _in_tiles(
        self, image: NDArray[np.uint8], tiling: Tiling, gone: Callable[[], bool], *, sure: bool
    ) -> Labelled:
        size, scores = (image.shape[0], image.shape[1]), scores_of(self.predictor)
        pace = _Pace(tiling.count(size), self.limits.tile_seconds)

        def watched(tile: NDArray[np.uint8]) -> NDArray[np.float32]:
            if gone():
                raise Interrupted("nobody waits for this picture any more.")
            found = scores(tile)
            pace.step()
            return found

        labels, confidence = np.empty(size, np.uint8), np.empty(size, np.float32) if sure else None
        for band in label_bands(
            WholeRows(pixels=image), watched, tiling, classes=self.predictor.task.outputs
        ):
            rows = slice(band.top, band.top + len(band.labels))
            labels[rows] = band.labels
            if confidence is not None:
                confidence[rows] = band.confidence
        return Labelled(
            labels=labels,
            confidence=confidence,
            network_size=(min(tiling.tile[0], size[0]), min(tiling.tile[1], size[1])),
            resize_ms=0.0,
            network_ms=1e3 * pace.seconds,
        )


class _TooSlow(Exception):
    """All tiles of a picture would take too long."""


class _Pace:
    """Stops work in tiles that would take longer than allowed; the first tile does not count, it may prepare things."""

    def __init__(self, tiles: int, most: float) -> None:
        self._tiles, self._most, self._done = tiles, most, 0
        self._start = self._first = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.perf_counter() - self._start

    def step(self) -> None:
        """Count a tile, and raise where the others would take too long."""
        self._done += 1
        if self._done == 1:
            self._first = time.perf_counter()
            return
        each = (time.perf_counter() - self._first) / (self._done - 1)
        if each * (self._tiles - 1) > self._most:
            raise _TooSlow
