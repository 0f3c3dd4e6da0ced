"""Read commands, Python blocks and links from the pages."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
SHELL = ("", "sh", "bash", "text")
PROGRAMS = ("segtailor ", "make ", "python ", "pip ")
USAGE = re.compile(r"\[|\.\.\.|\bVERB\b|\|")  # marks of a usage line, which is not a command to type


def written() -> list[Path]:
    """Return the README and every page of the documentation and of the examples."""
    return sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])


def commands(page: Path) -> list[list[str]]:
    """Return the words of every command in the shell blocks of a page (or in a shell script), comments left out."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".sh":
        return list(_lines(text))
    return [words for block in blocks_of(text, SHELL) for words in _lines(block, skipping=USAGE)]


def python_blocks(page: Path) -> list[str]:
    """Return the Python blocks of a page."""
    return blocks_of(page.read_text(encoding="utf-8"), ("python",))


def blocks_of(text: str, languages: tuple[str, ...]) -> list[str]:
    """Return the fenced blocks in one of some languages."""
    return [match[2] for match in FENCE.finditer(text) if match[1] in languages]


def links(page: Path) -> list[str]:
    """Return the links of a page, without those in code."""
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text(encoding="utf-8")))
    return LINK.findall(text)


def _lines(block: str, *, skipping: re.Pattern[str] | None = None) -> Iterator[list[str]]:
    for line in block.replace("\\\n", " ").split("\n"):
        command = line.strip()
        plain = re.sub(r"'[^']*'|#.*", "", command)
        if command.startswith(PROGRAMS) and not (skipping and skipping.search(plain)):
            words = shlex.split(command, comments=True)
            yield ["0" if word == "SEED" else word for word in takewhile(lambda word: word != ">", words)]
