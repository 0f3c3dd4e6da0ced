"""The application on an address of this machine. Imports starlette and uvicorn only when it is opened."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from segtailor.core.errors import Unsupported, UserError
from segtailor.serving.demo import Demo

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from segtailor.serving.connection import Traffic

MAX_PORT = 65535
SHUTDOWN_SECONDS = 2  # that the server may take to end after Ctrl-C


@dataclass(frozen=True, kw_only=True)
class Server:
    """An application with its listening socket."""

    demo: Demo
    app: Starlette
    listening: socket.socket
    url: str
    local: bool
    traffic: Traffic

    @property
    def busy(self) -> bool:
        """Whether a picture is still being worked on."""
        return bool(self.app.state.lanes.busy)

    def run(self) -> None:
        """Serve until interrupted."""
        import uvicorn

        from segtailor.serving.connection import protocol

        settings = uvicorn.Config(
            self.app,
            http=protocol(self.traffic),
            ws="none",
            log_level="error",  # mistakes of visitors are told to them, not to the terminal
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        uvicorn.Server(settings).run(sockets=[self.listening])


def open_server(demo: Demo, *, host: str, port: int, traffic: Traffic | None = None) -> Server:
    """Take the address and prepare the application; port 0 stands for any free one."""
    try:
        import uvicorn  # noqa: F401 - fails here, before any work, where it is missing

        from segtailor.serving.app import build_app, is_local
        from segtailor.serving.connection import Traffic
    except ImportError as problem:
        raise Unsupported(
            f"the page needs the package {problem.name}, which is not installed: `pip install 'segtailor[demo]'`."
        ) from None
    listening = _listen(host, port)
    number = listening.getsockname()[1]
    local = is_local(host)
    shown = f"[{host}]" if ":" in host else host
    return Server(
        demo=demo,
        app=build_app(demo, anyone=not local),
        listening=listening,
        url=f"http://{shown}:{number}/",
        local=local,
        traffic=traffic or Traffic(),
    )


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= MAX_PORT:
        raise UserError(f"port {port} does not exist; check --port, which is 0 to {MAX_PORT}.")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as problem:
        if problem.errno == errno.EADDRINUSE:
            raise UserError(
                f"port {port} on {host} is taken; choose another with --port, or 0 for any."
            ) from None
        raise UserError(
            f"cannot listen on {host} port {port}: {problem.strerror}. Check --host, and give a --port above 1023."
        ) from None
    except UnicodeError as problem:
        raise UserError(f"{host} port {port} is no address ({problem}); check --host.") from None
