"""The stored study of AutoRTNet is what its page shows."""

from __future__ import annotations

import json

from tests.docs.markdown import ROOT
from tests.scripts import load_script

STORED = ROOT / "results" / "autortnet"


def test_the_page_shows_the_stored_figures() -> None:
    load_script(ROOT / "benchmarks" / "comparing.py")  # which the other program imports from
    study = load_script(ROOT / "benchmarks" / "autortnet_studies.py")
    found = [json.loads(file.read_text()) for file in sorted(STORED.glob("*.json"))]
    assert len(found) == 3
    assert study.table(found) in (ROOT / "docs" / "results-search.md").read_text()
