"""The web application: a fixed set of answers. Nothing of a request ever becomes part of a path."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from segtailor.core.errors import UserError
from segtailor.serving.demo import Answer, Demo
from segtailor.serving.guard import Guard
from segtailor.serving.sharing import Lanes, Share, Visit

LONGEST_NUMBER = 18  # digits
PAGE = Path(__file__).parent / "page"
FILES = {
    "/": ("index.html", "text/html"),
    "/style.css": ("style.css", "text/css"),
    "/app.js": ("app.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


def build_app(demo: Demo, *, anyone: bool = False) -> Starlette:
    """Return the application for one demo; with `anyone` it answers to every host name."""
    lanes, memory, queue = Lanes(demo), Share(demo.limits.memory_bytes), Share(demo.limits.pictures)

    async def segment(request: Request) -> Response:
        address = request.client.host if request.client else ""
        try:
            with memory.visit(address) as held, queue.visit(address) as place:
                data = await _body(request, demo.limits.upload_bytes, held)
                place.take(1)
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
    app.router.redirect_slashes = False  # an address with one more slash is another, and none of ours
    app.state.lanes = lanes
    return app


def _static(address: str, name: str, kind: str) -> Route:
    content = (PAGE / name).read_bytes()

    async def answer(_: Request) -> Response:
        return Response(content, media_type=kind)

    return Route(address, answer)


async def _body(request: Request, limit: int, held: Visit) -> bytes:
    """Read what was sent, giving up as soon as it is too much."""
    stated = request.headers.get("content-length", "0")
    received: list[bytes] = []
    if not stated.isdecimal() or len(stated) > LONGEST_NUMBER or int(stated) > limit:
        raise _too_large(limit)
    async for chunk in request.stream():
        held.take(len(chunk))
        received.append(chunk)
        if held.taken > limit:
            raise _too_large(limit)
    return b"".join(received)


async def _analysed(request: Request, lanes: Lanes, data: bytes, size: tuple[int, int]) -> Answer:
    """Wait for the picture's turn and its answer; one whose visitor has gone is not begun."""
    work = asyncio.wrap_future(lanes.submit(data, size))
    gone = asyncio.ensure_future(_gone(request))
    try:
        futures: set[asyncio.Future[Any]] = {work, gone}
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return work.result()
    finally:
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
