"""Parts of a report: layer times, findings of the dataset doctor, and the file that keeps parts with a run."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from segtailor.data import doctor
from segtailor.data.locate import locate
from segtailor.report.document import Parts, Report, Verdict
from segtailor.report.parts import findings_of, layer_times, parts_file, save_parts, start_fact, with_parts
from segtailor.report.reading import report_of
from segtailor.spaces import networks
from tests.report.folders import calibrate_run, search_run, train_run
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


def test_the_whole_is_the_sum_of_the_priced_layers() -> None:
    plan = networks.expand("lpsnet-s", image=(256, 512))
    seen = {plan.deployed().nodes[0].name: 3.0}
    found = layer_times(plan, price=lambda call: call.macs() / 1e6, measured=seen, measured_ms=99.0)
    assert [row.name for row in found.layers] == [node.name for node in plan.deployed().nodes]
    assert found.estimated_ms == pytest.approx(plan.deployed().macs() / 1e6)
    assert [row.measured_ms for row in found.layers].count(None) == len(found.layers) - 1
    assert found.measured_ms == 99.0


def test_without_prices_there_is_no_estimate() -> None:
    found = layer_times(networks.expand("lpsnet-step0", image=(64, 64)))
    assert found.estimated_ms is None
    assert all(row.estimated_ms is None for row in found.layers)


def test_a_search_whose_table_lacks_entries_says_so(tmp_path: Path) -> None:
    folder = search_run(tmp_path / "search")
    (calibrate_run(tmp_path / "pack") / "cost_table.json").rename(folder / "cost_table.json")
    report = report_of(folder)
    assert report.layers is None
    assert "no entry" in report.missing[0]


def test_findings_of_a_real_folder_are_taken_over_worst_first(tmp_path: Path) -> None:
    for split, count in (("train", 3), ("val", 2)):
        for index in range(count):
            for part in ("images", "masks"):
                file = tmp_path / part / split / f"{index}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                shape = (32, 48, 3) if part == "images" else (32, 48)
                Image.fromarray(np.full(shape, 40 * index if part == "images" else index % 2, np.uint8)).save(
                    file
                )
    (tmp_path / "images" / "train" / "0.png").write_bytes(b"no picture")
    name = f"folder:{tmp_path}"
    diagnosis = doctor.examine(lambda: locate(name), named=name)
    found = findings_of(name, diagnosis.document())
    assert [row.message for row in found.findings] == [row.message for row in diagnosis.findings]
    assert found.findings[0].severity == "error"
    assert {split.name: split.images for split in found.splits} == {"train": 3, "val": 2}


def test_junk_instead_of_findings_is_nothing() -> None:
    found = findings_of("x", {"findings": [1, {"severity": "odd"}], "splits": {"train": None}})
    assert found.findings == ()
    assert [split.images for split in found.splits] == [0]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("imagenet", "imagenet (Apache-2.0)"),
        ("runs/photos/stages/search/front/0b2c89f4b79959e6", "weights of the search (Apache-2.0)"),
        ("runs/front/mine", "runs/front/mine (Apache-2.0)"),
    ],
)
def test_where_weights_came_from_is_said_in_words(name: str, shown: str) -> None:
    assert start_fact({"name": name, "licence": "Apache-2.0", "carried": 1.0}).value == shown
    assert start_fact({"name": name, "licence": "Apache-2.0", "carried": 0.0}).value == "random weights"
