"""The server: what it answers, what it refuses, and who may ask."""

from __future__ import annotations

import base64
import socket
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from segtailor.core.errors import Unsupported, UserError
from segtailor.serving.demo import Demo, UploadLimits
from segtailor.serving.server import open_server
from tests.predicting.models import TASK, Threshold, halves

pytest.importorskip("starlette", reason="needs the packages of the extra `demo`")
testclient = pytest.importorskip("starlette.testclient", reason="needs the package httpx2")

from starlette.exceptions import HTTPException  # noqa: E402

from segtailor.serving.app import FILES, HEADERS, Share, build_app, is_local  # noqa: E402


def demo(**limits: int) -> Demo:
    return Demo(predictor=Threshold(), name="brightness", runtime="numpy", limits=UploadLimits(**limits))


def client(*, anyone: bool = False, host: str = "127.0.0.1:8000", **limits: int) -> Any:
    return testclient.TestClient(build_app(demo(**limits), anyone=anyone), base_url=f"http://{host}")


def picture(kind: str = "PNG", **options: Any) -> bytes:
    stream = BytesIO()
    Image.fromarray(halves()).save(stream, kind, **options)
    return stream.getvalue()


def test_the_model_is_described_to_the_page() -> None:
    facts = client().get("/model").json()
    assert (facts["model"], facts["runtime"]) == ("brightness", "numpy")
    assert facts["classes"][1] == {"name": "bright", "colour": [240, 230, 20]}


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP"])
def test_a_picture_comes_back_as_mask_shares_and_times(kind: str) -> None:
    answer = client().post("/segment", content=picture(kind))
    assert answer.status_code == 200
    facts = answer.json()
    assert (facts["height"], facts["width"]) == (40, 60)
    assert facts["shares"] == [0.5, 0.5, 0.0]
    assert list(facts["timings_ms"]) == ["decode", "resize", "network", "colour", "encode"]
    assert all(time >= 0 for time in facts["timings_ms"].values())
    mask = Image.open(BytesIO(base64.b64decode(facts["mask"])))
    np.testing.assert_array_equal(np.asarray(mask), Threshold().predict(halves()))
    assert tuple(np.asarray(mask.convert("RGB"))[0, 0]) == TASK.palette[0]


def test_a_turned_photograph_is_labelled_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    facts = client().post("/segment", content=picture("JPEG", exif=exif)).json()
    assert (facts["height"], facts["width"]) == (60, 40)


@pytest.mark.parametrize(
    "content", [b"", b"no picture", picture()[:50], b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"]
)
def test_what_is_no_picture_is_explained(content: bytes) -> None:
    answer = client().post("/segment", content=content)
    assert answer.status_code == 400
    assert "image you sent cannot be read" in answer.json()["error"]


def test_too_many_bytes_are_refused_with_or_without_a_stated_length() -> None:
    def chunks() -> Any:
        for _ in range(5):
            yield bytes(30)

    small = client(upload_bytes=100)
    for content in (bytes(101), chunks()):
        answer = small.post("/segment", content=content)
        assert answer.status_code == 413
        assert "over the limit" in answer.json()["error"]


def test_large_pictures_are_shown_to_the_network_smaller() -> None:
    facts = client(network_pixels=1024).post("/segment", content=picture()).json()
    assert (facts["height"], facts["width"]) == (40, 60)
    assert facts["network_size"][0] * facts["network_size"][1] <= 1024


def test_too_many_pixels_are_refused() -> None:
    answer = client(pixels=1000).post("/segment", content=picture())
    assert answer.status_code == 400
    assert "60x40 is over the limit of 1000 pixels" in answer.json()["error"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "10.0.0.1", "[::", ""]
)
def test_only_local_hosts_are_served_unless_opened_to_all(host: str) -> None:
    for path in ("/", "/model"):
        assert client().get(path, headers={"host": host}).status_code == 403
    assert client(anyone=True).get("/model", headers={"host": "evil.example"}).status_code == 200


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:9", "LOCALHOST", "[::1]:8000", "127.0.0.2"])
def test_every_name_of_this_machine_is_served(host: str) -> None:
    assert client().get("/model", headers={"host": host}).status_code == 200


