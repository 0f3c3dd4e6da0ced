"""The page of search results shows the stored study of AutoRTNet."""

from __future__ import annotations

import json

from tests.docs.markdown import ROOT
from tests.scripts import load_script

STORED = ROOT / "results" / "autortnet.jsonl"


def test_the_page_shows_the_stored_figures() -> None:
    load_script(ROOT / "benchmarks" / "comparing.py")  # which the other program imports from
    study = load_script(ROOT / "benchmarks" / "autortnet_studies.py")
    records = [json.loads(line) for line in STORED.read_text().splitlines()]
    assert len(records) == 3
    assert study.table(records) in (ROOT / "docs" / "results-search.md").read_text()
