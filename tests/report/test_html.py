"""The page: every section, nothing from the network, nothing that a name could smuggle in."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import fields, replace
from html.parser import HTMLParser

import pytest

from segtailor.report.document import Parts, Quality, Report
from segtailor.report.html import SECTIONS, largest_confusions, layer_rows, render, sections
from tests.report.sample import HOSTILE, full_report, layers, quality

VOID = {"meta", "img", "br", "input"}
REQUIRED = {
    "verdict", "front", "network", "search", "layers", "classes", "pictures", "confusion", "trust", "int8", "data",
    "conditions", "commands",
}  # fmt: skip


class Page(HTMLParser):
    """Keeps elements with their attributes and text, and complains about tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def named(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def text() -> str:
    return render(full_report())


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_every_section_is_there_once_and_linked(page: Page) -> None:
    ids = [section["id"] for section in page.named("section")]
    assert len(ids) == len(set(ids))
    assert set(ids) >= REQUIRED
    links = [link["href"].removeprefix("#") for link in page.named("a")]
    assert set(links) == set(ids) - {"missing"}
    assert page.open == []


def test_nothing_is_fetched_and_the_file_is_small(text: str, page: Page) -> None:
    assert re.findall(r"(?:https?:)?//[a-z0-9.]+\.[a-z]", text) == []
    assert "@import" not in text
    assert [url for url in re.findall(r"url\(([^)]*)\)", text) if not url.startswith("data:")] == []
    assert page.named("link") == []
    assert all("src" not in script for script in page.named("script"))
    assert len(text.encode()) < 2_000_000


def test_hostile_names_stay_text(text: str, page: Page) -> None:
    assert all(image["src"].startswith("data:image/") for image in page.named("img"))
    handlers = [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert handlers == []
    assert "".join(page.words).count(HOSTILE) >= 4  # class, confusion, finding, missing note
    assert "<img src=x" not in text


def test_pictures_and_plots_have_words_for_those_who_cannot_see_them(page: Page) -> None:
    images = page.named("img")
    assert len(images) == 16
    assert all(image["alt"] for image in images)
    plots = [svg for svg in page.named("svg") if "role" in svg]
    assert len(plots) > 10
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in plots)


def test_only_our_own_script_may_run(text: str, page: Page) -> None:
    script = re.search(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    (policy,) = [
        meta["content"] for meta in page.named("meta") if meta.get("http-equiv") == "Content-Security-Policy"
    ]
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


def test_the_same_report_gives_the_same_bytes(text: str) -> None:
    assert render(full_report()) == text


def test_every_part_may_be_missing() -> None:
    found = full_report()
    story = replace(found.search, decisions=()) if found.search else None
    whole = replace(found, networks=(), search=story)  # drawings take most of the time
    before = {section["id"] for section in Page(render(whole)).named("section")}
    for name in (field.name for field in fields(Parts)):
        without = Page(render(replace(whole, **{name: getattr(Parts(), name)})))
        gone = {
            place
            for place, _, field in (*SECTIONS, ("missing", "", "missing"))
            if field.split(".")[0] == name
        }
        assert gone
        assert {section["id"] for section in without.named("section")} == before - gone


def test_an_empty_report_is_a_page(page: Page) -> None:
    empty = Page(render(Report(title="nothing")))
    assert empty.named("section") == []
    assert empty.named("nav") == []
    assert sections(Report(title="nothing")) == []


def test_a_quality_without_pictures_or_matrix_has_only_classes() -> None:
    bare = replace(full_report(), quality=Quality(classes=quality().classes))
    ids = {section["id"] for section in Page(render(bare)).named("section")}
    assert "classes" in ids
    assert not {"pictures", "confusion"} & ids


def test_many_layers_share_a_row_and_no_time_is_lost() -> None:
    times = layers()
    rows = layer_rows(times)
    assert len(rows) < len(times.layers)
    assert sum(row.measured_ms or 0 for row in rows) == pytest.approx(times.measured_ms)
    kept = [row.name for row in rows[:-1]]
    assert kept == [row.name for row in times.layers if row.name in kept]  # in the order of execution
    assert min(row.measured_ms or 0 for row in rows[:-1]) >= max(
        row.measured_ms or 0 for row in times.layers if row.name not in kept
    )


def test_the_largest_mistakes_are_named_first() -> None:
    classes = quality().classes[:3]
    matrix = ((90, 10, 0), (0, 50, 50), (0, 0, 7))
    found = largest_confusions(Quality(classes=classes, confusion=matrix))
    assert [(truth, guess) for truth, guess, _ in found] == [
        (classes[1].name, classes[2].name),
        (classes[0].name, classes[1].name),
    ]
    assert [share for _, _, share in found] == pytest.approx([0.5, 0.1])


def test_budgets_are_read_without_a_script() -> None:
    page = render(full_report())
    part = page[page.index('<section id="budgets"') :]
    part = part[: part.index("</section>")]
    assert part.count("<tr data-cost=") == 4
    assert "searched: 67.0 % mIoU, 32.5 ms" in part
    assert (
        "segtailor export &#39;my runs/street&#39; --budget 33.3ms --target cpu/onnxruntime/fp32 --out street-exported"
        in part
    )
    assert re.search(r'<div class="chooser"[^>]* hidden>', part)  # the script shows it
    assert "<img" not in part


def test_a_budget_below_everything_gets_nothing() -> None:
    budgets = full_report().budgets
    assert budgets is not None
    page = render(replace(full_report(), budgets=replace(budgets, budget=1.0)))
    assert "No network of this run costs as little as 1.00 ms." in page
    without = replace(budgets, budget=None)
    assert "--budget 32.8ms" in render(
        replace(full_report(), budgets=without)
    )  # rounded, and not below the cost
