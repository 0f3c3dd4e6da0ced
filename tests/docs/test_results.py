"""Tables and cards show the stored results, and a finished training becomes a shipped network."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tools import ship, write_results
from tools.camvid_results import DRIVES, LATENCY, OUTCOMES, RESULTS, ROWS, SEARCHES, Results

import segtailor
from segtailor.core import shipped as home
from segtailor.core.errors import UserError
from segtailor.data import camvid
from segtailor.nets.bundle import Model
from segtailor.recipes.recipe import with_settings
from segtailor.recipes.train import train_recipe
from segtailor.runs import Context
from segtailor.targets.timing import TimingSettings
from segtailor.verbs.bench import bench
from segtailor.verbs.train import train
from tests.data.trees import write_pairs
from tests.docs.markdown import ROOT

NAME = "camvid-made-up"


def put(file: Path, content: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content), encoding="utf-8")


def add(file: Path, record: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(record) + "\n")


def outcome(folder: Path, row: str, fold: str, miou: float, seed: int = 0, settings: str = "") -> None:
    study, _, name = row.rpartition("/")
    record = {
        "study": study, "name": name, "network": "lpsnet-step0", "fold": fold, "seed": seed,
        "command": f"segtailor train lpsnet-step0 --data 'camvid:PATH?fold={fold}' --seed {seed}{settings}",
        "result": {"miou": miou},
    }  # fmt: skip
    add(folder / OUTCOMES, record)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Write results of some recipes; one of them lacks drives."""
    folder = tmp_path / "results"
    for row, scores in {
        "recipe/base": (0.4, 0.5, 0.6),
        "recipe/long": (0.45, 0.5, 0.7),
        "study/tiny": (0.1, 0.2, 0.3),
    }.items():
        for drive, score in zip(DRIVES, scores, strict=True):
            outcome(folder, row, drive, score)
    outcome(folder, "recipe/odd", "0006R0", 0.9)
    for seed, score in enumerate((0.5, 0.6, 0.7)):
        outcome(folder, "study/tiny", "", score, seed)
    literature = json.loads((RESULTS / "literature.json").read_text())
    put(folder / "literature.json", literature)
    put(folder / "test_scores.json", json.loads((RESULTS / "test_scores.json").read_text()))
    main = {"label": "small", "row": "study/tiny", "system": "fasterseg", "search": "found"}
    tables = {
        name: {"study": "recipe", "base": "base", "labels": {"long": "twice as long"}}
        for name in ("ablation", "networks")
    }
    put(folder / ROWS, {"main": [main], **tables})
    add(
        folder / SEARCHES,
        {"name": "found", "seconds": 90, "device": "a GPU", "seed": 0, "command": "a | b"},
    )
    add(folder / LATENCY, {"name": "tiny", **measured()})
    return Results(folder=folder)


@cache
def measured() -> dict[str, Any]:
    """Time a network, and change the record to the target and image size of the table."""
    settings = TimingSettings(seconds=0.01)
    (row,) = bench(["lpsnet-step0"], ["cpu/eager/fp32"], image=(32, 64), settings=settings)
    pretended = {"target": "cpu/onnxruntime/fp32?threads=2", "threads": 2, "inputs": [[3, 360, 480]]}
    return {**row.document(), **pretended, "median_ms": 12.345}


def rows(table: str) -> dict[str, list[str]]:
    """Return the cells of a table by the first of each row."""
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]
    return {first: rest for first, *rest in cells}


def test_what_is_generated_from_result_files_is_up_to_date() -> None:
    for path, text in write_results.pages(Results(folder=RESULTS)).items():
        assert path.read_text(encoding="utf-8") == text, f"{path.relative_to(ROOT)}: run `make results`"


def test_result_files_have_no_paths_of_a_machine() -> None:
    place = re.compile(r"[\"'\s=:]/\w")
    files = [*RESULTS.parent.rglob("*.json*"), *home.SHIPPED.rglob("*.json")]
    assert [file.name for file in files if place.search(file.read_text(encoding="utf-8"))] == []
    assert place.search('"run": "/home/me/runs"')
    assert place.search("--data 'camvid:/data/camvid'")


def test_the_main_table_has_what_was_measured_and_nothing_else(results: Results) -> None:
    found = rows(write_results.main_table(results))
    size = segtailor.count("lpsnet-step0", image=(360, 480), classes=11)
    assert found["small"] == [
        f"{size.params / 1e6:.2f} M", f"{size.macs / 1e9:.2f} G", "20.0", "60.0 ± 10.0", "", "", "", "12.3", "1.5",
        "2 GPU-days (about 2 days on one GTX 1080 Ti)",
    ]  # fmt: skip
    assert found["LETNet"] == ["0.95 M", "", "", "", "70.5", "", "", "", "", ""]


def test_the_ablation_compares_rows_on_the_drives_that_both_have(results: Results) -> None:
    found = rows(write_results.ablation_table(results))
    assert list(found) == ["base", "twice as long", "odd"]
    assert found["base"] == ["40.0", "50.0", "60.0", "50.0", ""]
    assert found["twice as long"] == ["45.0", "50.0", "70.0", "55.0", "+5.0"]
    assert found["odd"] == ["", "90.0", "", "", "+40.0"]
    assert list(rows(write_results.networks_table(results))) == ["twice as long", "base", "odd"]


def test_an_ablation_on_one_drive_has_one_column(results: Results) -> None:
    outcome(results.folder, "small/base", "0016E5", 0.4)
    outcome(results.folder, "small/late", "0016E5", 0.43)
    # The other row has no such seed: it is not compared.
    outcome(results.folder, "small/base", "0016E5", 0.2, seed=1)
    told = json.loads((results.folder / ROWS).read_text())
    put(results.folder / ROWS, {**told, "third": {"study": "small", "base": "base", "labels": {}}})
    table = write_results.third_table(Results(folder=results.folder))
    assert table.splitlines()[0] == "| recipe | 0016E5 | difference |"
    assert rows(table) == {"base": ["30.0 ± 14.1", ""], "late": ["43.0", "+3.0"]}


