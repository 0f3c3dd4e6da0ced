"""The page of search results shows the stored study of AutoRTNet."""

from __future__ import annotations

import json

from benchmarks.autortnet_studies import table

from tests.docs.markdown import ROOT

STORED = ROOT / "results" / "autortnet.jsonl"


def test_the_page_shows_the_stored_figures() -> None:
    records = [json.loads(line) for line in STORED.read_text().splitlines()]
    assert len(records) == 3
    assert table(records) in (ROOT / "docs" / "results-search.md").read_text()
