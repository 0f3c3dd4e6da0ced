"""The web application: a fixed set of answers, the guard in front of them, and limits that visitors share.

Nothing of a request ever becomes part of a path.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlsplit

import anyio.to_thread
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from segtailor.core.errors import UserError
from segtailor.serving.demo import Answer, Demo

MAX_LENGTH_DIGITS = 18  # of the header content-length
PAGE = Path(__file__).parent / "page"
FILES = {
    "/": ("index.html", "text/html"),
    "/style.css": ("style.css", "text/css"),
    "/app.js": ("app.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob: data:; "
        "media-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}  # of every answer: the page may load nothing from elsewhere


def build_app(demo: Demo, *, anyone: bool = False) -> Starlette:
    """Return the application for one demo; with `anyone` it answers to every host name."""
    lanes, memory, queue = Lanes(demo), Share(demo.limits.memory_bytes), Share(demo.limits.pictures)

    async def segment(request: Request) -> Response:
        address = request.client.host if request.client else ""
        try:
            with memory.visit(address) as memory_visit, queue.visit(address) as queue_visit:
                data = await _body(request, demo.limits.upload_bytes, memory_visit)
                queue_visit.take(1)
                size = await anyio.to_thread.run_sync(demo.measure, data)
                return JSONResponse(await _analysed(request, lanes, data, size))
        except UserError as problem:
            return JSONResponse({"error": str(problem)}, 400)
        except ClientDisconnect:  # nobody is left to read the answer
            return Response(status_code=400)

    async def model(_: Request) -> Response:
        return JSONResponse(demo.document())

    pages = [_static(address, *file) for address, file in FILES.items()]
    app = Starlette(
        routes=[*pages, Route("/model", model), Route("/segment", segment, methods=["POST"])],
        middleware=[Middleware(Guard, anyone=anyone)],
        exception_handlers={HTTPException: _explain},
    )
    app.router.redirect_slashes = False  # an address with one more slash does not exist
    app.state.lanes = lanes
    return app


class Guard:
    """Refuses requests that were meant for another host or come from another site, and adds the safe headers.

    A web site can point its own name at 127.0.0.1 and then read from the local server as if it were that site: its
    requests carry its name as host. With `anyone` every host is accepted, as a server for a whole network must.
    """

    def __init__(self, app: ASGIApp, *, anyone: bool) -> None:
        self._app, self._anyone = app, anyone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return
        refusal = self._refusal(Headers(scope=scope))

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer: Any = self._app
        if refusal:
            answer = JSONResponse({"error": refusal}, 403)
        await answer(scope, receive, guarded)

    def _refusal(self, headers: Headers) -> str | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._anyone and not is_local(_hostname(host)):
            return "this page is for the machine it runs on; open it there as http://127.0.0.1."
        if origin is not None and _netloc(origin) != host:
            return "another site may not use this page."
        return None


def is_local(host: str) -> bool:
    """Tell whether a host name or address means this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Share:
    """An amount that all visitors share, such as bytes of memory; one address gets half of it at most."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._taken: Counter[str] = Counter()

    @contextmanager
    def visit(self, address: str) -> Iterator[Visit]:
        """Let a request of an address take from it; everything it took is given back at the end."""
        visit = Visit(self, address)
        try:
            yield visit
        finally:
            self._taken[address] -= visit.taken
            self._taken += Counter()  # drops addresses that hold nothing

    def take(self, address: str, amount: int) -> None:
        """Take an amount, or raise."""
        of_address = self._taken[address] + amount
        if of_address > max(1, self._total // 2) or self._taken.total() + amount > self._total:
            raise HTTPException(
                503, "too many pictures at once. Try again in a moment.", {"retry-after": "5"}
            )
        self._taken[address] = of_address


class Visit:
    """What one request took from a share."""

    def __init__(self, share: Share, address: str) -> None:
        self._share, self._address, self.taken = share, address, 0

    def take(self, amount: int) -> None:
        """Take an amount, or raise."""
        self._share.take(self._address, amount)
        self.taken += amount


class Lanes:
    """Two queues, so that small pictures do not wait for large ones. Each handles one picture at a time.

    A network uses all cores by itself: more pictures at once would not be faster.
    """

    def __init__(self, demo: Demo) -> None:
        self._demo = demo
        self._small, self._large = (ThreadPoolExecutor(1, f"{size} pictures") for size in ("small", "large"))
        self._work: set[Future[Answer]] = set()

    @property
    def busy(self) -> bool:
        """Whether a picture is being worked on."""
        return any(work.running() for work in list(self._work))

    def submit(self, data: bytes, size: tuple[int, int], gone: Event) -> Future[Answer]:
        """Queue a picture of a size (height, width); when `gone` is set, work on its tiles ends."""
        lane = self._small if size[0] * size[1] <= self._demo.limits.small_pixels else self._large
        work = lane.submit(self._demo.analyse, data, gone=gone.is_set)
        self._work.add(work)
        work.add_done_callback(self._work.discard)
        return work


def _static(address: str, name: str, kind: str) -> Route:
    content = (PAGE / name).read_bytes()

    async def answer(_: Request) -> Response:
        return Response(content, media_type=kind)

    return Route(address, answer)


async def _body(request: Request, limit: int, memory: Visit) -> bytes:
    """Read what was sent; stop as soon as it is too much."""
    stated = request.headers.get("content-length", "0")
    received: list[bytes] = []
    if not stated.isdecimal() or len(stated) > MAX_LENGTH_DIGITS or int(stated) > limit:
        raise _too_large(limit)
    async for chunk in request.stream():
        memory.take(len(chunk))
        received.append(chunk)
        if memory.taken > limit:
            raise _too_large(limit)
    return b"".join(received)


async def _analysed(request: Request, lanes: Lanes, data: bytes, size: tuple[int, int]) -> Answer:
    """Wait until the picture was analysed; work for a visitor who has gone is not begun, and ends between tiles."""
    left = Event()
    work = asyncio.wrap_future(lanes.submit(data, size, left))
    gone = asyncio.ensure_future(_gone(request))
    try:
        futures: set[asyncio.Future[Any]] = {work, gone}
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return work.result()
    finally:
        left.set()
        gone.cancel()
        work.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _too_large(limit: int) -> HTTPException:
    return HTTPException(413, f"the file is over the limit of {limit / 2**20:.0f} MB. Make it smaller first.")


async def _explain(_: Request, problem: Exception) -> Response:
    if not isinstance(problem, HTTPException):
        return JSONResponse({"error": ""}, 500)
    return JSONResponse({"error": problem.detail}, problem.status_code, headers=problem.headers)


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