def test_text_stays_and_tables_are_replaced(results: Results) -> None:
    page = "before\n<!-- begin: searches -->\nold | table\n<!-- end -->\nafter\n"
    text = write_results.filled(page, results)
    assert text.startswith("before\n<!-- begin: searches -->\n| search |")
    assert text.endswith("\n<!-- end -->\nafter\n")
    assert "| found | 1.5 | a GPU | 0 | `a \\| b` |" in text
    assert "old" not in text
    assert write_results.filled(text, results) == text
    with pytest.raises(KeyError):
        write_results.filled(page.replace("searches", "wishes"), results)


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Train a small network on train+val, with another one as its teacher."""
    monkeypatch.setattr(home, "SHIPPED", tmp_path / "weights")
    data = write_pairs(tmp_path / "data", ["0001TP_1", "0006R0_1"], range(11), split="train")
    write_pairs(data, ["0016E5_1"], range(11), split="val")
    context = Context(cache=tmp_path / "cache", device="cpu")
    settings = [
        "train_split=train+val",
        "val_split=null",
        "fit.steps=1",
        "fit.batch=2",
        "fit.ema=0.5",
        "reparameterise=true",
    ]
    for name, more in (
        ("teacher", []),
        ("run", [f"teacher={tmp_path / 'teacher' / 'weights'}", "fit.distill.kind=kl"]),
    ):
        usual = train_recipe("lpsnet-step0", f"camvid:{data}", crop=(6, 8), context=context)
        recipe = with_settings(usual, [*settings, *more])
        train(recipe, tmp_path / name, check=False, context=context)
    return tmp_path / "run"


def test_a_finished_training_is_shipped_with_figures_and_card(
    trained: Path, results: Results, tmp_path: Path
) -> None:
    folder = ship.ship(trained, NAME, {"row": "study/tiny"})
    page = tmp_path / "page.md"
    page.write_text("<!-- begin: main -->\n<!-- end -->\n")
    for path, text in write_results.pages(results, page).items():
        path.write_text(text)
    assert {file.name for file in folder.iterdir()} == {"model.json", "model.safetensors", "card.md"}
    model = segtailor.load(NAME)
    pixels = np.random.default_rng(0).integers(0, 256, (33, 47, 3), dtype=np.uint8)
    np.testing.assert_array_equal(model.predict(pixels), segtailor.load(trained / "weights").predict(pixels))
    assert model.provenance["recipe"]["teacher"] == "teacher"
    assert model.provenance["train_images"] == 3
    assert model.numbers["left_out_mean_miou"] == pytest.approx(0.2)
    assert model.numbers["val_miou"]["seeds"] == [0, 1, 2]
    written = (folder / "card.md").read_text()
    for part in (
        "CC BY-NC 4.0",
        "3 images",
        "| 60.0 ± 10.0 | 0, 1, 2 |",
        "| 20.0 | |",
        "12.3",
        "camvid:PATH?fold=0006R0",
    ):
        assert part in written
    assert str(tmp_path) not in written + (folder / "model.json").read_text()
    assert rows(page.read_text())[f"**{NAME}**"][2] == "20.0"


def test_a_card_lists_how_a_scored_training_differs(trained: Path, results: Results) -> None:
    outcome(
        results.folder,
        "study/more",
        "0006R0",
        0.25,
        settings=" --set fit.batch=2 fit.ema=0.25 'fit.betas=[0.8,0.9]'",
    )
    folder = ship.ship(trained, NAME, {"row": "study/tiny", "also": ["study/more"]})
    record = json.loads((folder / "model.json").read_text())
    text = write_results.card(NAME, record, Results(folder=results.folder))
    (apart,) = (line for line in text.splitlines() if line.startswith("`study/more` has "))
    assert "fit.ema 0.25 instead of 0.5" in apart
    assert "fit.betas [0.8, 0.9] instead of [0.9, 0.999]" in apart
    assert "fit.batch" not in apart
    assert "augment.crop [360, 480] instead of [6, 8]" in apart
    assert "| drive 0006R0, left out of train and val | 25.0 | 0 |" in text
    assert "| drive 0006R0, left out of train and val | 20.0 | 0 |" in text


def test_weights_that_are_too_large_are_halved_or_not_shipped(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = (ship.ship(trained, NAME, {"row": "study/tiny"}) / "model.safetensors").stat().st_size
    monkeypatch.setattr(ship, "DESCRIPTION_BYTES", 0)
    monkeypatch.setattr(ship, "MAX_BUNDLE_BYTES", whole - 1)
    folder = ship.ship(trained, NAME, {"row": "study/tiny"})
    assert json.loads((folder / "model.json").read_text())["precision"] == "fp16"
    monkeypatch.setattr(ship, "MAX_BUNDLE_BYTES", whole // 4)
    with pytest.raises(UserError, match="in half precision; at most"):
        ship.ship(trained, "camvid-too-large", {"row": "study/tiny"})
    assert home.shipped() == (NAME,)


def test_only_the_main_output_is_shipped() -> None:
    network = segtailor.create("fasterseg-student", classes=11, outputs="all", seed=2)
    pruned = ship.main_only(Model(network=network, task=camvid.TASK))
    assert set(pruned.plan.outputs) == {"main"}
    assert len(pruned.state_dict()) < len(network.state_dict())
    image = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(pruned(image), network(image), rtol=0, atol=0)
