"""Every verb and every search to its end without `--json`, from an empty folder, on a terminal and on a pipe."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

import segtailor
from segtailor.core.registry import SYSTEMS
from segtailor.spaces.inverted_residual.names import published_names
from tests.terminal import WHERE, Shown, Where, carried_out

DATA = "synthetic:size=64x128,train=8,val=2,seed=0"
AROUND = ("--cache", "cache", "--device", "cpu")
TRAINED = ("evaluator.fit.steps=1", "evaluator.fit.batch=2")
GRADIENT = tuple(
    f"strategy.{name}"
    for name in ("fit.steps=2", "fit.batch=2", "choice.samples=0", "choice.recalibrate=1", "choice.images=2")
)
ONE_SHOT = tuple(
    f"strategy.{name}" for name in ("fit.steps=1", "fit.batch=2", "choice.recalibrate=1", "choice.images=2")
)
STAGED = tuple(
    f"evaluator.{name}"
    for name in ("images=4", "stage1.epochs=1", "stage1.batch=2", "stage2.steps=1", "stage2.batch=2")
)
SMALLEST: dict[str, tuple[str, ...]] = {  # of every recipe: the least that still is a search
    "squeezenas": ("--set", *GRADIENT),
    "autortnet": ("--set", *GRADIENT),
    "fasterseg": ("--set", *GRADIENT, "strategy.pretraining.fit.steps=1"),
    "auxcells": ("--trials", "2", "--set", *STAGED),
    "dilated": ("--trials", "2", "--set", *TRAINED, "strategy.population=2"),
    "elastic": ("--trials", "2", "--set", *ONE_SHOT, "strategy.population=2"),
    "lpsnet": ("--steps", "1", "--set", *TRAINED, "evaluator.reparameterise=false"),
}
QUICK = ("auxcells", "autortnet", "dilated", "elastic", "lpsnet", "squeezenas")


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def search(name: str, where: Where, out: str = "run") -> Shown:
    return carried_out(["search", name, "--data", DATA, "--out", out, *AROUND, *SMALLEST[name]], where)


def test_the_list_of_recipes_is_whole() -> None:
    assert set(SYSTEMS.names()) == set(SMALLEST)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_search_ends_with_its_table_on_a_terminal_and_shows_it_again_on_a_pipe(name: str) -> None:
    shown = search(name, "terminal")
    assert shown.code == 0, shown.plain
    assert "\x1b[" in shown.text  # it was live
    again = search(name, "pipe")
    assert again.code == 0, again.plain
    assert "\x1b[" not in again.text
    for text in (shown.plain, again.plain):
        assert "next: segtailor train" in text
        assert "trials" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLEST)
@pytest.mark.parametrize("where", WHERE)
def test_every_search_ends_with_its_table(name: str, where: Where) -> None:
    shown = search(name, where)
    assert shown.code == 0, shown.plain
    assert "next: segtailor train" in shown.plain


@pytest.mark.slow
@pytest.mark.parametrize("where", WHERE)
def test_a_search_with_the_weights_of_another_can_be_resumed_and_reported(where: Where) -> None:
    assert search("squeezenas", where, "first").code == 0
    more = ("--strategy", "evolution", "--trials", "2", "--supernet", "first")
    short = ("--set", "strategy.population=2", "evaluator.recalibrate=1")
    words = ("search", "squeezenas", "--data", DATA, "--out", "second", *AROUND, *more, *short)
    for line in (
        words,
        ("resume", "second", *AROUND),
        ("resume", "first", *AROUND),
        ("report", "first", "second"),
    ):
        shown = carried_out(line, where)
        assert shown.code == 0, shown.plain


def published_checkpoint(file: Path) -> Path:
    """Write weights under the names of the released program."""
    network = segtailor.create("squeezenas-mac-small", classes=19)
    names = published_names(network, network.architecture)
    state = network.state_dict()
    torch.save({theirs: state[own] for own, several in names.names.items() for theirs in several}, file)
    return file


@pytest.mark.parametrize("where", WHERE)
def test_the_verbs_around_a_training_end(where: Where) -> None:
    Image.new("RGB", (128, 64)).save("a.png")
    small = ("--set", "fit.steps=1", "--batch", "2", "--crop", "64x128")
    target = ("--target", "cpu/eager/fp32?threads=1", "--image", "64x128", "--seconds", "0.01")
    lines: tuple[tuple[str, ...], ...] = (
        ("list", "recipes"),
        ("list", "weights"),
        ("show", "lpsnet-step0", "--image", "64x128", "--svg", "drawing.svg"),
        ("data", "check", DATA),
        ("data", "show", DATA, "--count", "2"),
        ("train", "lpsnet-step0", "--data", DATA, "--out", "run", *small, *AROUND),
        ("resume", "run", *AROUND),
        ("eval", "run/weights", "--data", DATA, *AROUND),
        ("predict", "run/weights", "a.png", "--out", "masks"),
        ("bench", "run/weights", "lpsnet-step0", *target),
        ("report", "run"),
    )
    for line in lines:
        shown = carried_out(line, where)
        assert shown.code == 0, (line, shown.plain)
        assert shown.plain.strip(), line
        assert "Traceback" not in shown.plain


@pytest.mark.slow
@pytest.mark.parametrize("where", WHERE)
def test_export_calibrate_and_import_end(where: Where) -> None:
    published_checkpoint(Path("mac_small.pth"))
    what = ("--space", "inverted_residual", "--target", "cpu/eager/fp32?threads=1", "--image", "32x64")
    lines: tuple[tuple[str, ...], ...] = (
        ("import", "mac_small.pth", "--as", "squeezenas-mac-small", "--out", "bundle"),
        ("export", "bundle", "--to", "onnx", "--image", "64x128", "--out", "exported"),
        ("calibrate", *what, "--minutes", "0.02", "--networks", "2", "--out", "pack.json"),
    )
    for line in lines:
        shown = carried_out(line, where)
        assert shown.code == 0, (line, shown.plain)
        assert shown.plain.strip(), line
