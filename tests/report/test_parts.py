"""Parts of a report kept with a run."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from segtailor.report.document import Parts, Report, Verdict
from segtailor.report.parts import parts_file, save_parts, with_parts
from segtailor.report.reading import report_of
from tests.report.folders import train_run
from tests.report.sample import full_report


def test_what_is_kept_comes_back_the_same(tmp_path: Path) -> None:
    whole = full_report()
    save_parts(tmp_path, whole)
    back = with_parts(Report(title="other"), tmp_path)
    assert back.title == "other"
    assert back.networks == ()
    for field in fields(Parts):
        assert getattr(back, field.name) == getattr(whole, field.name), field.name


def test_kept_parts_win_and_the_others_stay(tmp_path: Path) -> None:
    folder = train_run(tmp_path / "run")
    before = report_of(folder)
    save_parts(folder, Parts(verdict=Verdict(sentence="better"), missing=("a note",)))
    after = report_of(folder)
    assert after.verdict == Verdict(sentence="better")
    assert after.missing == (*before.missing, "a note")
    assert replace(after, verdict=before.verdict, missing=before.missing) == before
    assert json.loads(parts_file(folder).read_text()).keys() == {"verdict", "missing"}


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"front": 3}', '{"verdict": {"sentence": "x", "surplus": 1}}', '{"unknown": 1}']
)
def test_damaged_parts_are_said_and_left_out(text: str, tmp_path: Path) -> None:
    folder = train_run(tmp_path / "run")
    before = report_of(folder)
    parts_file(folder).parent.mkdir()
    parts_file(folder).write_text(text)
    after = report_of(folder)
    assert after.verdict == before.verdict
    assert len(after.missing) == 1
    assert "parts" in after.missing[0]
