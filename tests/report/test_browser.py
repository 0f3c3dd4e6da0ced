"""The page in a real browser: it is quiet, fits any width, shows details under the pointer, and prints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from segtailor.report.comparison import compare
from segtailor.report.html import render, render_comparison
from tests.browser import Page, browser
from tests.report.folders import search_run, train_run
from tests.report.sample import full_report

pytestmark = pytest.mark.slow
WIDTHS = (390, 768, 1280)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("pages")
    (folder / "full.html").write_text(render(full_report()))
    runs = [train_run(folder / "a"), search_run(folder / "b")]
    (folder / "comparison.html").write_text(render_comparison(compare(runs)))
    return [folder / "full.html", folder / "comparison.html"]


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


def show(chrome: Page, file: Path, *, width: int, dark: bool = False) -> None:
    chrome.look(width, 900, dark=dark)
    chrome.open(file.resolve().as_uri())


@pytest.mark.parametrize("dark", [False, True])
def test_pages_are_quiet_and_never_scroll_sideways(chrome: Page, pages: list[Path], dark: bool) -> None:
    for page in pages:
        for width in WIDTHS:
            show(chrome, page, width=width, dark=dark)
            assert chrome.run("innerWidth") == width
            assert chrome.run("document.documentElement.scrollWidth") <= width, (page.name, width)
    assert chrome.complaints == []
    assert [url for url in chrome.requests if not url.startswith(("file:", "data:image/"))] == []


def test_dark_and_light_differ(chrome: Page, pages: list[Path]) -> None:
    seen = set()
    for dark in (False, True):
        show(chrome, pages[0], width=1280, dark=dark)
        seen.add(chrome.run("getComputedStyle(document.body).backgroundColor"))
    assert len(seen) == 2


def test_the_pointer_shows_details_and_leaves(chrome: Page, pages: list[Path]) -> None:
    show(chrome, pages[0], width=1280)
    assert chrome.run("document.getElementById('tip').hidden")
    chrome.point("#front .plot .mark.g-winner path")
    tip = chrome.run("document.getElementById('tip').textContent")
    assert "winner" in tip
    assert "parameters" in tip
    chrome.point("h1")
    assert chrome.run("document.getElementById('tip').hidden")
    chrome.point("#network .drawing svg g rect")
    assert "MMACs" in chrome.run("document.getElementById('tip').textContent")


def test_a_hostile_name_runs_nothing(chrome: Page, pages: list[Path]) -> None:
    show(chrome, pages[0], width=1280)
    assert chrome.run("document.querySelectorAll('img[src=x]').length") == 0


def test_it_prints_with_everything_unfolded(chrome: Page, pages: list[Path]) -> None:
    show(chrome, pages[0], width=1280, dark=True)
    document = chrome.pdf()
    assert document.startswith(b"%PDF")
    assert (
        4
        <= document.count(b"/Type /Page\n")
        + document.count(b"/Type /Page ")
        + document.count(b"/Type /Page/")
        <= 30
    )
    assert chrome.run("[...document.querySelectorAll('details')].every(part => part.open)")


@pytest.mark.parametrize("width", [390, 1280])
def test_moving_the_budget_changes_the_network_and_its_command(
    chrome: Page, pages: list[Path], width: int
) -> None:
    show(chrome, pages[0], width=width)
    assert chrome.run("getComputedStyle(document.querySelector('.chooser')).display") == "block"
    seen = {}
    for place in (0, 300, 1000):
        chrome.run(
            f"(() => {{ const slider = document.getElementById('budget'); slider.value = {place}; "
            "slider.dispatchEvent(new Event('input')); })()"
        )
        offer, export, winners = (
            chrome.run(expression)
            for expression in (
                "document.getElementById('offer').textContent",
                "document.getElementById('export').textContent",
                "document.querySelectorAll('#offers tr.winner').length",
            )
        )
        seen[place] = (export, winners)
        assert chrome.run("document.querySelector('.chooser output').textContent") in offer or winners == 1
    assert seen[0] == ("", 0)
    assert "--budget 12ms --target" in seen[300][0]
    assert "--budget 39ms --target" in seen[1000][0]
    assert chrome.run("document.documentElement.scrollWidth") <= width
