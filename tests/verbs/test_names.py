"""Every verb with names that hold markup, escape sequences, line breaks and other bytes than UTF-8."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from xml.dom import minidom

import numpy as np
import pytest
import yaml
from PIL import Image
from rich.console import Console

from segtailor.core.errors import DataProblem
from segtailor.core.job import Step
from segtailor.core.space import architecture_document
from segtailor.core.text import visible
from segtailor.data.dataset import Finding
from segtailor.data.doctor import Diagnosis
from segtailor.data.folder import Folder
from segtailor.data.sheet import contact_sheet
from segtailor.runs import Lines, Terminal
from segtailor.spaces.networks import resolve
from segtailor.verbs.main import run
from segtailor.verbs.output import Printer

CLASSES = ("road [wet]", "[/x]", "esc\x1b[31mred", "two\nlines", ":car: \u202e'\"<b>&", "c1\x01\x9b")
FILES = (b"a b", b"[red]", b"es\x1b[31mc\x07", b"new\nline", b"bad\xff\xfe", b":car:", b"q'uo\"tes", b"-dash")
FOLDER = "da ta\n[b]\x1b[1m'"


def write_pictures(root: Path) -> Path:
    """Write a dataset whose files, classes and folder all have such names; half of each mask is one class."""
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for index, name in enumerate(FILES):
            mask = np.full((64, 64), index % len(CLASSES), dtype=np.uint8)
            mask[:32] = rng.integers(0, len(CLASSES), (32, 64))
            parts = {"images": rng.integers(0, 256, (64, 64, 3), dtype=np.uint8), "masks": mask}
            for part, pixels in parts.items():
                folder = root / part / split
                folder.mkdir(parents=True, exist_ok=True)
                stream = io.BytesIO()
                Image.fromarray(pixels).save(stream, "PNG")
                (folder / f"{os.fsdecode(name)}{split}.png").write_bytes(stream.getvalue())
    (root / "classes.yaml").write_text(yaml.safe_dump({"classes": list(CLASSES)}), encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("data") / FOLDER)


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = run([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def harmless(text: str) -> bool:
    return visible(text, lines=True) == text


def test_tables_show_names_in_brackets_and_colons_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    Printer().table("[/title]", ["[a]", ">[/b]"], [[name, "[red]1[/red]"] for name in CLASSES])
    out = capsys.readouterr().out
    assert harmless(out)
    for name in ("[/title]", "[a]", "[/b]", "[red]1[/red]", *CLASSES):
        assert visible(name) in out
    assert len(out.splitlines()) == 2 + len(CLASSES)


def test_a_line_with_a_name_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for name in CLASSES:
        Printer().say(f"wrote {name}")
        assert capsys.readouterr().out == f"wrote {visible(name)}\n"


def test_documents_for_people_are_valid_json_without_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    facts = {name: [1, {"Straße": name}] for name in (*CLASSES, "non\udcff")}
    Printer().document(facts)
    out = capsys.readouterr().out
    assert harmless(out)
    assert "Straße" in out
    assert json.loads(out) == facts


def test_data_check_and_show_take_such_a_dataset(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, "data", "check", f"folder:{data}")
    assert code == 0
    assert harmless(out + err)
    assert visible(str(data)) in out
    code, out, _ = call(capsys, "data", "check", f"folder:{data}", "--json")
    assert tuple(json.loads(out)["splits"]["val"]["shares"]) == CLASSES
    code, out, err = call(capsys, "data", "show", f"folder:{data}", "--out", tmp_path / "[/x]\n.png")
    assert (code, err) == (0, "")
    assert out.endswith("[/x]\\n.png\n")


def test_errors_are_one_harmless_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "no\x1b[31m such\n[/x]\udcff"
    for words in (
        ["eval", name, "--data", name],
        ["data", "check", name, "--limit", name],
        [name],
        ["show", name],
        ["report", name],
        ["resume", name],
        ["predict", name, name],
        ["export", name],
        ["train", "fast-scnn", "--data", f"folder:{name}", "--out", tmp_path / "x"],
        ["train", name, "--data", "synthetic", "--out", tmp_path / "x"],
        ["search", name, "--data", "synthetic", "--out", tmp_path / "x"],
        ["bench", name],
        ["serve", name],
        ["import", name, "--as", name, "--out", tmp_path / "x"],
    ):
        code, out, err = call(capsys, *words)
        assert (code, out) == (1, ""), words
        assert harmless(err), err
        assert len(err.splitlines()) == 1, err
        assert "Traceback" not in err


def test_the_errors_of_a_dataset_are_a_list_with_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    finding = Finding(severity="error", kind="unpaired", file="a\nb\x1b", message="no mask", fix="Add one.")
    with pytest.raises(DataProblem) as raised:
        Diagnosis(findings=(finding, finding)).raise_for_errors()
    assert len(raised.value.lines) == 3


def test_progress_shows_names_as_text() -> None:
    step = Step(
        phase="[/x]\x1b[31m\n", done=1, total=2, metrics={"iou [wet]\x1b": 0.5}, message="m\x1b\n:car:"
    )
    stream, screen = io.StringIO(), io.StringIO()
    plain = Lines(stream)
    live = Terminal(Console(file=screen, force_terminal=True, color_system=None, width=200, height=40))
    for display in (plain, live):
        display.open("run r\n[/x]\x1b[1m")
        display.step(step)
        display.close()
    assert harmless(stream.getvalue())
    for written in (stream.getvalue(), screen.getvalue()):
        for name in (r"run r\n[/x]\x1b[1m", r"[/x]\x1b[31m\n", r"iou [wet]\x1b 0.5", r"m\x1b\n:car:"):
            assert name in written
    assert "\x1b[31m" not in screen.getvalue()


def test_a_sheet_writes_any_name(data: Path) -> None:
    sheet = contact_sheet(Folder(path=data), "val", count=8)
    assert not sheet.problems
    assert sheet.picture.width > 600


def test_a_drawing_of_any_name_is_valid_xml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arch, svg = tmp_path / "[x]\x1b\x01\n<b>&.json", tmp_path / "s\n\x1b.svg"
    arch.write_text(json.dumps(architecture_document(resolve("lpsnet-s"))), encoding="utf-8")
    code, out, err = call(capsys, "show", arch, "--svg", svg)
    assert code == 0, err
    assert harmless(out + err)
    label = minidom.parse(str(svg)).documentElement.getAttribute("aria-label")
    assert r"[x]\x1b\x01 <b>&" in label


@pytest.mark.slow
def test_a_terminal_without_the_letters_gets_escapes(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "segtailor", "data", "show", "synthetic:size=32x32,train=1,val=1", "--count", "1",
         "--out", tmp_path / "straße.png"],
        capture_output=True, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(b"stra\\xdfe.png\n")


def test_warnings_are_one_harmless_line() -> None:
    program = """import warnings
