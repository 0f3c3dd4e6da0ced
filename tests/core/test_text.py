"""Names as text: on terminals, in pages, and in commands that a shell reads back."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from xml.dom import minidom

import pytest

from segtailor.core.codec import from_json, to_json
from segtailor.core.errors import DataProblem, UserError
from segtailor.core.task import Task
from segtailor.core.text import command, escaped, path_argument, require_utf8, visible
from segtailor.data.folder import Folder

NASTY = (
    "road [wet]",
    "[/x]",
    "[red]no[/red]",
    ":car:",
    "two\nlines",
    "esc\x1b[31m\x1b]0;title\x07",
    "c1\x9b31m",
    "bidi\u202etxt\u2066",
    "separator\u2028",
    'it\'s "quoted" & <b>$HOME `x` \\n',
    "non\udcff",
    "tab\there",
    "~home",
    "Straße 道路 👩‍👩‍👧",
    "nul-free \x01\x7f\ufffe",
    "-dash",
    "!bang #hash *star?",
)


@pytest.mark.parametrize("name", NASTY)
def test_a_visible_name_is_one_line_without_control_characters(name: str) -> None:
    shown = visible(name)
    assert shown.replace("\u200d", "").isprintable()
    assert len(shown.splitlines()) == 1


def test_what_can_be_seen_stays_as_it_is() -> None:
    for name in ("road [wet]", "[/x]", ":car:", "Straße 道路 👩‍👩‍👧", "می‌خواهم", "no\u00a0break"):
        assert visible(name) == name
    assert visible("a\nb\x1b\u202e\udcff\U000e0001") == r"a\nb\x1b\u202e\xff\U000e0001"
    assert visible("a\nb\r", lines=True) == "a\nb\\r"


@pytest.mark.parametrize("name", NASTY)
def test_every_name_makes_valid_xml(name: str) -> None:
    text = f'<svg aria-label="{escaped(name)}"><title>{escaped(name)}</title></svg>'
    read = minidom.parseString(text.encode()).documentElement
    title = read.getElementsByTagName("title")[0].firstChild
    assert title is not None
    assert title.nodeValue == visible(name, lines=True)


@pytest.mark.parametrize("name", NASTY)
def test_a_shell_reads_a_command_back_exactly(name: str) -> None:
    program = shutil.which("bash")
    if program is None:
        pytest.skip("needs bash")
    line = command("printf", "%s|", name, f"--data={name}")
    assert visible(line) == line
    found = subprocess.run([program, "-c", line], capture_output=True, check=True).stdout
    assert found.split(b"|")[:2] == [os.fsencode(name), os.fsencode(f"--data={name}")]


def test_plain_names_are_not_quoted() -> None:
    assert command("segtailor", "eval", Path("runs/a/weights")) == "segtailor eval runs/a/weights"


def test_a_path_never_reads_as_a_flag_or_a_home_folder() -> None:
    assert [path_argument(name) for name in ("-x", "~me", "runs/-x", "/-x")] == [
        "./-x",
        "./~me",
        "runs/-x",
        "/-x",
    ]


def test_paths_of_any_bytes_survive_the_codec(tmp_path: Path) -> None:
    place = tmp_path / os.fsdecode(b"d\xff\n")
    place.mkdir()
    folder = Folder(path=place)
    assert from_json(Folder, to_json(folder), what="dataset").path == folder.path


def test_files_of_libraries_need_names_in_utf8() -> None:
    require_utf8(Path("Straße\x1b"), what="bundle")
    with pytest.raises(UserError, match=r"no UTF-8.*rename it"):
        require_utf8(Path("non\udcff"), what="bundle")


def test_a_class_name_of_half_characters_is_refused() -> None:
    with pytest.raises(DataProblem, match="half a character"):
        Task(classes=("road", "x\udcff"))


@pytest.mark.parametrize("colour", [(0, 0, -1), (0, 256, 0)])
def test_a_colour_out_of_range_is_refused(colour: tuple[int, int, int]) -> None:
    with pytest.raises(DataProblem, match="0 to 255"):
        Task(classes=("road",), palette=(colour,))
