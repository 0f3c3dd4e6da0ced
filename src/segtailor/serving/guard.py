"""Who may talk to the page: this machine, and no other site. The page itself may load nothing from elsewhere."""

from __future__ import annotations

import ipaddress
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
}


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
