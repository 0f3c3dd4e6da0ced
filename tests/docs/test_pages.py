"""The documentation is consistent: links exist, every page is in the navigation, generated pages are up to date."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tools import write_reference

from tests.docs.markdown import ROOT, links, written

DOCS = ROOT / "docs"
SITE: dict[str, Any] = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]


def leaves(entry: Any) -> Iterator[str]:
    """Yield the pages below an entry of the navigation."""
    if isinstance(entry, str):
        yield entry
    for part in entry if isinstance(entry, list) else entry.values() if isinstance(entry, dict) else ():
        yield from leaves(part)


@pytest.mark.parametrize("page", written(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    local = [link.partition("#")[0] for link in links(page) if "://" not in link]
    places = {link: (page.parent / link).resolve() for link in local if link}
    assert [link for link, place in places.items() if not place.exists()] == []


def test_every_page_is_in_the_navigation_and_the_navigation_has_no_others() -> None:
    listed = list(leaves(SITE["nav"]))
    assert len(listed) == len(set(listed))
    assert {DOCS / name for name in listed} == set(DOCS.rglob("*.md"))


def test_every_decision_is_in_their_index() -> None:
    told = links(DOCS / "decisions" / "index.md")
    assert told == sorted(page.name for page in (DOCS / "decisions").glob("0*.md"))


@cache
def generated() -> dict[str, str]:
    return {path.relative_to(ROOT).as_posix(): text for path, text in write_reference.pages().items()}


@pytest.mark.parametrize(
    "name",
    [
        "docs/reference/cli.md",
        "docs/reference/api.md",
        "docs/reference/verbs.json",
        "docs/llms.txt",
        "tests/golden/cli.json",
    ],
)
def test_what_is_generated_from_code_is_up_to_date(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == generated()[name], "run `make reference`"


def test_the_document_of_verbs_names_every_flag_of_the_pinned_command_line() -> None:
    document = json.loads((DOCS / "reference" / "verbs.json").read_text(encoding="utf-8"))
    told = {
        verb["name"]: [" ".join(item["names"]) for item in (*verb["arguments"], *verb["flags"])]
        for verb in document["verbs"]
    }
    pinned = json.loads((ROOT / "tests" / "golden" / "cli.json").read_text(encoding="utf-8"))
    assert {name: sorted(flags) for name, flags in told.items()} == {
        name: sorted(flags) for name, flags in pinned.items()
    }
    assert [verb["name"] for verb in document["verbs"] if not verb["summary"] or not verb["prints"]] == []


def test_links_of_the_front_page_lead_to_pages() -> None:
    told = re.findall(r"\]\(([^)#]+)", (DOCS / "llms.txt").read_text(encoding="utf-8"))
    files = [DOCS / (name.removesuffix(".html") + ".md" if name.endswith(".html") else name) for name in told]
    assert len(files) > 30
    assert [file.name for file in files if not file.is_file()] == []


@pytest.mark.slow
def test_the_reference_is_written_without_torch() -> None:
    program = "import sys; from tools.write_reference import pages; pages(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Warning:" not in done.stderr
    for name in ("llms.txt", "reference/verbs.json"):  # files for scripts are served beside the pages
        assert (tmp_path / "site" / name).read_bytes() == (DOCS / name).read_bytes()
    built = list((tmp_path / "site").rglob("*.html"))
    assert len(built) >= len(list(DOCS.rglob("*.md")))
    loaded = re.compile(
        r"<(?:script|img|iframe)[^>]*src=\"?https?:|<link[^>]*(?:stylesheet|icon)[^>]*href=\"?https?:"
    )
    assert [page.name for page in built if loaded.search(page.read_text(encoding="utf-8"))] == []
