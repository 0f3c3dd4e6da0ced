import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from segtailor.api.studies import study
from segtailor.costs.studies import STUDIES, Case, Study, Timed, run_study, spans

from segtailor.core.errors import UnknownName, UserError
from segtailor.core.target import parse_target
from segtailor.report.charts import Value, chart
from segtailor.verbs.main import run

EAGER = "cpu/eager/fp32?threads=1"


def test_fasterseg_table_1_has_the_published_arithmetic() -> None:
    rows = {case.label: case.call for case in STUDIES.get("fasterseg-table-1").cases}
    giga = {label: round(call.macs() / 1e9, 2) for label, call in rows.items()}
    assert giga == {"conv": 1.21, "conv group 2": 0.6, "conv dilation 2": 1.21, "zoomed conv": 0.3}
    weights = {label: round((call.params() - 512) / 1e6, 2) for label, call in rows.items()}
    assert weights == {"conv": 0.59, "conv group 2": 0.29, "conv dilation 2": 0.59, "zoomed conv": 0.59}


@pytest.mark.parametrize("name", STUDIES.names())
def test_every_study_is_sound_data(name: str) -> None:
    chosen = STUDIES.get(name)
    assert chosen.source
    places = [(case.series, case.label) for case in chosen.cases]
    assert len(set(places)) == len(places)
    assert all(case.call.macs() > 0 for case in chosen.cases)
    facts = {tuple(case.facts) for case in chosen.cases}
    assert len(facts) == 1


def test_spans_compare_only_cases_that_differ_in_one_choice() -> None:
    call = STUDIES.get("fasterseg-table-1").cases[0].call
    cases, rows = [], []
    for operator, slow in (("a", 1.0), ("b", 5.0)):
        for width, extra in (("4", 0.0), ("8", 0.5)):
            facts = {"operator": operator, "width": width}
            cases.append(Case(series=operator, label=width, call=call, facts=facts))
            rows.append(Timed(series=operator, label=width, ms=slow + extra, macs=1))
    assert spans(rows, cases) == {"operator": 4.0, "width": 0.5}


def small(count: int = 2) -> Study:
    chosen = STUDIES.get("lpsnet-figure-5a")
    return Study(**{**vars(chosen), "cases": chosen.cases[:count]})


def test_a_study_times_its_cases_on_the_target() -> None:
    rows = run_study(small(), parse_target(EAGER), seconds=0.02)
    assert [row.label for row in rows] == ["1", "2"]
    assert all(row.ms > 0 and row.gmacs_per_ms > 0 for row in rows)


@pytest.mark.slow
def test_a_study_writes_figures_and_a_chart(tmp_path: Path) -> None:
    document = study("lpsnet-figure-4", EAGER, out=tmp_path, seconds=0.02)
    assert json.loads((tmp_path / "lpsnet-figure-4.json").read_text()) == document
    root = ET.fromstring((tmp_path / "lpsnet-figure-4.svg").read_text())
    assert len(list(root.iter("{http://www.w3.org/2000/svg}title"))) == 2


@pytest.mark.slow
def test_the_verb_prints_a_study(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "--study", "lpsnet-figure-4", "--target", EAGER, "--seconds", "0.02"]
    assert run([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["label"] for row in document["rows"]} == {"3x3 conv", "3x3 separable"}
    assert run(words) == 0
    assert "GMACs/ms" in capsys.readouterr().out


def test_an_unknown_study_or_runtime_is_refused() -> None:
    with pytest.raises(UnknownName, match="fasterseg-table"):
        study("fasterseg-table-9", EAGER)
    with pytest.raises(UserError):
        study("fasterseg-table-1", "cuda/graph/fp16" if _no_gpu() else "cpu/nothing/fp32")


def _no_gpu() -> bool:
    import torch

    return not torch.cuda.is_available()


@pytest.mark.parametrize("lines", [False, True])
def test_charts_are_valid_and_escape_their_text(lines: bool) -> None:
    values = [Value("a<b", str(x), x / 2, f"point {x} & more") for x in range(4)] + [Value("c", "0", 1.0)]
    text = chart(values, title="<script>", subtitle="a & b", unit="ms", lines=lines)
    root = ET.fromstring(text)
    marks = list(root.iter("{http://www.w3.org/2000/svg}title"))
    assert len(marks) == 5
    assert "<script>" not in text


def test_an_empty_or_flat_chart_does_not_divide_by_zero() -> None:
    root = ET.fromstring(chart([Value("a", "x", 0.0)], title="t", subtitle="s", unit="ms"))
    (bar,) = [mark for mark in root.iter("{http://www.w3.org/2000/svg}rect") if mark.get("class") != "page"]
    assert float(bar.get("height", "nan").rstrip("%")) == 0
