"""TensorRT through its command `trtexec`, where the Python package is absent: it times an engine, and gives no outputs.

Experimental: written from its documentation; the tests drive a stand-in that writes files of the same form.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import deque
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from numpy.typing import NDArray

from segtailor.core.errors import Unsupported
from segtailor.targets.runtime import Compiled

BATCH = 500  # runs per call of the command: starting it takes seconds
BUILD_SECONDS, TIME_SECONDS = 1800, 300


def trtexec_path() -> str | None:
    """Return where the command is, or None."""
    return shutil.which("trtexec")


class TrtexecCompiled(Compiled):
    """An engine file, and the times that the command measured for it, handed out one by one."""

    def __init__(self, model: bytes, *, half: bool) -> None:
        self._folder = TemporaryDirectory(prefix="segtailor-trtexec-")
        self._times: deque[float] = deque()
        source = self._file("model.onnx")
        source.write_bytes(model)
        precision = ["--fp16"] if half else []
        self._call(
            f"--onnx={source}", f"--saveEngine={self._file('engine')}", *precision, seconds=BUILD_SECONDS
        )

    def run(self) -> None:
        """Take the next measured run."""
        self.next_seconds()

    def next_seconds(self) -> float:
        """Return the seconds of one run on the device, measuring more when none is left."""
        if not self._times:
            self._times.extend(self._measure())
        return self._times.popleft()

    def outputs(self, *arrays: NDArray[Any]) -> NDArray[Any]:
        """Refuse: the command does not return outputs."""
        raise Unsupported(
            f"trtexec only measures time and cannot compute {len(arrays)} input(s); "
            "install the Python package tensorrt to run networks."
        )

    def close(self) -> None:
        """Remove the engine."""
        self._folder.cleanup()

    def _measure(self) -> list[float]:
        report = self._file("times.json")
        self._call(
            f"--loadEngine={self._file('engine')}", f"--iterations={BATCH}", "--warmUp=200", "--duration=0",
            f"--exportTimes={report}", seconds=TIME_SECONDS,
        )  # fmt: skip
        try:
            times = [float(row["computeMs"]) / 1000 for row in json.loads(report.read_text())]
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise Unsupported(
                f"trtexec wrote no times that can be read ({problem}); check its version."
            ) from None
        if not times:
            raise Unsupported("trtexec measured no run; check its version.")
        return times

    def _call(self, *words: str, seconds: float) -> None:
        command = [trtexec_path() or "trtexec", *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        except (OSError, subprocess.TimeoutExpired) as problem:
            raise Unsupported(f"trtexec could not be run ({problem}). Use cuda/graph/fp16.") from None
        if done.returncode != 0:
            tail = " ".join((done.stderr or done.stdout).split())[-300:]
            raise Unsupported(f"trtexec failed with code {done.returncode}: {tail}. Use cuda/graph/fp16.")

    def _file(self, name: str) -> Path:
        return Path(self._folder.name) / name
