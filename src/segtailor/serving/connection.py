"""The connection of a visitor: it has to ask, and to take its answer, in time, so that none keeps the others out.

uvicorn itself waits for the rest of a request as long as the visitor likes.
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

DRAINED = 2**14  # bytes that a visitor has to read of its answer in `stall_seconds`


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """How many visitors are served at once, and how long one may take to ask and to listen."""

    connections: int = 64
    """Of all visitors; a browser opens six."""
    per_address: int = 32
    """Of one address."""
    head_seconds: float = 10
    """From the opening of a connection, or the last answer, to the end of the headers."""
    body_seconds: float = 60
    """For the whole of a picture."""
    stall_seconds: float = 10
    """Without any progress, in either direction."""


def protocol(traffic: Traffic) -> type[asyncio.Protocol]:
    """Return the kind of connection that uvicorn is to make."""
    return type("WatchedConnection", (Connection,), {"traffic": traffic})


class Connection(H11Protocol):
    """A connection that ends when its visitor takes too long.

    Where there are too many, one that has not asked for anything yet makes room: the one silent for longest.
    """

    traffic = Traffic()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._heard = self._since = self.loop.time()
        self._phase = "head"
        self._silent = True  # no byte has arrived in this phase
        self._blocked = False  # the visitor does not read its answer
        self._unsent = 0
        self._timer: asyncio.TimerHandle | None = None
        self._arm()
        if not self._made_room():
            self._drop(BUSY)

    def data_received(self, data: bytes) -> None:
        """Take what arrived."""
        self._heard, self._silent = self.loop.time(), False
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # nonsense while an answer is under way: there is no way to say so
            self.transport.abort()
        self._look()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        """Wait for the visitor to read."""
        super().pause_writing()
        self._blocked, self._unsent = True, self.transport.get_write_buffer_size()
        self._look()

    def resume_writing(self) -> None:
        """Go on where the visitor has read enough."""
        super().resume_writing()
        self._blocked = False
        self._look()

    def shutdown(self) -> None:
        """End at once: the server was stopped, and whoever stopped it does not want to wait."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def _look(self) -> None:
        """Find out what the connection waits for, and for how long it may."""
        phase = self._now()
        if phase != self._phase:
            self._phase, self._since = phase, self.loop.time()
            self._silent = True
            self._arm()

    def _now(self) -> Literal["head", "body", "write", "answer"]:
        if self._blocked:
            return "write"
        if self.conn.their_state is h11.IDLE:
            return "head"
        return "body" if self.conn.their_state is h11.SEND_BODY else "answer"

    def _deadline(self) -> float | None:
        """Return when this phase ends at the latest; that of computing an answer is not the visitor's matter."""
        if self._phase == "answer":
            return None
        if self._phase == "head":
            return self._since + self.traffic.head_seconds
        if self._phase == "write":
            return self._since + self.traffic.stall_seconds
        return min(self._since + self.traffic.body_seconds, self._heard + self.traffic.stall_seconds)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline = self._deadline()
        self._timer = None if deadline is None else self.loop.call_at(deadline, self._ring)

    def _ring(self) -> None:
        deadline = self._deadline()
        unsent = self.transport.get_write_buffer_size()
        if self._phase == "write" and self._unsent - unsent >= DRAINED:
            self._since, self._unsent = self.loop.time(), unsent
            self._arm()
        elif deadline is not None and deadline <= self.loop.time():
            self._drop(LATE)
        else:
            self._arm()

    def _drop(self, answer: bytes) -> None:
        """End the connection, saying why where a request had begun."""
        asking = self._phase == "body" or (self._phase == "head" and not self._silent) or answer is BUSY
        if asking and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(answer)
            self.transport.close()
            self._timer = self.loop.call_later(1, self._cut)
        else:
            self._cut()

    def _cut(self) -> None:
        """End the connection and forget what was not read, which the system would keep for as long as it lasts."""
        self.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        self.transport.abort()

    def _made_room(self) -> bool:
        """End another connection if there are too many; return whether this one may stay."""
        crowd = _too_many([each for each in self.connections if not each.transport.is_closing()], self)
        waiting = [each for each in crowd if each is not self and each._phase != "answer"]
        if crowd and not waiting:
            return False
        for each in sorted(waiting, key=lambda each: each._heard)[:1]:
            each._drop(BUSY)
        return True


def _too_many(connections: Sequence[Any], new: Connection) -> list[Any]:
    """Return the connections of which one has to go, if any."""
    own = [each for each in connections if each._address == new._address]
    if len(own) > new.traffic.per_address:
        return own
    if len(connections) <= new.traffic.connections:
        return []
    [(most, _)] = Counter(each._address for each in connections).most_common(1)
    return [each for each in connections if each._address == most]


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
