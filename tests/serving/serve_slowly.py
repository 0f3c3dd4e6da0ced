"""A page for tests as a process of its own: short patience, and a predictor that takes as long as a picture says."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segtailor.core.task import Task
from segtailor.serving.connection import Traffic
from segtailor.serving.demo import Demo, UploadLimits
from segtailor.serving.server import open_server
from segtailor.verbs.serve import run_until_interrupted

TASK = Task(classes=("dark", "bright"))


@dataclass
class Sleeper:
    """Sleeps a tenth of a second for each step of red in the first pixel."""

    task: Task = TASK

    def predict(self, image: NDArray[np.uint8]) -> NDArray[Any]:
        time.sleep(image[0, 0, 0] / 10)
        return np.zeros(image.shape[:2], np.uint8)


def main(host: str) -> None:
    """Serve, saying where."""
    traffic = Traffic(connections=12, per_address=8, head_seconds=1, body_seconds=2, stall_seconds=1)
    limits = UploadLimits(small_pixels=1000, upload_bytes=2**20, memory_bytes=2**21, pictures=8)
    demo = Demo(predictor=Sleeper(), name="sleeper", runtime="numpy", limits=limits)
    server = open_server(demo, host=host, port=0, traffic=traffic)
    print(server.url, flush=True)
    run_until_interrupted(server)


if __name__ == "__main__":
    main(sys.argv[1])
