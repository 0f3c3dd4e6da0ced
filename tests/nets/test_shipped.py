"""Weights that come with the package: usable by name wherever a model is asked for, small, safe and described."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import segtailor
from segtailor.core import shipped as home
from segtailor.core.errors import UserError
from segtailor.core.shipped import CARD, SHIPPED, shipped
from segtailor.data import camvid
from segtailor.nets.bundle import Model, save_bundle
from segtailor.nets.teacher import load_members
from segtailor.recipes.recipe import with_settings
from segtailor.recipes.train import train_recipe
from segtailor.runs import Context
from segtailor.spaces.networks import describe
from segtailor.targets.timing import TimingSettings
from segtailor.verbs.bench import bench
from segtailor.verbs.main import run
from segtailor.verbs.serve import demonstrate
from tests.data.trees import write_pairs

NAME = "camvid-made-up"
LIMIT = 16_000_000  # bytes of one bundle


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let one small network be shipped, and nothing else."""
    monkeypatch.setattr(home, "SHIPPED", tmp_path / "weights")
    model = Model(
        network=segtailor.create("lpsnet-step0", classes=11, seed=3),
        task=camvid.TASK,
        provenance={"data": "camvid:PATH", "train_split": "train+val", "image": [360, 480]},
        numbers={"val_miou": 0.5},
    )
    save_bundle(tmp_path / "weights" / NAME, model, precision="fp16")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    code = run([str(word) for word in words])
    return code, *capsys.readouterr()


def test_shipped_weights_are_listed_and_shown(made_up: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(said(capsys, "list", "weights", "--json")[1]) == [NAME]
    assert "trained on camvid:PATH" in said(capsys, "list", "weights")[1]
    facts = json.loads(said(capsys, "show", NAME, "--image", "360x480", "--json")[1])
    assert (facts["classes"], facts["published"]) == (11, {"val_miou": 0.5})
    assert facts["params"] == segtailor.count("lpsnet-step0", classes=11).params
    assert "val_miou" in said(capsys, "show", NAME)[1]


@pytest.mark.parametrize("words", [["--model", NAME, "a.png"], [NAME, "a.png"], ["a.png", "--model", NAME]])
def test_predict_takes_the_name_as_a_flag_or_in_its_place(
    words: list[str], made_up: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (47, 33)).save(made_up / "a.png")
    code, _, errors = said(capsys, "predict", *words, "--out", "masks")
    assert code == 0, errors
    assert Image.open(made_up / "masks" / "a.png").size == (47, 33)


def test_scores_by_name_say_what_was_seen(made_up: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pairs(made_up / "data", ["0001TP_1"], range(11), split="train")
    write_pairs(made_up / "data", ["0016E5_1"], range(11), split="val")
    words = ["eval", "--model", NAME, "--data", f"camvid:{made_up / 'data'}", "--cache", made_up / "cache"]
    code, text, _ = said(capsys, *words, "--device", "cpu", "--json")
    assert code == 0
    (warning,) = json.loads(text)["warnings"]
    assert "has seen" in warning


def test_an_export_leaves_the_package_alone(made_up: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = said(capsys, "export", NAME, "--dry-run")
    assert code == 1
    assert "--out FOLDER" in errors
    facts = json.loads(said(capsys, "export", NAME, "--out", "exported", "--dry-run", "--json")[1])
    assert facts == {"files": ["exported/model.onnx"], "image": [360, 480]}


def test_shipped_weights_can_be_timed_shown_at_work_and_learnt_from(made_up: Path) -> None:
    (row,) = bench([NAME], ["cpu/eager/fp32"], image=(32, 64), settings=TimingSettings(seconds=0.01))
    assert row.network == NAME
    assert f"segtailor export {NAME} --out FOLDER" in str(demonstrate(NAME).note)
    (folder,) = load_members(Path(NAME))
    assert folder == made_up / "weights" / NAME
    write_pairs(made_up / "data", ["0001TP_1", "0016E5_1"], range(11), split="train")
    context = Context(folder=made_up / "run", cache=made_up / "cache", device="cpu")
    usual = train_recipe(NAME, f"camvid:{made_up / 'data'}", crop=(6, 8), context=context)
    changes = [f"teacher={NAME}", f"start={NAME}", "fit.distill.kind=kl", "fit.batch=2"]
    fit = with_settings(usual, changes).job(context).fit
    assert fit.teacher is not None
    ours, theirs = fit.network.state_dict(), fit.teacher.state_dict()
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def test_a_folder_of_the_same_name_comes_first_and_unknown_names_list_what_is_shipped(made_up: Path) -> None:
    network = segtailor.create("lpsnet-step1", classes=11)
    save_bundle(made_up / NAME, Model(network=network, task=camvid.TASK))
    assert segtailor.load(NAME).architecture == network.architecture
    with pytest.raises(UserError, match=f"shipped model is called 'zzz'; known: {NAME}"):
        segtailor.load("zzz")


@pytest.mark.parametrize("name", shipped())
def test_what_is_shipped_is_small_safe_described_and_works(name: str) -> None:
    folder = SHIPPED / name
    files = {file.name: file.stat().st_size for file in folder.iterdir()}
    assert set(files) == {"model.json", "model.safetensors", CARD}
    assert sum(files.values()) <= LIMIT
    model = segtailor.load(name)
    assert model.task == camvid.TASK
    pixels = np.random.default_rng(0).integers(0, 256, (75, 101, 3), dtype=np.uint8)
    labels = model.predict(pixels)
    assert (labels.shape, labels.dtype) == ((75, 101), np.uint8)
    assert labels.max() < 11
    built = sum(value.numel() for value in model.network.parameters())
    assert built >= describe(name)["params"] == model.network.plan.params()
    text = (folder / "model.json").read_text() + (folder / CARD).read_text()
    assert "/work" not in text
    assert "/tmp" not in text
    assert "CC BY-NC 4.0" in (folder / CARD).read_text()
