"""Figures 4 and 5 of the auxiliary-cells paper: which networks are trained, for how long, and what is told."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.auxcells_long import Tried, auxiliary_table, best_of, by_reward, long_training, ranking_table

from benchmarks import auxcells_long
from segtailor.core.errors import UserError
from segtailor.core.space import architecture_document
from segtailor.runs import Context
from segtailor.spaces import published

ARCH: Any = published("auxcells-arch0")
DATA = "synthetic:size=32x64,train=6,val=2"


def networks(*rewards: float, finished: bool = True) -> list[Tried]:
    return [Tried(ARCH, reward / 2, reward, finished) for reward in rewards]


def searched(folder: Path, *rewards: float) -> Path:
    """Write the result of a search with these rewards; the last network was stopped early."""
    folder.mkdir(parents=True)
    document = architecture_document(replace(ARCH, channels=4, repeats=1, encoder="mobilenet_v2"))
    rows = []
    for number, reward in enumerate(rewards):
        status = "done" if number < len(rewards) - 1 else "stopped"
        judged = {"status": status, "quality": reward, "metrics": {"stage1": reward / 2}}
        rows.append({"architecture": document["architecture"], "origin": {}, "result": judged})
    (folder / "result.json").write_text(json.dumps({"architecture": document, "trials": rows}))
    return folder


def test_the_ten_best_finished_networks_of_a_search_are_chosen() -> None:
    found = [*networks(*(number / 20 for number in range(15))), *networks(0.99, finished=False)]
    assert [one.reward for one in best_of(found, 10)] == [number / 20 for number in range(14, 4, -1)]


def test_ten_networks_of_each_part_are_drawn_and_fewer_where_there_are_fewer() -> None:
    found = networks(*(number / 100 for number in range(100)))
    drawn = by_reward(found, count=10, bounds=(0.4, 0.6), seed=1)
    assert {name: len(members) for name, members in drawn.items()} == {"low": 10, "medium": 10, "high": 10}
    assert max(one.reward for one in drawn["low"]) < 0.4
    assert all(0.4 <= one.reward <= 0.6 for one in drawn["medium"])
    assert min(one.reward for one in drawn["high"]) > 0.6
    assert drawn == by_reward(found, count=10, bounds=(0.4, 0.6), seed=1)
    few = by_reward(networks(0.1, 0.7), count=10, bounds=(0.4, 0.6), seed=1)
    assert {name: len(members) for name, members in few.items()} == {"low": 1, "medium": 0, "high": 1}


def voc(folder: Path) -> Path:
    for part in ("JPEGImages", "SegmentationClass", "SegmentationClassAug", "ImageSets/Segmentation"):
        (folder / part).mkdir(parents=True)
    for name in ("train", "trainaug", "val"):
        (folder / f"ImageSets/Segmentation/{name}.txt").write_text("a\n")
    for part in ("JPEGImages/a.jpg", "SegmentationClass/a.png", "SegmentationClassAug/a.png"):
        (folder / part).write_bytes(b"")
    return folder


def test_the_long_training_of_the_paper_has_twenty_and_thirty_epochs_on_two_lists(tmp_path: Path) -> None:
    data = f"voc:{voc(tmp_path / 'voc')}"
    recipe = long_training(ARCH, data, scale="paper", start="none", context=Context(cache=tmp_path))
    first, second = recipe.stages
    assert (first.fit.epochs, second.fit.epochs) == (20, 30)
    assert (first.data, second.data) == (data, f"{data}?list=train")
    for stage in recipe.stages:
        assert (stage.fit.ema, stage.fit.distill, stage.fit.freeze_norms) == (None, None, False)
        assert (stage.augment.crop, stage.fit.batch) == ((450, 450), 64)
        assert stage.architecture == ARCH
        assert stage.auxiliary
    assert (first.fit.loss.auxiliary_default, second.fit.loss.auxiliary_default) == (0.3, 0.25)
    alone = replace(ARCH, auxiliary="none")
    plain = long_training(alone, data, scale="paper", start="none", context=Context(cache=tmp_path))
    assert not any(stage.auxiliary for stage in plain.stages)


def test_tables_count_the_best_kind_and_correlate_ranks() -> None:
    rows = {
        f"{number}-{kind}": {"miou": score, "reward": 0.5, "first": 0.4, "finished": True}
        for number, scores in enumerate([(0.3, 0.2, 0.1), (0.1, 0.3, 0.2)])
        for kind, score in zip(("cell", "plain", "none"), scores, strict=True)
    }
    assert "best: cell 1, plain 1, none 0 of 2" in auxiliary_table(rows)
    ranked = {
        f"{name}-{number}": {"miou": 0.1 * number, "reward": 0.1 * number, "first": -number, "finished": True}
        for number, name in enumerate(("low", "medium", "high"))
    }
    told = ranking_table(ranked)
    assert "| reward of the search, mIoU of the long training | 3 | 1.00 |" in told
    assert "| reward after the first stage, after the second | 3 | -1.00 |" in told


def test_a_dry_run_names_what_would_be_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = searched(tmp_path / "run", *(number / 12 for number in range(12)))
    words = ["--search", str(run), "--data", DATA, "--out", str(tmp_path / "out"), "--dry-run"]
    auxcells_long.main(["auxiliary", *words])
    assert len(capsys.readouterr().out.splitlines()) == 30  # ten networks, three kinds each
    auxcells_long.main(["ranking", *words, "--bounds", "0.5", "0.8"])
    assert len(capsys.readouterr().out.splitlines()) == 6 + 4 + 2
    (tmp_path / "nothing").mkdir()
    with pytest.raises(SystemExit, match="has no result"):
        auxcells_long.main(["auxiliary", *words[2:], "--search", str(tmp_path / "nothing")])


def test_a_run_of_other_networks_is_refused(tmp_path: Path) -> None:
    run = searched(tmp_path / "run", 0.3, 0.4)
    document = json.loads((run / "result.json").read_text())
    other = architecture_document(published("lpsnet-s"))
    document["architecture"] = other
    document["trials"][0]["architecture"] = other["architecture"]
    (run / "result.json").write_text(json.dumps(document))
    with pytest.raises(UserError, match="searched no decoders"):
        auxcells_long.tried(run)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_long_training_is_recorded_and_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = searched(tmp_path / "run", 0.3, 0.4)
    words = [
        "auxiliary",
        "--search",
        str(run),
        "--data",
        DATA,
        "--out",
        str(tmp_path / "out"),
        "--scale",
        "small",
    ]
    words += ["--start", "none", "--cache", str(tmp_path / "cache")]
    monkeypatch.setattr(sys, "argv", ["auxcells_long", *words])
    for _ in range(2):
        auxcells_long.main(words)
        assert "best: " in capsys.readouterr().out
    record = json.loads((tmp_path / "out/0-plain.json").read_text())
    assert 0 <= record["trained"]["miou"] <= 1
    assert record["trained"]["reward"] == 0.3
