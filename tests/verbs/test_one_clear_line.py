"""What is wrong with files and flags from outside ends in one clear line: exit code 1, no traceback."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from segtailor.predicting.video import movie
from segtailor.verbs.main import run
from tests.data.trees import write_pairs
from tests.predicting.models import save_small_bundle
from tests.terminal import carried_out

DATA = "synthetic:size=64x128,train=8,val=2,seed=0"
AROUND = ("--cache", "cache", "--device", "cpu")
TRAIN = ("train", "lpsnet-step0", "--data", DATA, "--out", "new", *AROUND, "--set", "fit.steps=1")
SEARCH = ("search", "lpsnet", "--data", DATA, "--out", "new", *AROUND)
BENCH = ("bench", "lpsnet-step0", "--target", "cpu/eager/fp32", "--image", "64x64")
CALIBRATE = ("calibrate", "--space", "scalable_path", "--target", "cpu/eager/fp32", "--image", "64x64")
TAILOR = ("tailor", "--data", DATA, "--budget", "30fps", *AROUND)
HUGE = "100000000000000000000000"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Run a command that must end with one line on stderr; return it."""
    code = run([str(word) for word in words])
    captured = capsys.readouterr()
    assert code == 1, captured.err
    lines = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, captured.err
    assert "Traceback" not in captured.err
    return lines[0]


FLAGS = [
    (*TRAIN, "--seed", HUGE),
    (*TRAIN, "--seed", "-1"),
    (*TRAIN, "--seed", "1.5"),
    (*TRAIN, "--epochs", "0"),
    (*TRAIN, "--epochs", HUGE),
    (*TRAIN, "--batch", "-7"),
    (*TRAIN, "--lr", "nan"),
    (*TRAIN, "--lr", "1e400"),
    (*TRAIN, "--lr", "-1"),
    (*SEARCH, "--seed", HUGE),
    (*SEARCH, "--seed", "-1"),
    (*SEARCH, "--workers", HUGE),
    (*SEARCH, "--workers", "0"),
    (*SEARCH, "--steps", "-3"),
    (*SEARCH, "--trials", HUGE),
    (*TAILOR, "--seed", HUGE),
    (*TAILOR, "--seed", "-1"),
    (*TAILOR, "--time", "-5m"),
    (*BENCH, "--seconds", "nan"),
    (*BENCH, "--seconds", "-1"),
    (*BENCH, "--classes", "0"),
    (*CALIBRATE, "--minutes", "-1"),
    (*CALIBRATE, "--networks", "-1"),
    (*CALIBRATE, "--classes", HUGE),
    (*CALIBRATE, "--seed", "-1"),
    ("show", "lpsnet-s", "--classes", "-3"),
    ("data", "show", DATA, "--seed", HUGE),
    ("data", "show", DATA, "--count", "0"),
    ("data", "check", DATA, "--limit", "-1"),
    ("predict", "camvid-fast", "a.png", "--frames", "0"),
    ("serve", "camvid-fast", "--port", "99999999"),
    ("eval", "camvid-fast", "--data", DATA, "--batch", "0"),
]


