"""A session on an untrusted ONNX file: in this process where its cost is known, else in a child process with limits.

An endless loop in a graph cannot be interrupted from Python, and a small graph can ask for all memory. A child process
can be ended, and the system limits its memory.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from numpy.typing import NDArray

from segtailor.core.errors import UserError
from segtailor.core.memory import free_memory
from segtailor.nets.onnx.bounds import has_branches, is_random, parse_graph, why_unbounded
from segtailor.nets.onnx.child import ChildFailed, receive_arrays, receive_line, send_arrays, send_line
from segtailor.nets.onnx.graph import onnx_session
from segtailor.nets.onnx.metadata import OnnxProblem

CHILD_PROGRAM = Path(__file__).with_name("child.py")
MAX_FILE_BYTES = 2**31  # the most that one serialised model can hold
CHILD_SECONDS = 60.0  # for opening a file, and for each image
CHILD_SHARE_OF_MEMORY = 0.5  # of the free memory
CHILD_MAX_MEMORY_BYTES = 8 * 2**30


@dataclass(frozen=True, kw_only=True)
class ChildLimits:
    """Limits of a child process: seconds for opening and for each run, and bytes of memory."""

    seconds: float = CHILD_SECONDS
    memory: int = field(
        default_factory=lambda: min(CHILD_MAX_MEMORY_BYTES, int(CHILD_SHARE_OF_MEMORY * free_memory()))
    )


def foreign_session(file: Path, *, threads: int = 1, limits: ChildLimits | None = None) -> Any:
    """Open an untrusted file; the result has the methods of a session of ONNX Runtime that are used here."""
    what = f"ONNX file {file}"
    model = parse_graph(read_onnx_bytes(file), what=what)
    reason = why_unbounded(model)
    if reason is None:
        return onnx_session(file, threads=threads)
    return ConfinedSession(file, threads=threads, limits=limits or ChildLimits(), reason=reason)


def check_repeatable(
    data: bytes,
    feeds: Callable[[Any], Mapping[str, NDArray[Any]]],
    *,
    what: str,
    limits: ChildLimits | None = None,
) -> None:
    """Refuse a graph that may not end or not fit into memory when this process runs it many times on the same input.

    If the cost does not follow from the layers, the graph is tried once in a child, on the inputs that `feeds` gives.
    """
    model = parse_graph(data, what=what)
    reason = why_unbounded(model)
    if reason is None:
        return
    branches = has_branches(model)
    if branches is not None or is_random(model):
        raise OnnxProblem(
            f"{what} {branches or 'draws random numbers'}: how long it takes cannot be known, and timing runs it in "
            "this process. `predict` and `eval` run it with limits; for timing, export it without."
        )
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "model.onnx"
        copy.write_bytes(data)
        with ConfinedSession(copy, limits=limits or ChildLimits(), reason=reason, what=what) as session:
            session.run(None, feeds(session))


def read_onnx_bytes(file: Path) -> bytes:
    """Read the bytes of an ONNX file; one that is missing, not a file or too large is refused."""
    if not file.is_file():
        raise UserError(f"ONNX file {file} does not exist or is no file; check the path.")
    if file.stat().st_size > MAX_FILE_BYTES:
        raise UserError(f"ONNX file {file} is larger than {MAX_FILE_BYTES:,} bytes. Is it the right file?")
    try:
        return file.read_bytes()
    except OSError as problem:
        raise UserError(f"ONNX file {file} cannot be read: {problem.strerror}. Check the path.") from None


class ConfinedSession:
    """A child process that runs one file; it has the methods of a session that are used here.

    A failure ends the child; the next run starts a new one.
    """

    def __init__(
        self, file: Path, *, threads: int = 1, limits: ChildLimits, reason: str, what: str | None = None
    ) -> None:
        self._file, self._threads, self._limits = file, threads, limits
        self._about = f"{what or f'ONNX file {file}'} {reason}"
        self._lock = threading.Lock()
        self._waiter = ThreadPoolExecutor(1, thread_name_prefix="onnx-child")
        self._child: subprocess.Popen[bytes] | None = None
        self._end: Any = None
        with self._lock:
            self._facts = self._start()

    def __enter__(self) -> ConfinedSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get_inputs(self) -> list[Any]:
        """Return name, type and shape of the inputs."""
        return _values(self._facts["inputs"])

    def get_outputs(self) -> list[Any]:
        """Return name, type and shape of the outputs."""
        return _values(self._facts["outputs"])

    def get_modelmeta(self) -> Any:
        """Return the metadata of the file."""
        return SimpleNamespace(custom_metadata_map=self._facts["metadata"])

    def run(self, names: None, feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Return the first output."""
        del names
        with self._lock:
            if self._child is None:
                self._start()
            outputs: list[NDArray[Any]] = self._bounded(
                lambda child: _exchange(child, feeds), f"an input of {_shapes(feeds)}"
            )
            return outputs

    def close(self) -> None:
        """End the child."""
        if self._end is not None:
            self._end()
        self._child = None

    def _start(self) -> dict[str, Any]:
        command = [sys.executable, "-P", str(CHILD_PROGRAM)]
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches this process only, which then ends the child
        )
        self._end = weakref.finalize(self, _ended, self._child)
        settings = {
            "file": str(self._file.absolute()),
            "threads": self._threads,
            "seconds": self._limits.seconds,
            "memory": self._limits.memory,
        }
        facts: dict[str, Any] = self._bounded(lambda child: _opened(child, settings), "opening it")
        return facts

    def _bounded(self, work: Any, what: str) -> Any:
        """Wait for an answer of the child within its time limit; any failure ends the child."""
        try:
            return self._waiter.submit(work, self._child).result(timeout=self._limits.seconds)
        except FutureTimeout:
            self.close()
            raise self._stopped(what, f"took more than {self._limits.seconds:g} s") from None
        except ChildFailed as problem:
            self.close()
            reason = (
                f"took more than {self._limits.memory / 2**30:.1f} GiB" if problem.memory else str(problem)
            )
            raise self._stopped(what, reason) from None
        except (OSError, EOFError, ValueError):  # a broken pipe: the child crashed or was ended
            self.close()
            size = f"{self._limits.memory / 2**30:.1f} GiB"
            raise self._stopped(what, f"crashed, or took more than {size} of memory") from None
        except BaseException:  # Ctrl-C
            self.close()
            raise

    def _stopped(self, what: str, why: str) -> OnnxProblem:
        return OnnxProblem(
            f"{self._about}, so it runs in a process with limits; {what} {why}. "
            "Export it again, as layers with known sizes."
        )


def _opened(child: subprocess.Popen[bytes], settings: Mapping[str, Any]) -> Any:
    to_child, from_child = _pipes(child)
    send_line(to_child, **settings)
    return receive_line(from_child)["facts"]


def _exchange(child: subprocess.Popen[bytes], feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    to_child, from_child = _pipes(child)
    send_arrays(to_child, feeds)
    return list(receive_arrays(from_child).values())


def _pipes(child: subprocess.Popen[bytes]) -> tuple[Any, Any]:
    return child.stdin, child.stdout


def _ended(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()


def _values(facts: list[Any]) -> list[Any]:
    return [SimpleNamespace(name=name, type=kind, shape=shape) for name, kind, shape in facts]


def _shapes(feeds: Mapping[str, NDArray[Any]]) -> str:
    return ", ".join("x".join(map(str, array.shape)) for array in feeds.values())
