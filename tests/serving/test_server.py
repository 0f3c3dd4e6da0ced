"""The page under fire, over real connections: slow visitors, many visitors, nonsense, and Ctrl-C."""

from __future__ import annotations

import http.client
import json
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BytesIO
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from PIL import Image

pytest.importorskip("uvicorn", reason="needs the packages of the extra `demo`")

ROOT = Path(__file__).parents[2]
HEAD = b"POST /segment HTTP/1.1\r\nhost: 127.0.0.1\r\n"


@contextmanager
def started(host: str = "127.0.0.1") -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    program = [sys.executable, "-m", "tests.serving.serve_slowly", host]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            port = urlsplit(process.stdout.readline().decode()).port
            assert port is not None
            yield process, port
        finally:
            process.kill()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with started() as (_, port):
        yield port


def picture(width: int = 20, height: int = 20, *, tenths: int = 0) -> bytes:
    """Return a picture that the network takes so many tenths of a second for."""
    stream = BytesIO()
    Image.new("RGB", (width, height), (tenths, 0, 0)).save(stream, "PNG")
    return stream.getvalue()


def ask(port: int, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def send(port: int, data: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection.sendall(data)
    return connection


def received(connection: socket.socket) -> bytes:
    """Return all that comes until the server ends the connection."""
    found = b""
    with suppress(ConnectionResetError):  # a refused connection may be reset; what came before it counts
        while part := connection.recv(2**16):
            found += part
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "begin",
    [
        b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n",
        HEAD + b"content-length: 1000\r\n\r\nhalf",
        HEAD + b"transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        HEAD + b"expect: 100-continue\r\ncontent-length: 1000\r\n\r\n",
    ],
)
def test_a_request_that_does_not_go_on_is_ended(port: int, begin: bytes) -> None:
    start = time.monotonic()
    with send(port, begin) as connection:
        assert b"HTTP/1.1 408" in received(connection)
    assert 0.8 < time.monotonic() - start < 5


def test_a_connection_that_says_nothing_is_ended(port: int) -> None:
    with send(port, b"") as connection:
        assert received(connection) == b""


@pytest.mark.slow
def test_a_second_request_on_a_connection_has_to_be_in_time_too(port: int) -> None:
    with send(port, b"GET /model HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\nGET /mo") as connection:
        assert b"HTTP/1.1 200" in received(connection)


@pytest.mark.slow
@pytest.mark.parametrize("begin", [b"GET / HTTP/1.1\r\nx: ", HEAD + b"content-length: 1000\r\n\r\n"])
def test_a_request_that_drips_is_ended(port: int, begin: bytes) -> None:
    start = time.monotonic()
    with send(port, begin) as connection, suppress(OSError):
        while time.monotonic() - start < 10:
            connection.sendall(b"a")
            time.sleep(0.1)
    assert time.monotonic() - start < 6


@pytest.mark.slow
def test_a_visitor_who_does_not_read_its_answers_is_let_go(port: int) -> None:
    requests = 3000 * b"GET /app.js HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", port))
    with connection:
        connection.setblocking(False)
        connection.send(requests)
        watch = select.poll()
        watch.register(connection, 0)  # only that it was reset
        assert watch.poll(8000)


@pytest.mark.parametrize("begin", [b"GET / HT", HEAD + b"content-length: 1000\r\n\r\nhalf", b""])
def test_half_sent_requests_keep_nobody_out(port: int, begin: bytes) -> None:
    with ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(send(port, begin))
        assert ask(port, "GET", "/model")[0] == 200
        assert ask(port, "POST", "/segment", picture())[0] == 200


@pytest.mark.slow
def test_a_slow_picture_does_not_hold_small_ones_or_the_page(port: int) -> None:
    slow: list[int] = []
    large = picture(100, 100, tenths=15)
    thread = threading.Thread(target=lambda: slow.append(ask(port, "POST", "/segment", large)[0]))
    thread.start()
    time.sleep(0.2)
    start = time.monotonic()
    assert ask(port, "GET", "/")[0] == 200
    assert ask(port, "POST", "/segment", picture())[0] == 200
    assert time.monotonic() - start < 1.2
    thread.join(20)
    assert slow == [200]


