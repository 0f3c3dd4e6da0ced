"""A real browser for tests: headless Chromium, driven through its debugging pipe, without further packages.

Tells what a page looks like, what it writes to the console, and what it requests from the network.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-quic", "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)  # fmt: skip
TIMEOUT_SECONDS = 30.0


class Page:
    """One tab."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._buffer, self._id, self._session = b"", 0, ""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events that arrive meanwhile are recorded."""
        self._id += 1
        message = {"id": self._id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._id:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def close(self) -> None:
        """End the browser."""
        self._session = ""
        with suppress(AssertionError, OSError):
            self.call("Browser.close")

    def look(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the size of the window and the colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        """Load a page."""
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def run(self, expression: str) -> Any:
        """Evaluate an expression (a promise is awaited)."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until an expression is true, and return its value."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while not (value := self.run(expression)):
            assert time.monotonic() < end, f"never true: {expression}; {self.run('document.body.innerText')}"
            time.sleep(0.05)
        return value

    def choose(self, path: Path) -> None:
        """Choose a file in the page's file field."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        field = self.call("DOM.querySelector", nodeId=root, selector="input[type=file]")["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=field, files=[str(path)])

    def press(self, key: str) -> None:
        """Press a key."""
        code = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowRight": 39}.get(key, ord(key[0].upper()))
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def point(self, selector: str) -> None:
        """Move the mouse to the middle of the first element that matches."""
        script = """(selector) => {
            const element = document.querySelector(selector);
            element.scrollIntoView({block: 'center', behavior: 'instant'});
            const box = element.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        }"""
        x, y = self.run(f"({script})({json.dumps(selector)})")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def pdf(self) -> bytes:
        """Return the page as it prints."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"])

    def shot(self, path: Path) -> None:
        """Save a picture of the window."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._reading], [], [], TIMEOUT_SECONDS)
            assert ready, "the browser does not answer"
            chunk = os.read(self._reading, 1 << 20)
            assert chunk, "the browser has ended"
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        self._record(message.get("method", ""), message.get("params", {}))
        return message

    def _record(self, method: str, event: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(event["exceptionDetails"]))
        elif method == "Log.entryAdded" or (method == "Runtime.consoleAPICalled" and event["type"] != "log"):
            self.complaints.append(str(event))


@contextmanager
def browser(profile: Path, *flags: str) -> Iterator[Page]:
    """Start a browser with one tab, or skip the test where there is none."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"needs a browser: none of {', '.join(NAMES)} is installed")
    # The browser reads from 3 and writes to 4, so the pipes need other numbers.
    pipes = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (*os.pipe(), *os.pipe())]
    commands, writing, reading, answers = pipes
    process = os.posix_spawn(
        program,
        [program, *FLAGS, f"--user-data-dir={profile}", *flags, "about:blank"],
        {**os.environ, "HOME": str(profile)},
        file_actions=[
            (os.POSIX_SPAWN_DUP2, commands, 3),
            (os.POSIX_SPAWN_DUP2, answers, 4),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ],
        setpgroup=0,
    )
    os.close(commands), os.close(answers)
    page = None
    try:
        page = Page(reading, writing)
        yield page
    finally:
        if page is not None:
            page.close()
        os.close(writing), os.close(reading)
        end = time.monotonic() + 5
        while os.waitpid(process, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                os.killpg(process, signal.SIGKILL)
            time.sleep(0.05)
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
