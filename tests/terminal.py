"""Commands run in this process as a person sees them: on a terminal, or into a pipe."""

from __future__ import annotations

import os
import pty
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Literal, TypeAlias

from segtailor.verbs.main import run

Where: TypeAlias = Literal["terminal", "pipe"]
WHERE: tuple[Where, ...] = ("terminal", "pipe")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


@dataclass(frozen=True, kw_only=True)
class Shown:
    """How a command ended, and what it wrote to either stream."""

    code: int
    text: str

    @property
    def plain(self) -> str:
        """The text without colours and moves of the cursor."""
        return CONTROL.sub("", self.text)


def carried_out(words: Sequence[object], where: Where) -> Shown:
    """Run `segtailor WORDS` in this process with both streams on a terminal, or on a pipe."""
    ends = pty.openpty() if where == "terminal" else os.pipe()
    reading, writing = ends
    told: list[bytes] = []
    listener = threading.Thread(target=_drain, args=(reading, told.append))
    listener.start()
    try:
        with _streams(writing):
            code = run([str(word) for word in words])
    finally:
        os.close(writing)
        listener.join()
        os.close(reading)
    return Shown(code=code, text=b"".join(told).decode(errors="replace"))


@contextmanager
def _streams(writing: int) -> Iterator[None]:
    before = os.environ.get("TERM")
    os.environ["TERM"] = "xterm-256color"
    try:
        with (
            os.fdopen(
                os.dup(writing), "w", encoding="utf-8", errors="backslashreplace", buffering=1
            ) as stream,
            redirect_stdout(stream),
            redirect_stderr(stream),
        ):
            yield
    finally:
        if before is None:
            del os.environ["TERM"]
        else:
            os.environ["TERM"] = before


def _drain(reading: int, keep: Callable[[bytes], None]) -> None:
    while True:
        try:
            part = os.read(reading, 1 << 16)
        except OSError:  # how Linux says that the other end of a terminal is closed
            return
        if not part:
            return
        keep(part)