def test_other_sites_may_not_send_pictures() -> None:
    own, other = {"origin": "http://127.0.0.1:8000"}, {"origin": "http://evil.example"}
    assert client().post("/segment", content=picture(), headers=own).status_code == 200
    for bad in (other, {"origin": "null"}, {"origin": "http://127.0.0.1:9999"}):
        assert client().post("/segment", content=picture(), headers=bad).status_code == 403


@pytest.mark.parametrize("bad", ["http://[", "http://[::1", "]", "http://\u2100.example", ""])
def test_malformed_names_of_hosts_and_origins_are_refused(bad: str) -> None:
    for anyone in (False, True):
        page = client(anyone=anyone)
        assert page.post("/segment", content=b"", headers={"origin": bad.encode()}).status_code == 403
        assert page.get("/model/", headers={"host": bad.encode()}).status_code in (403, 404)


def test_an_address_takes_half_of_what_is_shared_at_most() -> None:
    share = Share(8)
    with share.visit("a") as a, share.visit("b") as b, share.visit("c") as c:
        a.take(4)
        with pytest.raises(HTTPException, match="too many pictures"):
            a.take(1)
        b.take(4)
        with pytest.raises(HTTPException, match="too many pictures"):
            c.take(1)
    with share.visit("a") as a:
        a.take(4)


@pytest.mark.parametrize(
    "path", ["/../app.py", "/%2e%2e/app.py", "/etc/passwd", "/page/app.js", "/style.css/", "//etc/passwd"]
)
def test_no_path_leads_to_a_file(path: str) -> None:
    answer = client().get(path, follow_redirects=False)
    assert answer.status_code in (404, 307)
    assert "import" not in answer.text


def test_every_answer_carries_the_safe_headers() -> None:
    page = client()
    for answer in (
        page.get("/"),
        page.get("/nope"),
        page.post("/segment", content=b"x"),
        page.get("/segment"),
    ):
        for name, value in HEADERS.items():
            assert answer.headers[name] == value


def test_the_page_loads_nothing_from_elsewhere() -> None:
    for address in FILES:
        text = client().get(address).text
        for foreign in ("https://", "http://", "@import", "url("):
            remains = text.replace("http://www.w3.org/2000/svg", "").replace("http://127.0.0.1", "")
            assert foreign not in remains, (address, foreign)
    assert sum(len(client().get(address).content) for address in FILES) < 40_000


def test_local_addresses() -> None:
    assert all(map(is_local, ("localhost", "127.0.0.1", "127.9.9.9", "::1")))
    assert not any(map(is_local, ("0.0.0.0", "::", "192.168.0.1", "example.org", "")))


def test_a_taken_port_is_named() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(UserError, match="is taken; choose another"),
    ):
        open_server(demo(), host="127.0.0.1", port=taken.getsockname()[1])


@pytest.mark.parametrize(
    ("host", "port"), [("no.such.host.invalid", 0), ("127.0.0.1", 70000), ("127.0.0.1", -1), ("a" * 80, 0)]
)
def test_addresses_that_do_not_work_are_explained(host: str, port: int) -> None:
    with pytest.raises(UserError, match=r"[Cc]heck --(host|port)"):
        open_server(demo(), host=host, port=port)


def test_the_address_says_whether_others_can_reach_it() -> None:
    for host, local in (("127.0.0.1", True), ("0.0.0.0", False)):
        server = open_server(demo(), host=host, port=0)
        server.listening.close()
        assert server.local is local
        assert server.url.startswith(f"http://{host}:")


def test_without_the_packages_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(Unsupported, match=r"pip install 'segtailor\[demo\]'"):
        open_server(demo(), host="127.0.0.1", port=0)


def test_the_page_is_part_of_the_package() -> None:
    page = Path(sys.modules["segtailor.serving.app"].__file__ or "").parent / "page"
    assert {file.name for file in page.iterdir()} == {name for name, _ in FILES.values()}
