"""The page in a real browser: upload, overlay, messages, camera, keys, and sizes of windows."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from segtailor.serving.demo import Demo, UploadLimits
from segtailor.serving.server import open_server
from tests.browser import Page, browser
from tests.predicting.models import Threshold, halves

uvicorn = pytest.importorskip("uvicorn", reason="needs the packages of the extra `demo`")
pytestmark = pytest.mark.slow

TEXT = "document.getElementById('{0}').textContent"
SHOWN = "!document.getElementById('{0}').hidden"
READY = "document.title.includes('·')"  # the page has asked for the model
COLOUR = (  # of the mask at a place given as shares of width and height
    "(() => {{ const c = document.getElementById('{0}'); return [...c.getContext('2d')"
    ".getImageData({1} * c.width, {2} * c.height, 1, 1).data]; }})()"
)
FAKE = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    demo = Demo(
        predictor=Threshold(), name="brightness", runtime="numpy", limits=UploadLimits(upload_bytes=200_000)
    )
    server = open_server(demo, host="127.0.0.1", port=0)
    running = uvicorn.Server(uvicorn.Config(server.app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [server.listening]}, daemon=True)
    thread.start()
    yield server.url
    running.should_exit = True
    thread.join(5)


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(tab: Page, url: str) -> Page:
    tab.look(1280, 800)
    tab.open(url)
    tab.until(READY)
    return tab


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("photos") / "street.png"
    Image.fromarray(halves(120, 200)).save(path)
    return path


def colour(page: Page, canvas: str, x: float, y: float) -> tuple[int, ...]:
    return tuple(page.run(COLOUR.format(canvas, x, y)))


def box(page: Page, name: str) -> list[float]:
    """Return left, top, width and height of an element."""
    return list(
        page.run(
            f"(({{left, top, width, height}}) => [left, top, width, height])"
            f"(document.getElementById('{name}').getBoundingClientRect())"
        )
    )


def test_a_chosen_picture_is_shown_with_its_overlay_classes_and_times(page: Page, photo: Path) -> None:
    page.choose(photo)
    page.until(SHOWN.format("view"))
    assert colour(page, "picture", 0.1, 0.5) == (20, 20, 20, 255)
    assert colour(page, "mask", 0.1, 0.5) == (10, 20, 30, 255)
    assert colour(page, "mask", 0.9, 0.5) == (240, 230, 20, 255)
    rows = page.run(
        "[...document.querySelectorAll('#classes li')].map((row) => row.innerText.replace(/\\s+/g, ' ').trim())"
    )
    assert rows == ["dark 50.0 %", "bright 50.0 %", "red 0.0 %"]
    stages = page.run("[...document.querySelectorAll('#stages dt')].map((row) => row.textContent)")
    assert stages == ["decode", "resize", "network", "colour", "encode", "all stages", "with transfer"]
    assert page.run("document.getElementById('download').download") == "street-mask.png"


def test_the_mask_can_be_saved(page: Page, photo: Path, tmp_path: Path) -> None:
    page.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.choose(photo)
    page.until(SHOWN.format("view"))
    page.press("d")
    saved, end = tmp_path / "street-mask.png", time.monotonic() + 10
    while not saved.exists() and time.monotonic() < end:
        time.sleep(0.05)
    np.testing.assert_array_equal(np.asarray(Image.open(saved)), Threshold().predict(halves(120, 200)))


def test_the_overlay_changes_what_is_seen_and_the_slider_how_much(
    page: Page, photo: Path, tmp_path: Path
) -> None:
    def seen() -> np.ndarray[Any, Any]:
        page.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        page.shot(tmp_path / "shot.png")
        left, top, width, height = box(page, "mask")
        pixels = np.asarray(Image.open(tmp_path / "shot.png").convert("RGB")).astype(int)
        return pixels[int(top + height / 2), int(left + width * 0.75)]

    page.choose(photo)
    page.until(SHOWN.format("view"))
    slide = (
        "(() => {{ const slider = document.getElementById('opacity'); slider.value = {}; "
        "slider.dispatchEvent(new Event('input')); }})()"
    )
    found = {}
    for value in (0, 50, 100):
        page.run(slide.format(value))
        found[value] = seen()
    np.testing.assert_allclose(found[0], [230] * 3, atol=3)
    np.testing.assert_allclose(found[100], [240, 230, 20], atol=3)
    np.testing.assert_allclose(found[50], [235, 230, 125], atol=4)


def test_bad_files_give_a_message_and_a_good_one_clears_it(page: Page, photo: Path, tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("I am no picture")
    page.choose(tmp_path / "text.jpg")
    page.until(SHOWN.format("message"))
    assert "cannot be read" in page.run(TEXT.format("message"))
    (tmp_path / "big.jpg").write_bytes(os.urandom(300_000))
    page.choose(tmp_path / "big.jpg")
    page.until(TEXT.format("message") + ".includes('over the limit')")
    page.choose(photo)
    page.until(SHOWN.format("view"))
    assert page.run(TEXT.format("message")) == ""


def test_a_picture_that_browsers_cannot_show_still_gets_its_mask(page: Page, tmp_path: Path) -> None:
    Image.fromarray(halves()).save(tmp_path / "a.tif")
    page.choose(tmp_path / "a.tif")
    page.until(SHOWN.format("view"))
    assert "cannot show this kind" in page.run(TEXT.format("message"))
    assert colour(page, "mask", 0.9, 0.5) == (240, 230, 20, 255)


def test_a_class_can_be_shown_alone_and_the_pointer_names_it(page: Page, photo: Path) -> None:
    page.choose(photo)
    page.until(SHOWN.format("view"))
    page.run("document.querySelector('#classes [data-index=\"1\"]').click()")
    assert colour(page, "mask", 0.1, 0.5)[3] == 0
    assert colour(page, "mask", 0.9, 0.5)[3] == 255
    page.press("Escape")
    assert colour(page, "mask", 0.1, 0.5)[3] == 255
    left, top, width, height = box(page, "mask")
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=left + width * 0.9, y=top + height / 2)
    page.until(SHOWN.format("tip"))
    assert page.run(TEXT.format("tip")) == "bright"


def test_an_absent_camera_is_explained(page: Page) -> None:
    page.press("c")
    page.until(SHOWN.format("message"))
    assert "No camera was found" in page.run(TEXT.format("message"))
    assert page.run("document.getElementById('camera').getAttribute('aria-pressed')") == "false"


def test_a_camera_is_labelled_live_until_it_is_stopped(url: str, tmp_path: Path) -> None:
    with browser(tmp_path, *FAKE) as page:
        page.look(390, 844)
        page.open(url)
        page.until(READY)
        page.run(
            "window.drawn = 0; new MutationObserver(() => window.drawn++)"
            ".observe(document.getElementById('stages'), { childList: true })"
        )
        page.run("document.getElementById('camera').click()")
        page.until("window.drawn >= 3")
        assert page.run(TEXT.format("camera")).startswith("Stop")
        page.press("Escape")
        page.until("document.getElementById('camera').getAttribute('aria-pressed') === 'false'")
        time.sleep(0.3)
        drawn = page.run("window.drawn")
        time.sleep(0.5)
        assert page.run("window.drawn") == drawn


def test_everything_can_be_reached_by_keyboard(page: Page, photo: Path) -> None:
    page.choose(photo)
    page.until(SHOWN.format("view"))
    reached = []
    for _ in range(7):
        page.press("Tab")
        reached.append(page.run("document.activeElement.id || document.activeElement.title"))
    assert reached == [
        "open",
        "camera",
        "download",
        "opacity",
        "Show only dark",
        "Show only bright",
        "Show only red",
    ]
    page.press("Enter")
    assert page.run("document.activeElement.getAttribute('aria-pressed')") == "true"
    page.press("h")
    assert page.run(TEXT.format("opacity-value")) == "0 %"
    page.press("h")
    assert page.run(TEXT.format("opacity-value")) == "60 %"


@pytest.mark.parametrize("size", [(1280, 800), (390, 844), (320, 568)])
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_overflows_sideways_and_the_picture_fits(
    page: Page, photo: Path, size: tuple[int, int], dark: bool
) -> None:
    page.look(*size, dark=dark)
    page.choose(photo)
    page.until(SHOWN.format("view"))
    assert page.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    (left, top, width, height), stage = box(page, "mask"), box(page, "stage")
    assert stage[0] <= left
    assert stage[1] <= top
    assert left + width <= stage[0] + stage[2]
    assert top + height <= stage[1] + stage[3]
    assert width / height == pytest.approx(200 / 120, rel=0.02)
    paper = page.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 200) is dark
