"""A headless Chromium driven over a pipe: what a page looks like, says on its console, and asks the network for."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
)  # fmt: skip


def chromium() -> str:
    """Return the browser, or skip the test saying that there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    pytest.skip("needs chromium or google-chrome on the PATH")


class Browser:
    """One page."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._number, self._buffer = write, read, 0, b""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    _session: str | None = None

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its answer; events on the way are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    def open(self, page: Path, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Load a page at a size, light or dark."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", features=scheme)
        self.ask("Page.navigate", url=page.resolve().as_uri())
        while self.evaluate("document.readyState") != "complete":
            pass

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["text"])
        return found["result"].get("value")

    def point(self, selector: str) -> None:
        """Move the mouse to the middle of the first element that fits."""
        script = """(chosen) => {
            const found = document.querySelector(chosen);
            found.scrollIntoView({block: 'center', behavior: 'instant'});
            const box = found.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        }"""
        x, y = self.evaluate(f"({script})({json.dumps(selector)})")
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, file: Path) -> None:
        """Write the whole page as PNG."""
        found = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(found["data"]))

    def pdf(self) -> bytes:
        """Return the page as it prints."""
        return base64.b64decode(self.ask("Page.printToPDF", printBackground=False)["data"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._read, 1 << 20)
            if not part:
                raise RuntimeError("the browser has gone")
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._keep(message.get("method", ""), message.get("params", {}))
        return message

    def _keep(self, method: str, event: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(event["exceptionDetails"]))
        elif method == "Log.entryAdded" or (method == "Runtime.consoleAPICalled" and event["type"] != "log"):
            self.complaints.append(str(event))


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start a browser and end it again."""
    program = chromium()
    to_child, our_write = os.pipe()
    our_read, from_child = os.pipe()
    command = f'exec "$0" "$@" 3<&{to_child} 4>&{from_child}'
    process = subprocess.Popen(
        ["bash", "-c", command, program, *FLAGS, f"--user-data-dir={profile}"],
        pass_fds=(to_child, from_child),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_child)
    os.close(from_child)
    try:
        yield Browser(our_write, our_read)
    finally:
        process.terminate()
        process.wait(20)
        os.close(our_write)
        os.close(our_read)
