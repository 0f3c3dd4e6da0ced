"""Signals (Ctrl-C, SIGTERM, a closed terminal): the first stops after the current step, a second stops at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Ctrl-C may arrive twice, from the terminal and from a launcher: a second signal within this time is the same one.
REPEAT_SECONDS = 0.5


class Stop:
    """Whether to stop after the current step."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self.requested = False
        self._since = 0.0
        self._tell = tell

    def follow(self, outer: object) -> None:
        """Take over the request of an enclosing block."""
        if isinstance(outer, Stop) and outer.requested:
            self.requested, self._since = True, outer._since

    def signalled(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the shape of a handler
        """Handle one signal."""
        if self.requested:
            if time.monotonic() - self._since > REPEAT_SECONDS:
                raise KeyboardInterrupt
            return
        self.requested = True
        self._since = time.monotonic()
        # In a thread, because this may interrupt the main thread in the middle of writing to the same stream.
        threading.Thread(target=self._tell, daemon=True).start()


@contextmanager
def stoppable(tell: Callable[[], None]) -> Iterator[Stop]:
    """Watch for signals inside the block; `tell` is called at the first one.

    Signals that are ignored (`nohup`, background jobs) stay ignored. Only the main thread can watch. Where an enclosing
    block was already asked to stop, this block is, too.
    """
    stop = Stop(tell)
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if handler is not None and handler != signal.SIG_IGN:
                before[number] = signal.signal(number, stop.signalled)
                stop.follow(getattr(handler, "__self__", None))
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
