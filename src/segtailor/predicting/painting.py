"""How predictions look in a file."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from segtailor.core.task import Task
from segtailor.data.files import software_tag
from segtailor.tasks import Form as Form
from segtailor.tasks import Look as Look
from segtailor.tasks import kind_of

SPEED = 3  # of zlib: larger files by a few percent, written several times faster


def paint(image: NDArray[np.uint8], found: NDArray[Any], task: Task, look: Look) -> Image.Image:
    """Draw what was predicted of `image` (height, width, 3) as the look says; each kind of task has its own way."""
    return kind_of(task).paint(image, found, task, look)


def png(picture: Image.Image) -> bytes:
    """Return a picture as the content of a PNG file."""
    stream = BytesIO()
    picture.save(stream, "PNG", compress_level=SPEED, **software_tag("PNG"))
    return stream.getvalue()
