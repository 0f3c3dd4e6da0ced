"""Connections with time limits: a visitor must send its request and read its answer in time, or is disconnected.

uvicorn itself waits for the rest of a request without a limit, so that a few slow visitors could keep out all others.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MIN_READ_BYTES = 2**14  # that a visitor has to read of its answer in `stall_seconds`


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """How many visitors are served at once, and how long one may take to send a request and to read the answer."""

    connections: int = 64
    """Of all visitors together; a browser opens six."""
    per_address: int = 32
    """Of one address."""
    head_seconds: float = 10
    """From the opening of a connection, or the last answer, to the end of the headers."""
    body_seconds: float = 60
    """For a whole picture."""
    stall_seconds: float = 10
    """Without progress in either direction."""


def protocol(traffic: Traffic) -> type[asyncio.Protocol]:
    """Return the class of the connections that uvicorn makes."""
    return type("WatchedConnection", (Connection,), {"traffic": traffic})


class Connection(H11Protocol):
    """A connection that is closed when its visitor takes too long.

    Where there are too many, one that waits for its visitor is closed: the one that was silent for longest.
    """

    traffic = Traffic()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for a request."""
        super().connection_made(transport)
        self._last_received = self._since = self.loop.time()
        self._phase = "head"
        self._silent = True  # no byte has arrived in this phase
        self._blocked = False  # the visitor does not read its answer
        self._unsent = 0
        self._timer: asyncio.TimerHandle | None = None
        self._start_timer()
        if not self._made_room():
            self._drop(BUSY)

    def data_received(self, data: bytes) -> None:
        """Handle bytes that arrived."""
        self._last_received, self._silent = self.loop.time(), False
        try:
            super().data_received(data)
        except h11.LocalProtocolError:
            # Invalid bytes arrived while an answer is being sent: no error can be sent any more.
            self.transport.abort()
        self._update()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._update()

    def pause_writing(self) -> None:
        """Wait for the visitor to read."""
        super().pause_writing()
        self._blocked, self._unsent = True, self.transport.get_write_buffer_size()
        self._update()

    def resume_writing(self) -> None:
        """Continue once the visitor has read enough."""
        super().resume_writing()
        self._blocked = False
        self._update()

    def shutdown(self) -> None:
        """Close at once: the server was stopped, and should end without waiting for visitors."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def _update(self) -> None:
        """Find out what the connection waits for, and set the timer for it."""
        phase = self._current_phase()
        if phase != self._phase:
            self._phase, self._since = phase, self.loop.time()
            self._silent = True
            self._start_timer()

    def _current_phase(self) -> Literal["head", "body", "write", "answer"]:
        if self._blocked:
            return "write"
        if self.conn.their_state is h11.IDLE:
            return "head"
        return "body" if self.conn.their_state is h11.SEND_BODY else "answer"

    def _deadline(self) -> float | None:
        """Return when this phase must end; None while an answer is computed, which the visitor cannot influence."""
        if self._phase == "answer":
            return None
        if self._phase == "head":
            return self._since + self.traffic.head_seconds
        if self._phase == "write":
            return self._since + self.traffic.stall_seconds
        return min(self._since + self.traffic.body_seconds, self._last_received + self.traffic.stall_seconds)

    def _start_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline = self._deadline()
        self._timer = None if deadline is None else self.loop.call_at(deadline, self._timer_ended)

    def _timer_ended(self) -> None:
        deadline = self._deadline()
        unsent = self.transport.get_write_buffer_size()
        if self._phase == "write" and self._unsent - unsent >= MIN_READ_BYTES:
            self._since, self._unsent = self.loop.time(), unsent
            self._start_timer()
        elif deadline is not None and deadline <= self.loop.time():
            self._drop(LATE)
        else:
            self._start_timer()

    def _drop(self, answer: bytes) -> None:
        """Close the connection; where a request had begun, send the reason first."""
        asking = self._phase == "body" or (self._phase == "head" and not self._silent) or answer is BUSY
        if asking and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(answer)
            self.transport.close()
            self._timer = self.loop.call_later(1, self._abort)
        else:
            self._abort()

    def _abort(self) -> None:
        """Close the connection and discard unread bytes, which the system would otherwise keep."""
        self.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        self.transport.abort()

    def _made_room(self) -> bool:
        """Close another connection if there are too many; return whether this one may stay."""
        candidates = _too_many([each for each in self.connections if not each.transport.is_closing()], self)
        waiting = [each for each in candidates if each is not self and each._phase != "answer"]
        if candidates and not waiting:
            return False
        for each in sorted(waiting, key=lambda each: each._last_received)[:1]:
            each._drop(BUSY)
        return True


def _too_many(connections: Sequence[Any], new: Connection) -> list[Any]:
    """Return the connections of which one has to be closed; none where there are not too many."""
    same_address = [each for each in connections if each._address == new._address]
    if len(same_address) > new.traffic.per_address:
        return same_address
    if len(connections) <= new.traffic.connections:
        return []
    [(busiest, _)] = Counter(each._address for each in connections).most_common(1)
    return [each for each in connections if each._address == busiest]


def _answer(status: str, reason: str) -> bytes:
    body = json.dumps({"error": reason})
    head = (
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
        "retry-after: 5",
    )
    return "\r\n".join([f"HTTP/1.1 {status}", *head, "", body]).encode()


LATE = _answer("408 Request Timeout", "the request did not arrive in time. Send it again.")
BUSY = _answer("503 Service Unavailable", "too many visitors at once. Try again in a moment.")
