"""The program of the child process of `confined.py`: runs one ONNX file with limits, needs numpy and onnxruntime only.

It reads settings from the first line of its input and answers with a line about the file. Then it answers each set of
arrays with a line and the output. No other module of segtailor is imported, so that it starts quickly.
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
    """Answer requests until the input ends."""
    source, answer = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # other prints must not get into the answers
    settings = json.loads(source.readline())
    import onnxruntime  # before the limit, which is for the file and not for the package

    del onnxruntime
    limit_memory(settings["memory"])
    try:
        limit_time(settings["seconds"], settings["threads"])
        session = open_session(settings)
        send_line(answer, facts=facts_of(session))
        while source.peek(1):  # type: ignore[union-attr]
            feeds = receive_arrays(source)
            limit_time(settings["seconds"], settings["threads"])
            (output, *_) = session.run(None, feeds)
            send_arrays(answer, {"output": output})
    except Exception as problem:  # noqa: BLE001 - errors of ONNX Runtime have no common base; the parent reports it
        line = (str(problem).strip().split("\n") or [""])[0][:200]
        send_line(answer, failed=line or type(problem).__name__, memory=isinstance(problem, MemoryError))


def open_session(settings: dict[str, Any]) -> Any:
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
    """Return inputs, outputs and metadata of the file."""
    return {
        "inputs": [[value.name, value.type, value.shape] for value in session.get_inputs()],
        "outputs": [[value.name, value.type, value.shape] for value in session.get_outputs()],
        "metadata": dict(session.get_modelmeta().custom_metadata_map),
    }


def send_arrays(pipe: BinaryIO, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a line with names, types and shapes, then the bytes of the arrays."""
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    send_line(pipe, arrays=[[name, array.dtype.str, array.shape] for name, array in contiguous.items()])
    for array in contiguous.values():
        pipe.write(array.reshape(-1).view(np.uint8).data)
    pipe.flush()


def receive_arrays(pipe: BinaryIO) -> dict[str, NDArray[Any]]:
    """Read what `send_arrays` wrote; a line about a failure raises `ChildFailed`, a closed pipe `EOFError`."""
    line = receive_line(pipe)
    arrays = {}
    for name, kind, shape in line["arrays"]:
        array = np.empty(shape, dtype=kind)
        rest = memoryview(array.reshape(-1).view(np.uint8).data)
        while rest:
            count = pipe.readinto(rest)  # type: ignore[attr-defined]
            if not count:
                raise EOFError
            rest = rest[count:]
        arrays[name] = array
    return arrays


def receive_line(pipe: BinaryIO) -> dict[str, Any]:
    """Read one line of JSON; one about a failure raises `ChildFailed`."""
    line = pipe.readline()
    if not line:
        raise EOFError
    content: dict[str, Any] = json.loads(line)
    if "failed" in content:
        raise ChildFailed(content["failed"], memory=content["memory"])
    return content


class ChildFailed(Exception):
    """An error in the child, reported by it; `memory` tells whether it ran out of memory."""

    def __init__(self, line: str, *, memory: bool) -> None:
        super().__init__(f"failed ({line})")
        self.memory = memory


def send_line(pipe: BinaryIO, **content: Any) -> None:
    """Write one line of JSON."""
    pipe.write(json.dumps(content).encode() + b"\n")
    pipe.flush()


def limit_memory(size: int) -> None:
    """Let this process take at most `size` more bytes than now; allocating more fails."""
    if resource is None:
        return
    statistics = Path("/proc/self/statm")  # its first number: memory pages that are mapped now
    pages = int(statistics.read_text().split()[0]) if statistics.exists() else 0
    wanted = pages * os.sysconf("SC_PAGE_SIZE") + size
    for kind, value in ((resource.RLIMIT_AS, wanted), (resource.RLIMIT_CORE, 0)):
        try:
            resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))
        except (OSError, ValueError):  # there is a tighter limit already, or the system has none
            continue


def limit_time(seconds: float, threads: int) -> None:
    """Let the system end this process after that much more work, even if the parent is gone."""
    if resource is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    wanted = int(time.process_time() + seconds * threads) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (wanted if hard < 0 else min(wanted, hard), hard))


if __name__ == "__main__":
    main()