@pytest.mark.slow
def test_pictures_of_one_address_do_not_pile_up(port: int) -> None:
    large = picture(100, 100, tenths=3)
    codes: list[int] = []
    threads = [
        threading.Thread(target=lambda: codes.append(ask(port, "POST", "/segment", large)[0]))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(set(codes)) == [200, 503]
    assert codes.count(200) >= 4
    assert ask(port, "POST", "/segment", picture())[0] == 200


def test_a_picture_whose_visitor_left_is_not_begun(port: int) -> None:
    large = picture(100, 100, tenths=8)
    request = HEAD + b"content-length: %d\r\n\r\n" % len(large) + large
    for _ in range(3):
        connection = send(port, request)
        time.sleep(0.1)
        connection.close()
    start = time.monotonic()
    assert ask(port, "POST", "/segment", picture(100, 100))[0] == 200
    assert time.monotonic() - start < 1.8  # the first may have begun; all three would take 2.4 seconds


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Origin", "http://["),
        ("Origin", "http://[::1"),
        ("Origin", "\xff\x80"),
        ("Origin", "http://127.0.0.1:99999999"),
        ("Host", "["),
        ("Host", "127.0.0.1:abc]"),
        ("Content-Length", "9" * 30),
        ("Content-Length", "-1"),
        ("Content-Length", "1e3"),
        ("Transfer-Encoding", "nonsense"),
        ("Content-Type", "\xff" * 100),
        ("Cookie", "x" * 100_000),
        ("Upgrade", "websocket\r\nConnection: upgrade"),
    ],
)
@pytest.mark.parametrize("path", ["/model/", "/segment"])
def test_no_header_is_an_error_of_the_server(port: int, path: str, name: str, value: str) -> None:
    host = "" if name == "Host" else "Host: 127.0.0.1\r\n"
    request = f"POST {path} HTTP/1.1\r\n{host}{name}: {value}\r\nconnection: close\r\n\r\n"
    with send(port, request.encode("latin-1")) as connection:
        answer = received(connection)
    assert answer.startswith(b"HTTP/1.1 4") or (name == "Transfer-Encoding" and b" 501 " in answer[:20]), (
        answer
    )


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "DELETE", "TRACE", "PATCH", "CONNECT", "BREW"])
def test_every_method_is_answered(port: int, method: str) -> None:
    for path in ("/", "/model", "/segment", "/nothing"):
        code, body = ask(port, method, path)
        assert code == (
            200 if method == "HEAD" and path in ("/", "/model") else 404 if path == "/nothing" else 405
        )
        assert method != "HEAD" or not body


@pytest.mark.parametrize(
    "junk", [b"\x00\xff\r\n\r\n", b"GET  / HTTP/9\r\n\r\n", b"\x16\x03\x01\x02\x00", b"\r\n" * 9]
)
def test_nonsense_is_refused_and_the_page_lives_on(port: int, junk: bytes) -> None:
    with send(port, junk) as connection:
        assert received(connection)[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 408")
    assert ask(port, "GET", "/model")[0] == 200


@pytest.mark.parametrize("size", [(9000, 1), (1, 9000), (400, 2), (9000, 500)])
def test_pictures_of_odd_shapes_are_refused_before_they_are_decoded(port: int, size: tuple[int, int]) -> None:
    code, body = ask(port, "POST", "/segment", picture(*size))
    assert code == 400
    assert f"{size[0]}x{size[1]}" in json.loads(body)["error"]


def test_a_jpeg_of_countless_passes_is_refused(port: int) -> None:
    stream = BytesIO()
    Image.new("RGB", (64, 64)).save(stream, "JPEG", progressive=True)
    whole = stream.getvalue()
    last = whole[whole.rindex(b"\xff\xda") : -2]
    assert ask(port, "POST", "/segment", whole)[0] == 200
    code, body = ask(port, "POST", "/segment", whole[:-2] + 1000 * last + whole[-2:])
    assert code == 400
    assert "passes" in json.loads(body)["error"]


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param("nothing", marks=pytest.mark.slow),
        pytest.param("half a head", marks=pytest.mark.slow),
        pytest.param("half a body", marks=pytest.mark.slow),
        "a picture",
    ],
)
@pytest.mark.usefixtures("signals_heard")
def test_an_interrupt_ends_the_page_promptly_and_quietly(sent: str) -> None:
    slow = picture(tenths=200)
    data = {
        "nothing": b"",
        "half a head": b"GET / HT",
        "half a body": HEAD + b"content-length: 1000\r\n\r\nhalf",
        "a picture": HEAD + b"content-length: %d\r\n\r\n" % len(slow) + slow,
    }[sent]
    with started() as (process, port), send(port, data):
        time.sleep(0.5)
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        assert time.monotonic() - start < 3
        assert process.stderr is not None
        assert process.stderr.read() == b""
