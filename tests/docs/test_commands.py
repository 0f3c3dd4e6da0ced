"""Commands on the pages work: every one parses, and those of README, home page and tutorial are run."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cyclopts import App, CycloptsError
from PIL import Image

import segtailor
from segtailor.data.synthetic import TASK
from segtailor.nets.bundle import Model, save_bundle
from segtailor.verbs.main import build, run
from tests.docs.markdown import ROOT, commands, python_blocks, written
from tests.scripts import load_script

README, HOME, TUTORIAL = ROOT / "README.md", ROOT / "docs" / "index.md", ROOT / "docs" / "tutorial.md"
RUN_PAGES = (README, HOME, TUTORIAL)
SCRIPTS = sorted((ROOT / "examples").rglob("*.sh"))
SURFACE = json.loads((ROOT / "tests" / "golden" / "cli.json").read_text(encoding="utf-8"))
BUNDLES = {HOME: "runs/first/weights", TUTORIAL: "runs/photos/stages/train/weights"}
HEAVY = {
    "tailor",
    "search",
    "train",
    "calibrate",
    "bench",
}  # measure or train, some even with --dry-run: slow tests
SEPARATE = {"eval", "resume"}  # need a finished training: a separate test


def verb(words: list[str]) -> str:
    return " ".join(words[1:3]) if words[1] == "data" else words[1]


def segtailor_commands(*pages: Path) -> list[list[str]]:
    return [words for page in pages for words in commands(page) if words[0] == "segtailor"]


@pytest.mark.parametrize("page", [*written(), *SCRIPTS], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_every_page_is_understood(page: Path) -> None:
    for words in segtailor_commands(page):
        assert understood(words[1:]), words


def understood(words: list[str]) -> bool:
    """Parse a command without running it; raise where it cannot be."""
    command, *_ = program().parse_args(words, exit_on_error=False, print_error=False)
    return callable(command)


@cache
def program() -> App:
    return build()


def test_the_home_page_has_a_command_of_every_verb() -> None:
    assert {verb(words) for words in segtailor_commands(HOME)} == set(SURFACE)
    assert {verb(words) for words in segtailor_commands(README)} == {"tailor", "predict"}
    assert len(segtailor_commands(TUTORIAL)) >= 5
    assert all(segtailor_commands(page) for page in (ROOT / "examples").rglob("README.md"))


def test_every_make_target_that_is_told_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    pages = [*written(), ROOT / "CONTRIBUTING.md"]
    asked = {words[1] for page in pages for words in commands(page) if words[0] == "make"}
    asked |= {
        name for page in pages for name in re.findall(r"`make ([\w-]+)", page.read_text(encoding="utf-8"))
    }
    assert {"quickstart", "test", "check", "docs"} <= asked
    assert asked <= targets


def test_every_program_that_is_told_exists() -> None:
    for page in written():
        for words in commands(page):
            if words[0] == "python" and words[1].startswith("examples/"):
                assert (ROOT / words[1]).is_file(), page
            if words[:2] == ["python", "-m"] and words[2].startswith("benchmarks."):
                assert (ROOT / f"{words[2].replace('.', '/')}.py").is_file(), page


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that the commands name, below PAGE; one image of the tutorial is damaged.

    Below `long/PAGE` there are images only: long commands write the bundles themselves.
    """
    folder = tmp_path_factory.mktemp("place")
    for page in RUN_PAGES:
        for photos in (folder / page.stem / "photos", folder / "long" / page.stem / "photos"):
            example("custom_set").make(photos, count=10)
            for file in photos.rglob("scene001.*") if page != TUTORIAL else ():
                file.unlink()
    network = segtailor.create("lpsnet-step0", classes=len(TASK.classes), seed=1)
    for page, bundle in BUNDLES.items():
        save_bundle(folder / page.stem / bundle, Model(network=network, task=TASK))
    return folder


def example(name: str) -> Any:
    """Import a script of the examples."""
    return load_script(ROOT / "examples" / f"{name}.py")


def carried_out(words: list[str], *, drawing: bool = False) -> int:
    """Run a command with `--dry-run` if it has this flag, unless `drawing` is set."""
    dry = ["--dry-run"] if "--dry-run" in SURFACE[verb(words)] and not drawing else []
    cache = ["--cache", "cache"] if "--cache" in SURFACE[verb(words)] else []
    short = ["--seconds", "0.01"] if verb(words) == "bench" else []
    asked = ["64x128" if short and word == "360x480" else word for word in words[1:]]
    return run([*asked, *dry, *cache, *short])


def on_run_pages(verbs: set[str]) -> list[object]:
    """Return the commands of some verbs on the pages whose commands are run, each with its page."""
    return [
        pytest.param(
            page,
            words,
            id=f"{page.stem}: {' '.join(words[1:4])}",
        )
        for page in RUN_PAGES
        for words in segtailor_commands(page)
        if verb(words) in verbs
    ]


@pytest.mark.parametrize(("page", "words"), on_run_pages(set(SURFACE) - HEAVY - SEPARATE))
def test_quick_commands_of_readme_home_page_and_tutorial_run(
    page: Path,
    words: list[str],
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(place / page.stem)
    damaged = page == TUTORIAL and verb(words) == "data check"
    code = carried_out(words)
    captured = capsys.readouterr()
    assert code == int(damaged), captured.err
    assert captured.out
    assert not damaged or "scene001" in captured.out


@pytest.mark.slow
@pytest.mark.parametrize(("page", "words"), on_run_pages({*HEAVY, "data show"}))
def test_long_commands_of_readme_home_page_and_tutorial_run(
    page: Path,
    words: list[str],
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(place / "long" / page.stem)
    code = carried_out(words, drawing=verb(words) == "data show")
    captured = capsys.readouterr()
    assert code == 0, captured.err
    assert captured.out or captured.err


@pytest.mark.slow
def test_training_scoring_and_resuming_work_as_on_the_home_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example("custom_set").make(tmp_path / "photos", count=10)
    for file in (tmp_path / "photos").rglob("scene001.*"):
        file.unlink()
    monkeypatch.chdir(tmp_path)
    for words in segtailor_commands(HOME):
        if verb(words) not in ("train", "eval", "resume") or "camvid:PATH" in words:
            continue  # CamVid is not in the repository
        small = {"200": "1", "16": "4", "lpsnet-s": "lpsnet-step0"}
        code = run([*(small.get(word, word) for word in words[1:]), "--cache", "cache", "--device", "cpu"])
        assert code == 0, capsys.readouterr().err


@pytest.mark.parametrize("page", RUN_PAGES, ids=lambda page: page.stem)
def test_the_python_of_readme_home_page_and_tutorial_runs(
    page: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place / page.stem)
    image = Image.fromarray(np.zeros((64, 96, 3), dtype=np.uint8))
    names: dict[str, object] = {"image": image}
    blocks = python_blocks(page)
    assert blocks
    for block in blocks:
        exec(block, names)
    assert np.shape(names["labels"]) == (64, 96)


def test_a_command_that_is_wrong_would_be_noticed() -> None:
    with pytest.raises(CycloptsError, match="--outt"):
        understood(["train", "lpsnet-s", "--data", "synthetic", "--out", "x", "--outt", "y"])