@pytest.mark.parametrize("words", FLAGS, ids=lambda words: " ".join((words[0], *words[-2:])))
def test_a_number_out_of_range_names_its_flag(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, *words)
    assert words[-2] in line
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((*TRAIN, "--set", "fit.seed=-5"), "seed"),
        ((*TRAIN, "--set", f"fit.seed={HUGE}"), "seed"),
        ((*TRAIN, "--crop", "30000x30000"), "crop"),
        ((*TRAIN, "--crop", "99999x99999"), "99999x99999"),
        ((*TRAIN, "--set", "augment.crop=[1000000000000,1000000000000]"), "augment.crop"),
        ((*TRAIN, "--set", "preprocessing.std=[0,1,1]"), "std above zero"),
        ((*SEARCH, "--set", "seed=-1"), "seed"),
        ((*SEARCH, "--set", "executor.workers=100000", "executor.kind=processes"), "workers"),
        ((*SEARCH, "--budget", "-5M"), "budget '-5M' is not above zero"),
        ((*SEARCH, "--budget", "0"), "budget '0' is not above zero"),
        ((*SEARCH, "--image", "99999x99999"), "99999x99999"),
        ((*SEARCH, "--target", "cpu/eager/fp32", "--budget", "-5ms"), "not above zero"),
        ((*BENCH, "--budget", "-60fps"), "not above zero"),
        (("data", "check", f"synthetic:seed={HUGE}", "--limit", "x"), "--limit"),
        (("train", "lpsnet-s", "--data", f"synthetic:seed={HUGE}", "--out", "new"), "seed"),
        (("train", "lpsnet-s", "--data", f"synthetic:train={HUGE}", "--out", "new"), "train="),
        (("show", "camvid-fas"), "did you mean 'camvid-fast'"),
        (("eval", "camvid-fas", "--data", DATA), "did you mean 'camvid-fast'"),
        (("bench", "camvid-fas"), "did you mean 'camvid-fast'"),
        (("import", "a.pth", "--as", "squeezenas-mac-smal", "--out", "b"), "squeezenas-mac-small"),
    ],
)
def test_settings_and_names_blame_the_right_thing(
    words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told in refused(capsys, *words)


@pytest.mark.parametrize("kind", ["file", "foreign", "nowhere", "below a file", "read-only"])
def test_tailor_refuses_a_bad_folder_before_it_works(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("mine")
    Path("foreign").mkdir()
    Path("foreign/thesis.tex").write_text("mine")
    Path("locked").mkdir(mode=0o500)
    places = {
        "file": "file",
        "foreign": "foreign",
        "nowhere": "/proc/nowhere",
        "below a file": "file/run",
        "read-only": "locked",
    }
    if kind == "read-only" and os.access("locked", os.W_OK):
        pytest.skip("this user may write anywhere")
    line = refused(capsys, *TAILOR, "--out", places[kind])
    assert places[kind] in line
    assert not Path("cache").exists()  # nothing was looked at yet
    assert Path("file").read_text() == Path("foreign/thesis.tex").read_text() == "mine"


@pytest.mark.parametrize(
    "content",
    [
        '{"road": [1, 2]}',
        '{"road": [1, 2, null]}',
        '{"road": "red"}',
        '{"road": [1, 2, NaN]}',
        '{"road": [1, 2, 1e400]}',
        f'{{"road": [1, 2, {"9" * 50}]}}',
        '{"\\ud800": [1, 2, 3]}',
        '{"road": [1, 2, 3], "car": [1, 2, 3]}',
        "[]",
        "7",
        "[[[[",
        "\x00\x01",
    ],
)
def test_a_damaged_palette_is_named(content: str, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_pairs(Path("photos"), [f"n{number}" for number in range(6)])
    (root / "palette.json").write_text(content)
    assert run(["data", "check", "folder:photos", "--json"]) == 1
    captured = capsys.readouterr()
    found = json.loads(captured.out)["findings"]
    blamed = [one for one in found if "palette.json" in one["message"]]
    assert blamed, found
    assert not [one for one in found if one["kind"] == "id-out-of-range"]
    assert "palette.json" in refused(
        capsys, "train", "lpsnet-s", "--data", "folder:photos", "--out", "r", *AROUND
    )


def changed(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda facts: facts["preprocessing"].update(std=[0.0, 1.0, 1.0]), "std above zero"),
        (lambda facts: facts["preprocessing"].update(std=[-1.0, 1.0, 1.0]), "std above zero"),
        (lambda facts: facts["preprocessing"].update(mean=[float("nan"), 0.0, 0.0]), "preprocessing"),
        (lambda facts: facts["preprocessing"].update(mean=[float("inf"), 0.0, 0.0]), "preprocessing"),
        (lambda facts: facts.update(preprocessing=None), "preprocessing"),
        (lambda facts: facts.update(provenance=[1]), "provenance"),
        (lambda facts: facts.update(provenance="mine"), "provenance"),
        (lambda facts: facts.update(numbers=7), "numbers"),
        (lambda facts: facts.update(outputs={"main": 1}), "outputs"),
        (lambda facts: facts["task"].update(classes=["\ud800", "b", "c"]), "half a character"),
        (lambda facts: facts["task"].update(classes=["a", "a"]), "same name"),
        (lambda facts: facts.pop("task"), "task"),
    ],
)
def test_a_damaged_bundle_is_refused(
    change: Callable[[dict[str, Any]], object], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = save_small_bundle(Path("bundle"))
    Image.new("RGB", (48, 40)).save("a.png")
    changed(bundle / "model.json", change)
    for words in (
        ("predict", bundle, "a.png", "--out", "o"),
        ("eval", bundle, "--data", DATA),
        ("export", bundle),
    ):
        line = refused(capsys, *words)
        assert told in line
        assert "bundle" in line


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch was-run",)


@pytest.mark.parametrize("form", ["torch", "older torch", "pickle"])
def test_a_refused_pickle_is_refused_in_our_words(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    if form == "pickle":
        Path("weights.pth").write_bytes(pickle.dumps({"a": Evil()}))
    else:
        torch.save({"a": Evil()}, "weights.pth", _use_new_zipfile_serialization=form == "torch")
    line = refused(capsys, "import", "weights.pth", "--as", "squeezenas-mac-small", "--out", "b")
    assert "Nothing in it was run" in line
    for advice in ("weights_only", "safe_globals", "torch.load", "Re-running"):
        assert advice not in line
    assert not Path("was-run").exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a finished training and a finished search."""
    folder = tmp_path_factory.mktemp("finished")
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert run([*train("run")]) == 0
        assert run([*search("search")]) == 0
    finally:
        os.chdir(before)
    return folder


def train(out: str) -> tuple[str, ...]:
    return (
        "train",
        "lpsnet-step0",
        "--data",
        DATA,
        "--out",
        out,
        *AROUND,
        "--set",
        "fit.steps=2",
        "--batch",
        "2",
    )


def search(out: str) -> tuple[str, ...]:
    small = ("evaluator.fit.steps=1", "evaluator.fit.batch=2", "evaluator.reparameterise=false")
    return ("search", "lpsnet", "--data", DATA, "--out", out, *AROUND, "--steps", "1", "--set", *small)


BAD: tuple[Any, ...] = (None, -1, 10**23, float("nan"), "\ud800", "x", [], {}, True, [None], {"a": [None]})
KEPT = ("recipe.json", "result.json", "environment.json", "journal.jsonl")


def spoilt(document: Any, rng: random.Random) -> Any:
    """Return a document in which something, somewhere, is something else or gone."""
    if not isinstance(document, dict | list) or not document or rng.random() < 0.15:
        return rng.choice(BAD)
    if isinstance(document, list):
        at = rng.randrange(len(document))
        return [*document[:at], spoilt(document[at], rng), *document[at + 1 :]]
    key = rng.choice(sorted(document))
    rest = {name: value for name, value in document.items() if name != key}
    return rest if rng.random() < 0.2 else {**document, key: spoilt(document[key], rng)}


def spoil(file: Path, rng: random.Random) -> None:
    if file.suffix == ".json":
        file.write_text(json.dumps(spoilt(json.loads(file.read_text()), rng)))
        return
    lines = file.read_text().splitlines()
    at = rng.randrange(len(lines))
    lines[at] = json.dumps(spoilt(json.loads(lines[at]), rng))
    file.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("value", [None, 3, "x", [], {}])
def test_a_recipe_without_an_architecture_is_told(
    value: Any, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished / "run", "victim")
    Path("victim/result.json").unlink()
    recipe = json.loads(Path("victim/recipe.json").read_text())
    Path("victim/recipe.json").write_text(json.dumps({**recipe, "architecture": value}))
    assert run(["resume", "victim", *AROUND]) == 1
    assert "architecture" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["run", "search"])
@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("ended", [True, False], ids=["ended", "unfinished"])
def test_spoilt_files_of_a_run_never_end_in_a_traceback(
    kind: str, name: str, ended: bool, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "result.json" and not ended:
        pytest.skip("an unfinished run has no result")
    shutil.copytree(finished / "cache", "cache")
    again = train("victim") if kind == "run" else search("victim")
    for seed in range(25):
        shutil.rmtree("victim", ignore_errors=True)
        shutil.copytree(finished / kind, "victim")
        if not ended:
            Path("victim/result.json").unlink()
        spoil(Path("victim") / name, random.Random(seed))
        for words in (
            ("report", "victim"),
            again,
            ("resume", "victim", *AROUND),
            ("resume", "victim", *AROUND, "--json"),
        ):
            code = run(list(words))
            captured = capsys.readouterr()
            assert code in (0, 1), (seed, words, captured.err)


@pytest.mark.parametrize("content", ["7", "[]", "{", '{"trials": 3}', '{"model": null, "cost": {}}'])
@pytest.mark.parametrize("kind", ["run", "search"])
def test_a_damaged_result_is_told_by_whoever_shows_it(
    kind: str, content: str, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished / "cache", "cache")
    shutil.copytree(finished / kind, kind)
    (Path(kind) / "result.json").write_text(content)
    line = refused(capsys, *(train(kind) if kind == "run" else search(kind)))
    assert "result" in line


def test_a_foreign_checkpoint_is_told(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(finished / "cache", "cache")
    shutil.copytree(finished / "run", "run")
    Path("run/result.json").unlink()
    (newest,) = sorted(Path("run/checkpoints").iterdir())[-1:]
    for file in newest.iterdir():
        file.unlink()
    (newest / "state.json").write_text("{}")
    digest = {"bytes": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}
    manifest = {"format": 1, "step": int(newest.name[5:]), "files": {"state.json": digest}}
    (newest / "manifest.json").write_text(json.dumps(manifest))
    line = refused(capsys, "resume", "run", *AROUND)
    assert newest.name in line


def test_a_video_of_unknown_coding_is_one_failed_record(capsys: pytest.CaptureFixture[str]) -> None:
    bundle = save_small_bundle(Path("bundle"))
    Image.new("RGB", (48, 40)).save("a.png")
    with movie(Path("b.mp4"), Fraction(25)) as add:
        for number in range(3):
            add(Image.new("RGB", (48, 40), (number, 0, 0)), number / 25)
    content = Path("b.mp4").read_bytes()
    Path("c.mp4").write_bytes(content.replace(b"avc1", b"zzzz").replace(b"mp4v", b"zzzz"))
    assert run(["predict", str(bundle), "c.mp4", "a.png", "b.mp4", "--out", "o", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [one["input"] for one in found["failures"]] == ["c.mp4"]
    assert len(found["results"]) == 2


@pytest.mark.slow
def test_scrambled_onnx_files_are_refused_or_used(capsys: pytest.CaptureFixture[str]) -> None:
    bundle = save_small_bundle(Path("bundle"))
    assert run(["export", str(bundle), "--image", "64x64", "--out", "exported"]) == 0
    Image.new("RGB", (48, 40)).save("a.png")
    whole = Path("exported/model.onnx").read_bytes()
    rng = np.random.default_rng(0)
    for number in range(40):
        content = bytearray(whole[: rng.integers(0, len(whole))] if number % 2 else whole)
        for place in rng.integers(0, max(len(content), 1), 8 if content else 0):
            content[place] = rng.integers(0, 256)
        Path("broken.onnx").write_bytes(content)
        for words in (
            ["predict", "broken.onnx", "a.png", "--out", "o"],
            ["eval", "broken.onnx", "--data", DATA, *AROUND],
        ):
            code = run(words)
            assert code in (0, 1), (number, capsys.readouterr().err)
    capsys.readouterr()


def test_names_that_are_no_text_are_borne(capsys: pytest.CaptureFixture[str]) -> None:
    write_pairs(Path("photos"), [f"n{number}" for number in range(6)])
    odd = Path("photos", "images", os.fsdecode(b"n\xfe.png"))
    try:
        Path("photos", "images", "n0.png").rename(odd)
    except OSError:
        pytest.skip("this file system takes only text as names")
    assert run(["data", "check", "folder:photos", "--json"]) == 1
    kinds = {one["kind"] for one in json.loads(capsys.readouterr().out)["findings"]}
    assert "unpaired" in kinds
    Path("photos", "masks", "n0.png").rename(Path("photos", "masks", odd.name))
    assert run(["data", "check", "folder:photos", "--json"]) == 0, capsys.readouterr().out
    capsys.readouterr()
    for words in (("data", "show", "folder:photos?val=0"), ("data", "check", "folder:photos")):
        shown = carried_out(words, "pipe")
        assert shown.code in (0, 1), shown.plain
        assert "Traceback" not in shown.plain
    Path("photos").rename(os.fsdecode(b"photos-\xff"))
    place = os.fsdecode(b"folder:photos-\xff")
    assert run(["data", "check", place, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"]