from segtailor.verbs.main import main
try:
    main(["--version"])
except SystemExit:
    warnings.warn("a\\x1b\\nb")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.endswith(r"UserWarning: a\x1b\nb" + "\n"), done.stderr


@pytest.mark.slow
def test_the_whole_way_works_with_such_names(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source, out = f"folder:{data}", "-r un\n[x]\x1b'\"<b>"
    quick = ("--set", "fit.steps=2", "fit.batch=4", "--crop", "64x64", "--cache", str(tmp_path / "cache"))
    code, text, err = call(capsys, "train", "fast-scnn", "--data", source, f"--out={out}", *quick)
    assert code == 0, err
    assert harmless(text + err)
    follow_up = text.splitlines()[-1].removeprefix("next: ")
    assert follow_up.startswith("segtailor eval ")
    script = f'segtailor() {{ {sys.executable} -m segtailor "$@"; }}; {follow_up} --json'
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert tuple(json.loads(done.stdout)["per_class"]) == CLASSES
    model = f"./{out}/weights"
    for words in (
        ["eval", model, "--data", source],
        ["report", f"./{out}", "--pictures"],
        ["export", model, "--image", "64x64"],
        ["predict", model, data / "images" / "val", "--out", tmp_path / "p\n[x]"],
        ["serve", model, "--port", "0", "--dry-run"],
        ["resume", f"./{out}"],
    ):
        code, text, err = call(capsys, *words)
        assert code == 0, err
        assert harmless(text + err), words
    assert {os.fsencode(file.name) for file in (tmp_path / "p\n[x]").iterdir()} == {
        name + b"val.png" for name in FILES
    }
    page = (tmp_path / out / "report" / "index.html").read_text(encoding="utf-8")
    assert harmless(page)
    assert "<b>" not in page
    assert "road [wet]" in page
