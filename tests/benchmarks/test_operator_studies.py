"""Operator studies of papers: their arithmetic is the published one, they are timed and written to files."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch
from benchmarks.operator_studies import STUDIES, Case, TimedCase, main, run_study, spans, time_cases

from segtailor.core.errors import UnknownName, UserError
from segtailor.core.target import parse_target

EAGER = "cpu/eager/fp32?threads=1"


def test_fasterseg_table_1_has_the_published_arithmetic() -> None:
    calls = {case.label: case.call for case in STUDIES["fasterseg-table-1"].cases}
    giga = {label: round(call.macs() / 1e9, 2) for label, call in calls.items()}
    assert giga == {"conv": 1.21, "conv group 2": 0.6, "conv dilation 2": 1.21, "zoomed conv": 0.3}
    weights = {label: round((call.params() - 512) / 1e6, 2) for label, call in calls.items()}
    assert weights == {"conv": 0.59, "conv group 2": 0.29, "conv dilation 2": 0.59, "zoomed conv": 0.59}


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_is_sound_data(name: str) -> None:
    study = STUDIES[name]
    assert study.source
    labels = [(case.series, case.label) for case in study.cases]
    assert len(set(labels)) == len(labels)
    assert all(case.call.macs() > 0 for case in study.cases)
    assert len({tuple(case.facts) for case in study.cases}) == 1


def test_spans_compare_only_cases_that_differ_in_one_choice() -> None:
    call = STUDIES["fasterseg-table-1"].cases[0].call
    cases, rows = [], []
    for operator, slow in (("a", 1.0), ("b", 5.0)):
        for width, extra in (("4", 0.0), ("8", 0.5)):
            facts = {"operator": operator, "width": width}
            cases.append(Case(series=operator, label=width, call=call, facts=facts))
            rows.append(TimedCase(series=operator, label=width, ms=slow + extra, macs=1))
    assert spans(rows, cases) == {"operator": 4.0, "width": 0.5}


def test_a_study_times_its_cases_on_the_target() -> None:
    rows = time_cases(STUDIES["lpsnet-figure-5a"].cases[:2], parse_target(EAGER), seconds=0.02)
    assert [row.label for row in rows] == ["1", "2"]
    assert all(row.ms > 0 and row.gmacs_per_ms > 0 for row in rows)


@pytest.mark.slow
def test_a_study_writes_figures_and_a_chart(tmp_path: Path) -> None:
    document = run_study("lpsnet-figure-4", EAGER, out=tmp_path, seconds=0.02)
    assert json.loads((tmp_path / "lpsnet-figure-4.json").read_text()) == document
    root = ET.fromstring((tmp_path / "lpsnet-figure-4.svg").read_text())
    assert len(list(root.iter("{http://www.w3.org/2000/svg}title"))) == 2
    run_study("lpsnet-figure-4", EAGER, out=tmp_path, seconds=0.02)  # replaces its own files


@pytest.mark.slow
def test_the_program_prints_a_study(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["lpsnet-figure-4", "--target", EAGER, "--seconds", "0.02"]
    main([*words, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert {row["label"] for row in document["rows"]} == {"3x3 conv", "3x3 separable"}
    main(words)
    assert "GMACs/ms" in capsys.readouterr().out


def test_files_of_others_are_not_replaced(tmp_path: Path) -> None:
    file = tmp_path / "fasterseg-table-1.svg"
    file.write_bytes(b"mine")
    with pytest.raises(SystemExit, match=r"is there already.*--force"):
        main(["fasterseg-table-1", "--target", EAGER, "--out", str(tmp_path)])
    assert file.read_bytes() == b"mine"


def test_an_unknown_study_or_runtime_is_refused() -> None:
    with pytest.raises(UnknownName, match="fasterseg-table"):
        run_study("fasterseg-table-9", EAGER)
    with pytest.raises(UserError):
        run_study("fasterseg-table-1", "cpu/nothing/fp32" if torch.cuda.is_available() else "cuda/graph/fp16")
