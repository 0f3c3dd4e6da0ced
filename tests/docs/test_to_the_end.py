"""Every command of every page, with the smallest settings and without `--json`, runs to its end in an empty folder."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from PIL import Image

from tests.data.trees import write_image, write_mask
from tests.docs.markdown import ROOT, commands, written
from tests.predicting.models import save_small_bundle
from tests.scripts import load_script
from tests.terminal import WHERE, Where, carried_out
from tests.verbs.test_to_the_end import SMALLEST, published_checkpoint

SIZE = (64, 96)
SMALL = "size=64x96,train=8,val=2,seed=0"
SHRUNK = {"--image": "64x96", "--crop": "64x96"}
LEFT_OUT = {  # flags that make a run long, need a device, or are among the smallest settings
    "search": ("--scale", "--pack", "--workers", "--seed", "--steps", "--trials"),
    "train": ("--epochs", "--precision", "--lr", "--optimiser", "--batch", "--crop"),
    "calibrate": ("--minutes",),
}
ELSEWHERE = ("ray", "cuda/", "results.json", "--bundle")  # a cluster, a GPU, a board
DRY = ("tailor", "serve")  # takes minutes and has its own tests; runs until it is stopped
PAGES = [page for page in written() if any(words[0] == "segtailor" for words in commands(page))]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the files that a reader has: photos, published datasets, weights, images."""
    monkeypatch.chdir(tmp_path)
    load_script(ROOT / "examples" / "custom_set.py").make(tmp_path / "photos", count=10)
    for file in (tmp_path / "photos").rglob("scene001.*"):
        file.unlink()
    for drive in ("0001TP", "0006R0", "0016E5", "Seq05VD"):
        for number in range(4):
            for split in ("train", "val", "test"):
                name = f"{drive}_{number}_{split}.png"
                write_image(tmp_path / "PATH" / "images" / split / name, SIZE)
                write_mask(tmp_path / "PATH" / "masks" / split / name, range(11), SIZE)
                (tmp_path / "PATH" / split).mkdir(exist_ok=True)
                write_image(tmp_path / "PATH" / split / name, SIZE)
    for split in ("train", "val"):
        for number in range(6):
            left = tmp_path / "PATH" / "leftImg8bit" / split / "ulm" / f"{split}{number}_leftImg8bit.png"
            write_image(left, SIZE)
            right = tmp_path / "PATH" / "gtFine" / split / "ulm" / f"{split}{number}_gtFine_labelIds.png"
            write_mask(right, range(34), SIZE)
            write_image(tmp_path / "PATH" / "JPEGImages" / f"{split}{number}.jpg", SIZE)
            write_mask(tmp_path / "PATH" / "SegmentationClass" / f"{split}{number}.png", range(21), SIZE)
        lists = tmp_path / "PATH" / "ImageSets" / "Segmentation"
        lists.mkdir(parents=True, exist_ok=True)
        (lists / f"{split}.txt").write_text("\n".join(f"{split}{number}" for number in range(6)))
    published_checkpoint(tmp_path / "mac_small.pth")
    write_image(tmp_path / "more_photos" / "a.png", SIZE)
    for name in ("street.jpg", "person.jpg"):
        Image.new("RGB", (96, 64)).save(tmp_path / name)
    return tmp_path


def shrunk(words: list[str]) -> list[str]:
    """Return a command with the smallest settings."""
    verb, found = words[1], []
    skipping = False
    for before, word in pairwise(words):
        if skipping or word in LEFT_OUT.get(verb, ()):
            skipping = not skipping
            continue
        if before == "--budget" and word.endswith(("ms", "fps")):
            word = "100000ms" if verb == "bench" or "--target" in words else "1TMACs"
        found.append(SHRUNK.get(before, _data(word)))
    return [_existing(word) for word in [*found, *_more(found)]]


def _data(word: str) -> str:
    """Use a small dataset, without damaged images to skip and without a teacher."""
    word = "retries=2" if word.startswith("evaluator.teacher=") else word.split("?skip=")[0]
    if not word.startswith("synthetic"):
        return word
    task = next((f"{part}," for part in word.split(":")[-1].split(",") if part.startswith("task=")), "")
    return f"synthetic:{task}{SMALL.removeprefix('size=64x96,') if 'pose' in task else SMALL}"


def _more(words: list[str]) -> list[str]:
    verb = words[0]
    around = ["--cache", "cache", "--device", "cpu"]
    if verb == "search":
        fewest = _smallest_evolution(words) if "--strategy" in words else [*SMALLEST[words[1]]]
        timed = ["--set", "cost.seconds=0.01"] if "--target" in words else []
        return [*fewest, *timed, *around]
    if verb == "train":
        settings = [] if "--recipe" in words else ["--set", "fit.steps=1", "--batch", "2", "--crop", "64x96"]
        if "synthetic:task=pose" in " ".join(words):
            settings = ["--set", "fit.steps=1", "--batch", "2"]
        return [*settings, *around]
    if words[:2] in (["data", "suggest"], ["data", "curve"]):
        return ["--steps", "1", "--network", "lpsnet-step0", *around]
    return {
        "bench": ["--seconds", "0.01"],
        "calibrate": ["--minutes", "0.02", "--networks", "2"],
        "eval": around,
        "resume": around,
        "export": [] if "--image" in words else ["--image", "64x96"],
    }.get(verb, ["--dry-run"] if verb in DRY else [])


def _smallest_evolution(words: list[str]) -> list[str]:
    """Return the smallest settings of a search by evolution."""
    training = ("evaluator.fit.steps=1", "evaluator.fit.batch=2", "evaluator.reparameterise=false")
    judging = ("evaluator.recalibrate=1",) if "--supernet" in words else training
    return ["--trials", "2", "--set", "strategy.population=2", *judging]


def _existing(word: str) -> str:
    """Replace FINGERPRINT, TEACHER and STUDENT by an existing file."""
    path = Path(word)
    if path.stem not in ("FINGERPRINT", "TEACHER", "STUDENT"):
        return word
    return str(
        next(file for file in sorted(path.parent.glob("*.json")) if not file.name.endswith(".plan.json"))
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_runs_to_its_end(page: Path, where: Where, place: Path) -> None:
    done = 0
    for words in commands(page):
        if words[0] != "segtailor" or any(mark in word for word in words for mark in ELSEWHERE):
            continue
        line = shrunk(words)
        if words[1] in ("search", "train"):  # pages use one folder for several commands
            at = line.index("--out") + 1
            line[at] += f"-{done}" if Path(line[at]).exists() else ""
        if words[1] == "calibrate" and page.is_relative_to(ROOT / "examples"):
            line.append("--dry-run")  # five spaces, minutes each; that of the home page runs to its end
        if words[1] in ("predict", "serve") and not Path(line[1]).exists() and line[1].startswith("runs/"):
            save_small_bundle(Path(line[1]))  # its tailoring ran with --dry-run only
        shown = carried_out(line, where)
        assert shown.code == 0, (line, shown.plain[-3000:])
        assert "Traceback" not in shown.plain
        done += 1
    assert done or page.parent.name in ("ray", "board")
