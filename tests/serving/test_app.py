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

import segtailor
from segtailor.core.errors import Interrupted, Unsupported, UserError
from segtailor.core.task import Preprocessing
from segtailor.data.parts import WholeRows
from segtailor.data.tiles import Tiling, label_in_tiles
from segtailor.nets.bundle import Model, load_bundle
from segtailor.nets.network import build, initialise
from segtailor.serving.demo import Demo, UploadLimits
from segtailor.serving.server import open_server
from segtailor.tasks.bands import scaled_bands
from tests.data.test_parts import tiled_tiff
from tests.predicting.models import TASK, Threshold, halves, save_small_bundle

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


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segtailor.predicting.labelling.DEFAULT_TILE", (128, 128))


LARGE = np.random.default_rng(0).integers(0, 256, (260, 410, 3), dtype=np.uint8)


@pytest.mark.usefixtures("small_tiles")
def test_large_pictures_are_labelled_in_tiles_at_their_own_size() -> None:
    stream = BytesIO()
    Image.fromarray(LARGE).save(stream, "PNG")
    facts = client(network_pixels=2**14).post("/segment", content=stream.getvalue()).json()
    assert facts["tiles"] == Tiling(tile=(128, 128)).count((260, 410)) > 4
    assert facts["network_size"] == [128, 128]
    mask = Image.open(BytesIO(base64.b64decode(facts["mask"])))
    np.testing.assert_array_equal(np.asarray(mask), Threshold().predict(LARGE))


@pytest.mark.usefixtures("small_tiles")
def test_the_page_blends_tiles_as_predict_does(tmp_path: Path) -> None:
    model = load_bundle(save_small_bundle(tmp_path))
    stream = BytesIO()
    Image.fromarray(LARGE).save(stream, "PNG")
    shown = Demo(predictor=model, name="m", runtime="r", limits=UploadLimits(network_pixels=2**14))
    facts: Any = shown.analyse(stream.getvalue())
    scores = model.probabilities
    wanted = label_in_tiles(WholeRows(pixels=LARGE), scores, Tiling(tile=(128, 128)), classes=3)
    np.testing.assert_array_equal(np.asarray(Image.open(BytesIO(base64.b64decode(facts["mask"])))), wanted)
    assert 0.3 < facts["confidence"] <= 1


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("reason", ["time", "memory"])
def test_where_tiles_cost_too_much_a_picture_is_reduced(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = Threshold()
    if reason == "memory":
        monkeypatch.setattr("segtailor.serving.demo.MAX_KEPT_BYTES", 1000)
    limits = UploadLimits(network_pixels=2**14, tile_seconds=-1.0 if reason == "time" else 30.0)
    stream = BytesIO()
    Image.fromarray(LARGE).save(stream, "PNG")
    facts: Any = Demo(predictor=predictor, name="m", runtime="r", limits=limits).analyse(stream.getvalue())
    assert facts["tiles"] == 1
    assert facts["network_size"][0] * facts["network_size"][1] <= 2**14
    assert len(predictor.seen) == (3 if reason == "time" else 1)  # two tiles tell how long all would take


@pytest.mark.usefixtures("small_tiles")
def test_work_in_tiles_ends_when_the_visitor_has_gone() -> None:
    predictor = Threshold()
    shown = Demo(predictor=predictor, name="m", runtime="r", limits=UploadLimits(network_pixels=2**14))
    stream = BytesIO()
    Image.fromarray(LARGE).save(stream, "PNG")
    with pytest.raises(Interrupted):
        shown.analyse(stream.getvalue(), gone=lambda: len(predictor.seen) >= 3)
    assert len(predictor.seen) == 3


FIVE = np.random.default_rng(1).integers(0, 4000, (40, 56, 5), dtype=np.uint16)


def five_bands() -> Demo:
    network = segtailor.create("lpsnet-step0", classes=3, seed=5).architecture
    ranges = ((0.0, 4000.0),) * 5
    scaling = Preprocessing(mean=(0.5,) * 5, std=(0.3,) * 5, ranges=ranges)
    built = build(network, 3, outputs=("main",), channels=5)
    initialise(built, 0)
    model = Model(network=built.eval(), task=TASK, preprocessing=scaling)
    return Demo(predictor=model, name="five", runtime="PyTorch")


def array_file(values: np.ndarray) -> bytes:
    stream = BytesIO()
    np.save(stream, values)
    return stream.getvalue()


@pytest.mark.parametrize("form", ["npy", "tif"])
def test_a_network_of_other_bands_labels_uploads_of_them(form: str, tmp_path: Path) -> None:
    shown = five_bands()
    plain = tiled_tiff(tmp_path / "a.tif", (FIVE // 16).astype(np.uint8), 16).read_bytes()
    content = array_file(FIVE) if form == "npy" else plain
    page = testclient.TestClient(build_app(shown), base_url="http://127.0.0.1:8000")
    facts = page.post("/segment", content=content).json()
    values = FIVE if form == "npy" else (FIVE // 16).astype(np.uint8)
    wanted = shown.predictor.predict(scaled_bands(values, ((0.0, 4000.0),) * 5))
    np.testing.assert_array_equal(np.asarray(Image.open(BytesIO(base64.b64decode(facts["mask"])))), wanted)
    picture = np.asarray(Image.open(BytesIO(base64.b64decode(facts["picture"]))))
    assert picture.shape == (40, 56, 3)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (array_file(FIVE[:, :, :4]), "it has 4 bands, the network reads 5"),
        (picture(), "it has 3 bands, the network reads 5"),
        (array_file(FIVE)[:-5], "its length is not what its header says"),
        (array_file(np.zeros((3, 4, 5), np.complex64)), "not numbers"),
        (array_file(np.array([{}], dtype=object)), "not numbers"),
        (array_file(np.zeros((1, 9000, 5), np.uint8)), "over the limit of 8192 pixels for a side"),
        (array_file(FIVE).replace(b"(40, 56, 5)", b"(99999,7,5)"), "cannot be read"),
        (b"II*\0" + bytes(20), "cannot be read"),
        (b"\x93NUMPY\x01\0\xff\xff{", "cannot be read"),
    ],
)
def test_uploads_that_a_network_of_other_bands_cannot_read_are_explained(content: bytes, said: str) -> None:
    page = testclient.TestClient(build_app(five_bands()), base_url="http://127.0.0.1:8000")
    answer = page.post("/segment", content=content)
    assert answer.status_code == 400
    assert said in answer.json()["error"]


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
