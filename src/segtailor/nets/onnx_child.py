"""Run one ONNX file in a process of its own, with limits; started by `onnx_confined.py`, needs numpy and onnxruntime.

Reads settings from the first line of its input, answers with a line about the file, then for every array that follows
with a line and the outputs. Nothing else of segtailor is imported, so that it starts quickly.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

try:
    import resource as _resource
except ImportError:  # not on Windows
    resource: Any = None
else:
    resource = _resource


def main() -> None:
    """Answer until the input ends."""
    source, answer = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else prints does not get into the answers
    settings = json.loads(source.readline())
    import onnxruntime  # before the limit: the package itself is not what is bounded

    del onnxruntime
    limit_memory(settings["memory"])
    try:
        limit_time(settings["seconds"], settings["threads"])
        session = opened(settings)
        say(answer, facts=facts_of(session))
        while source.peek(1):  # type: ignore[union-attr]
            feeds = received(source)
            limit_time(settings["seconds"], settings["threads"])
            (output, *_) = session.run(None, feeds)
            send(answer, {"output": output})
    except Exception as problem:  # noqa: BLE001 - errors of ONNX Runtime share no base; the parent tells the user
        line = (str(problem).strip().split("\n") or [""])[0][:200]
        say(answer, failed=line or type(problem).__name__, memory=isinstance(problem, MemoryError))


def opened(settings: dict[str, Any]) -> Any:
    """Open the session."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.inter_op_num_threads = 1
    options.intra_op_num_threads = settings["threads"]
    return onnxruntime.InferenceSession(
        str(Path(settings["file"])), options, providers=["CPUExecutionProvider"]
    )


def facts_of(session: Any) -> dict[str, Any]:
    """Return what the parent wants to know about the file."""
    return {
        "inputs": [[value.name, value.type, value.shape] for value in session.get_inputs()],
        "outputs": [[value.name, value.type, value.shape] for value in session.get_outputs()],
        "metadata": dict(session.get_modelmeta().custom_metadata_map),
    }


def send(pipe: BinaryIO, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a line with names, types and shapes, then the bytes of the arrays."""
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    say(pipe, arrays=[[name, array.dtype.str, array.shape] for name, array in whole.items()])
    for array in whole.values():
        pipe.write(array.reshape(-1).view(np.uint8).data)
    pipe.flush()


def received(pipe: BinaryIO) -> dict[str, NDArray[Any]]:
    """Read what `send` wrote; a line about a failure raises `Failed`, an ended pipe `EOFError`."""
    line = heard(pipe)
    arrays = {}
    for name, kind, shape in line["arrays"]:
        array = np.empty(shape, dtype=kind)
        place = memoryview(array.reshape(-1).view(np.uint8).data)
        while place:
            count = pipe.readinto(place)  # type: ignore[attr-defined]
            if not count:
                raise EOFError
            place = place[count:]
        arrays[name] = array
    return arrays


def heard(pipe: BinaryIO) -> dict[str, Any]:
    """Read one line of JSON."""
    line = pipe.readline()
    if not line:
        raise EOFError
    found: dict[str, Any] = json.loads(line)
    if "failed" in found:
        raise Failed(found["failed"], memory=found["memory"])
    return found


class Failed(Exception):
    """An error that the other side told about."""

    def __init__(self, line: str, *, memory: bool) -> None:
        super().__init__(f"failed ({line})")
        self.memory = memory


def say(answer: BinaryIO, **content: Any) -> None:
    """Write one line of JSON."""
    answer.write(json.dumps(content).encode() + b"\n")
    answer.flush()


def limit_memory(size: int) -> None:
    """Take at most `size` more bytes than now; allocating more fails."""
    if resource is None:
        return
    statistics = Path("/proc/self/statm")  # its first number: pages that are mapped already
    pages = int(statistics.read_text().split()[0]) if statistics.exists() else 0
    wanted = pages * os.sysconf("SC_PAGE_SIZE") + size
    for kind, value in ((resource.RLIMIT_AS, wanted), (resource.RLIMIT_CORE, 0)):
        try:
            resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))
        except (OSError, ValueError):  # a tighter limit is there already, or the system knows none
            continue


def limit_time(seconds: float, threads: int) -> None:
    """End this process after that much work, even where nobody is left to end it."""
    if resource is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    wanted = int(time.process_time() + seconds * threads) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (wanted if hard < 0 else min(wanted, hard), hard))


if __name__ == "__main__":
    main()
