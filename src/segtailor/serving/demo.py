"""What the page shows of a picture: what was predicted, as a picture and in numbers, and the time of every stage.

Knows nothing of the web.
"""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass, field
from itertools import pairwise

from segtailor.core.codec import Json
from segtailor.core.figures import KIND_FACTS
from segtailor.data.files import decode_image
from segtailor.predicting.labelling import Predictor, described, label
from segtailor.predicting.painting import Look, paint, png


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most that a visitor may send."""

    upload_bytes: int = 32 * 2**20
    pixels: int = 2**25


@dataclass(frozen=True, kw_only=True)
class Demo:
    """A network to show: its name, what runs it in words, and how much may be sent to it."""

    predictor: Predictor
    name: str
    runtime: str
    note: str | None = None
    limits: Limits = field(default_factory=Limits)

    def document(self) -> dict[str, Json]:
        """Describe the model to the page."""
        task = self.predictor.task
        facts = KIND_FACTS[task.kind]
        named = zip(task.classes, task.palette, strict=True) if facts.coloured else ()
        return {
            "model": self.name,
            "runtime": self.runtime,
            "note": self.note,
            "kind": task.kind,
            "described": facts.described,
            "classes": [{"name": name, "colour": list(colour)} for name, colour in named],
            "upload_bytes": self.limits.upload_bytes,
        }

    def analyse(self, data: bytes) -> dict[str, Json]:
        """Predict the picture in `data` (the content of an image file); the mask is a PNG in base 64."""
        marks = [time.perf_counter()]
        image = decode_image(data, name="you sent", limit=self.limits.pixels)
        marks.append(time.perf_counter())
        found = label(self.predictor, image)
        marks.append(time.perf_counter())
        facts = described(found.labels, self.predictor.task)
        painted = paint(image, found.labels, self.predictor.task, Look())
        marks.append(time.perf_counter())
        mask = png(painted)
        marks.append(time.perf_counter())
        decode, _, colour, encode = (1e3 * (end - start) for start, end in pairwise(marks))
        return {
            "height": image.shape[0],
            "width": image.shape[1],
            "network_size": list(found.network_size),
            "shares": [facts.get(name, 0.0) for name in self.predictor.task.classes],
            "facts": {name: value for name, value in facts.items() if value > 0},
            "mask": base64.b64encode(mask).decode(),
            "timings_ms": {
                "decode": decode,
                "resize": found.resize_ms,
                "network": found.network_ms,
                "colour": colour,
                "encode": encode,
            },
        }
