"""What the page shows of a picture: the prediction as a picture and in numbers, and the time of every stage.

Independent of the web server.
"""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from segtailor.core.codec import Json
from segtailor.core.errors import DataProblem
from segtailor.core.task import KIND_FACTS
from segtailor.data.files import decode_image, image_size
from segtailor.predicting.labelling import Predictor, ScoringPredictor, described, label, paint, png
from segtailor.tasks import Look

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
    """Of what the network gets; larger pictures are reduced for it."""
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

    def measure(self, data: bytes) -> tuple[int, int]:
        """Return height and width of the picture in `data` without decoding it; one too costly to decode raises."""
        height, width = image_size(data, name="you sent", limit=self.limits.pixels)
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

    def analyse(self, data: bytes) -> Answer:
        """Predict the picture in `data` (the content of an image file); the mask is a PNG in base 64."""
        times = [time.perf_counter()]
        image = decode_image(data, name="you sent", limit=self.limits.pixels)
        times.append(time.perf_counter())
        sure = isinstance(self.predictor, ScoringPredictor) and self.predictor.confident
        labelled = label(self.predictor, image, pixels=self.limits.network_pixels, confidence=sure)
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
            "shares": [facts.get(name, 0.0) for name in self.predictor.task.classes],
            "facts": {name: value for name, value in facts.items() if value > 0},
            "confidence": None if labelled.confidence is None else float(labelled.confidence.mean()),
            "mask": base64.b64encode(mask).decode(),
            "timings_ms": {
                "decode": decode,
                "resize": labelled.resize_ms,
                "network": labelled.network_ms,
                "colour": colour,
                "encode": encode,
            },
        }
