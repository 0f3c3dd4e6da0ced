"""From run directories to reports: every kind of run, finished, interrupted, damaged or foreign."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from segtailor.core.errors import RunProblem, UserError
from segtailor.report.folder import open_run
from segtailor.report.html import render, sections
from segtailor.report.of_training import known_name
from segtailor.report.reading import report_of
from segtailor.spaces import published
from tests.report.folders import (
    calibrate_run,
    gradient_run,
    search_run,
    steps,
    tailor_run,
    train_run,
    write,
)
from tests.report.folders import journal as write_journal

MAKERS = (train_run, search_run, gradient_run, calibrate_run, tailor_run)
JUNK: tuple[Any, ...] = (None, "text", -1, 1e308, [], {}, [[]], {"a": None}, True, "<script>", [1, 2, 3])


def shown(folder: Path) -> list[str]:
    return [place for place, _ in sections(report_of(folder))]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (train_run, ["verdict", "network", "training", "classes", "conditions", "commands"]),
        (search_run, ["verdict", "front", "network", "search", "conditions", "commands"]),
        (gradient_run, ["verdict", "front", "network", "search", "conditions", "commands"]),
        (calibrate_run, ["verdict", "trust", "conditions", "commands"]),
        (
            tailor_run,
            [
                "verdict",
                "front",
                "network",
                "search",
                "training",
                "classes",
                "trust",
                "stages",
                "conditions",
                "commands",
            ],
        ),
    ],
)
def test_each_kind_of_run_shows_its_sections(
    make: Callable[[Path], Path], expected: list[str], tmp_path: Path
) -> None:
    report = report_of(make(tmp_path / "run"))
    assert [place for place, _ in sections(report)] == expected
    assert report.missing == ()
    assert render(report).count("<section") == len(expected)


def test_a_training_tells_quality_network_and_curves(tmp_path: Path) -> None:
    report = report_of(train_run(tmp_path / "run", seed=5))
    assert report.verdict is not None
    assert (
        report.verdict.sentence
        == "lpsnet-step0 reaches 41.0 % mIoU on 'val' of synthetic:size=128x256 after 8 steps."
    )
    assert report.quality is not None
    assert report.quality.classes[0].colour is not None
    assert [chart.title for chart in report.training] == [
        "Loss",
        "Quality on the validation split",
        "Learning rate",
    ]
    assert report.training[0].series[0].y == tuple(2.0 / number for number in range(1, 9))
    assert ("fit.seed", "5") in [
        (fact.name, fact.value) for group in report.conditions for fact in group.facts
    ]


@pytest.mark.parametrize("name", ["lpsnet-s", "fast-scnn"])
def test_published_networks_are_known_by_name(name: str) -> None:
    assert known_name(published(name)) == name


def test_a_search_tells_winner_family_and_path(tmp_path: Path) -> None:
    folder = search_run(tmp_path / "run", limit=1e12)
    report = report_of(folder)
    result = json.loads((folder / "result.json").read_text())
    assert report.front is not None
    assert report.search is not None
    assert report.verdict is not None
    assert report.verdict.met is True
    assert [point.quality for point in report.front.points if point.group == "winner"] == [result["quality"]]
    assert report.front.path == ("step 0", "step 1", "step 2")
    assert [step.direction for step in report.search.path] == ["start", "depth × 2", "depth × 2"]
    assert len(report.front.points) == 12
    assert f"segtailor train {folder}/architectures/{result['fingerprint']}.json" in "\n".join(
        command.text for command in report.commands
    )


def test_a_search_by_gradients_tells_probabilities_and_leaves_out_the_choosing(tmp_path: Path) -> None:
    report = report_of(gradient_run(tmp_path / "run", marks=5))
    assert report.search is not None
    assert [story.name for story in report.search.decisions] == ["block0", "block1"]
    assert report.search.decisions[0].shares[-1] == pytest.approx((0.7, 0.3))
    charts = {chart.title: chart for chart in report.search.charts}
    assert {"Expected depth", "Expected cost", "Loss of the supernet"} <= set(charts)
    assert max(charts["Expected cost"].series[0].y) == 9.0  # the choice afterwards costs another 5e9
    assert report.search.warnings == ("the search collapsed",)


def test_an_unfinished_search_is_reported_from_its_journal(tmp_path: Path) -> None:
    report = report_of(search_run(tmp_path / "run", finished=False))
    assert report.front is not None
    assert len(report.front.points) == 12
    assert "not finished" in report.missing[0]
    assert report.verdict is not None
    assert "so far" in report.verdict.sentence
    assert report.commands[0].text == f"segtailor resume {tmp_path / 'run'}"


@pytest.mark.parametrize("make", [train_run, calibrate_run])
def test_an_interrupted_run_says_so_and_how_to_go_on(make: Callable[..., Path], tmp_path: Path) -> None:
    report = report_of(make(tmp_path / "a run", finished=False))
    assert report.verdict is not None
    assert "not finished" in report.verdict.sentence
    assert len(report.missing) == 1
    assert report.commands[0].text == f"segtailor resume '{tmp_path / 'a run'}'"
    render(report)


def test_a_failed_run_tells_why(tmp_path: Path) -> None:
    folder = train_run(tmp_path / "run", finished=False)
    write_journal(
        folder,
        [*steps(3, "train", loss=1.0), {"kind": "error", "error": "Diverged", "message": "no numbers"}],
    )
    assert report_of(folder).missing == ("the run failed: no numbers",)


def test_a_tailoring_is_composed_and_its_unfinished_stage_named(tmp_path: Path) -> None:
    report = report_of(tailor_run(tmp_path / "run", finished=False))
    assert [(stage.name, stage.status) for stage in report.stages] == [
        ("1-calibrate (calibrate)", "done"),
        ("2-search (search)", "done"),
        ("3-train (train)", "unfinished"),
    ]
    assert any(line.startswith("3-train: ") for line in report.missing)
    finished = report_of(tailor_run(tmp_path / "other"))
    assert finished.verdict is not None
    assert finished.verdict.sentence == (
        "The network reaches 41.0 % mIoU and takes 12.5 ms on cpu/onnxruntime/fp32, "
        "which keeps the budget of 15.0 ms."
    )


def test_a_run_of_unknown_kind_still_shows_curves_and_settings(tmp_path: Path) -> None:
    folder = train_run(tmp_path / "run")
    write(folder, "recipe.json", {"kind": "distil", "seed": 3})
    assert shown(folder) == ["verdict", "training", "conditions", "commands"]


@pytest.mark.parametrize("state", ["absent", "file", "empty", "recipe cut", "recipe a list"])
def test_what_is_no_run_is_refused(state: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    if state == "file":
        folder.write_text("x")
    elif state != "absent":
        folder.mkdir()
    if state.startswith("recipe"):
        (folder / "recipe.json").write_text("[1]" if state == "recipe a list" else '{"kind": ')
    with pytest.raises(RunProblem, match="run"):
        report_of(folder)


def test_damage_is_said_and_the_rest_shown(tmp_path: Path) -> None:
    folder = train_run(tmp_path / "run")
    (folder / "result.json").write_text('{"miou": 0.4')
    with (folder / "journal.jsonl").open("a") as stream:
        stream.write("not json\n" * 5)
    (folder / "environment.json").write_text("\x00")
    report = report_of(folder)
    assert "result" in report.missing[0]
    assert "environment" in report.missing[1]
    assert "2 more lines of the journal are damaged." in report.missing
    assert report.training


def test_seconds_are_those_of_the_sessions_without_the_pause(tmp_path: Path) -> None:
    folder = train_run(tmp_path / "run", finished=False)
    first, second = steps(4, "train", loss=1.0), steps(4, "train", loss=1.0)
    rows = [{"time": 1000.0 + n, **row} for n, row in enumerate(first)]
    rows += [{"time": 90_000.0 + n, **row} for n, row in enumerate(second)]
    (folder / "journal.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert open_run(folder).seconds == 8.0


@pytest.mark.parametrize("rounds", [2, pytest.param(80, marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", MAKERS)
def test_junk_in_any_field_never_crashes_a_report(
    make: Callable[[Path], Path], rounds: int, tmp_path: Path
) -> None:
    rng = Random(rounds)
    folder = make(tmp_path / "run")
    files = [
        folder / "result.json",
        folder / "recipe.json",
        folder / "environment.json",
        folder / "cost_table.json",
    ]
    for file in (file for file in files if file.exists()):
        sound = file.read_text()
        for _ in range(rounds):
            file.write_text(json.dumps(_spoilt(json.loads(sound), rng)))
            try:
                text = render(report_of(folder))
            except UserError:
                continue
            assert text.count("<script>") == 1
        file.write_text(sound)


def _spoilt(data: Any, rng: Random) -> Any:
    """Return a copy with one value, at any depth, replaced by junk."""
    place, inner = data, data
    key: Any = None
    while isinstance(inner, dict | list) and inner and (key is None or rng.random() < 0.8):
        place = inner
        key = rng.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
        inner = place[key]
    place[key] = rng.choice(JUNK)
    return data
