"""The fuzzer changes files the same way for the same seed, sees what it looks for, and finds nothing in the readers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tools import fuzz

TARGET = fuzz.Target(files=("*.json",), commands=(("show", "a.json"),))


def changed(folder: Path, number: int) -> tuple[str, bytes]:
    folder.mkdir(parents=True)
    (folder / "a.json").write_text(json.dumps({"a": [1, 2, {"b": "c"}], "d": None}))
    done = fuzz.change(folder, TARGET, fuzz.Case(0, "architecture", number).rng)
    file = folder / "a.json"
    return done, file.read_bytes() if file.is_file() else b""


def test_a_case_changes_files_the_same_way_each_time(tmp_path: Path) -> None:
    first = [changed(tmp_path / "first" / str(number) / "inside", number) for number in range(60)]
    again = [changed(tmp_path / "again" / str(number) / "inside", number) for number in range(60)]
    assert first == again
    assert len({done for done, _ in first}) > 30


@pytest.mark.parametrize("text", ["0:run:17", "3:onnx:-1"])
def test_a_case_is_found_again_by_its_name(text: str) -> None:
    assert str(fuzz.parse_case(text)) == text


def test_a_write_outside_the_folder_is_seen_also_through_a_link(tmp_path: Path) -> None:
    for name in ("inside", "outside"):
        (tmp_path / name).mkdir()
    (tmp_path / "inside" / "link").symlink_to(tmp_path / "outside" / "file")
    program = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); from tools.fuzz import Guard\n"
        "guard = Guard(); guard.allowed = Path(sys.argv[2]) / 'inside'\n"
        "(guard.allowed / 'fine').write_text('x'); print(len(guard.found))\n"
        "(guard.allowed / 'link').write_text('x'); print(len(guard.found))"
    )
    command = [sys.executable, "-c", program, str(fuzz.ROOT), str(tmp_path.resolve())]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["0", "1"]


@pytest.mark.slow
def test_no_reader_falls_over_damaged_files() -> None:
    command = [sys.executable, "tools/fuzz.py", "--seconds", "45", "--seed", "1"]
    found = subprocess.run(command, cwd=fuzz.ROOT, capture_output=True, text=True, check=False, timeout=400)
    assert found.returncode == 0, found.stdout + found.stderr
