"""The web application: a fixed set of answers. Nothing of a request ever becomes part of a path."""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread
from anyio import CapacityLimiter
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from segtailor.core.errors import UserError
from segtailor.serving.demo import Demo
from segtailor.serving.guard import Guard

PAGE = Path(__file__).parent / "page"
FILES = {
    "/": ("index.html", "text/html"),
    "/style.css": ("style.css", "text/css"),
    "/app.js": ("app.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


def build_app(demo: Demo, *, anyone: bool = False) -> Starlette:
    """Return the application for one demo; with `anyone` it answers to every host name."""
    one_by_one = CapacityLimiter(1)  # a network uses all cores by itself

    async def segment(request: Request) -> Response:
        try:
            data = await _body(request, demo.limits.upload_bytes)
            return JSONResponse(await anyio.to_thread.run_sync(demo.analyse, data, limiter=one_by_one))
        except UserError as problem:
            return JSONResponse({"error": str(problem)}, 400)
        except ClientDisconnect:  # nobody is left to read the answer
            return Response(status_code=400)

    async def model(_: Request) -> Response:
        return JSONResponse(demo.document())

    pages = [_static(address, *file) for address, file in FILES.items()]
    return Starlette(
        routes=[*pages, Route("/model", model), Route("/segment", segment, methods=["POST"])],
        middleware=[Middleware(Guard, anyone=anyone)],
        exception_handlers={HTTPException: _explain},
    )


def _static(address: str, name: str, kind: str) -> Route:
    content = (PAGE / name).read_bytes()

    async def answer(_: Request) -> Response:
        return Response(content, media_type=kind)

    return Route(address, answer)


async def _body(request: Request, limit: int) -> bytes:
    """Read what was sent, giving up as soon as it is too much."""
    stated = request.headers.get("content-length", "0")
    received = bytearray()
    if not stated.isdecimal() or int(stated) > limit:
        raise _too_large(limit)
    async for chunk in request.stream():
        received += chunk
        if len(received) > limit:
            raise _too_large(limit)
    return bytes(received)


def _too_large(limit: int) -> HTTPException:
    return HTTPException(413, f"the file is over the limit of {limit / 2**20:.0f} MB. Make it smaller first.")


async def _explain(_: Request, problem: Exception) -> Response:
    code, detail = (problem.status_code, problem.detail) if isinstance(problem, HTTPException) else (500, "")
    return JSONResponse({"error": detail}, code)
