"""How labels look in a file: colours, bare ids, or laid over the picture."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from segtailor.core.errors import Unsupported
from segtailor.core.task import Task
from segtailor.data.colour import UNLABELLED, overlay

Form: TypeAlias = Literal["colour", "overlay", "ids"]
SPEED = 3  # of zlib: larger files by a few percent, written several times faster


@dataclass(frozen=True, kw_only=True)
class Look:
    """What is written: `colour` (a palette picture, whose values are the ids), `overlay` or `ids` (greyscale)."""

    form: Form = "colour"
    opacity: float = 0.55

    def __post_init__(self) -> None:
        if not 0 <= self.opacity <= 1:
            raise Unsupported(f"opacity {self.opacity:g} is outside 0..1; give for example 0.5.")


def paint(image: NDArray[np.uint8], labels: NDArray[np.uint8], task: Task, look: Look) -> Image.Image:
    """Draw labels (height, width) as the look says; `image` (height, width, 3) is used by overlays only."""
    if look.form == "overlay":
        return Image.fromarray(overlay(image, labels, task.palette, look.opacity))
    painted = Image.fromarray(labels)
    if look.form == "colour":
        flat = [value for colour in task.palette for value in colour]
        painted.putpalette(flat + [*UNLABELLED] * (256 - len(task.palette)))
    return painted


def png(picture: Image.Image) -> bytes:
    """Return a picture as the content of a PNG file."""
    stream = BytesIO()
    picture.save(stream, "PNG", compress_level=SPEED)
    return stream.getvalue()
