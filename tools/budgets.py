"""Check the budgets: file and function length, bans on devices and environment reads, duplicated code, test ratio."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "segtailor"
FILE_LINES = 600  # a file tells one idea; longer ones hold several
FUNCTION_LINES = 60
TEST_RATIO = 0.6
DUPLICATE_LINES = 12
LAYOUT = (
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
)  # fmt: skip

BANS = (
    (re.compile(r"\bos\.environ|\bos\.getenv"), ("cli/", "training/device.py"), "reads the environment"),
    (
        re.compile(r"\.cuda\(|torch\.cuda|[\"']cuda[\"':]"),
        ("targets/", "training/device.py"),
        "names a device",
    ),
    (re.compile(r"\bsys\.path\b"), (), "edits sys.path"),
    (re.compile(r"\bTODO\b|\bFIXME\b"), (), "marks unfinished work"),
    (re.compile(r"\bpickle\b"), ("nets/checkpoint_file.py",), "mentions pickle"),
)


def main() -> int:
    problems = [*lengths(), *bans(), *duplicates(), *ratio()]
    for problem in problems:
        print(problem)
    print(f"budgets: {len(problems)} problem(s)")
    return 1 if problems else 0


def lengths() -> Iterator[str]:
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        name = path.relative_to(ROOT)
        if text.count("\n") > FILE_LINES:
            yield f"{name}: {text.count(chr(10))} lines, at most {FILE_LINES}"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                if size > FUNCTION_LINES:
                    yield f"{name}:{node.lineno} {node.name}: {size} lines, at most {FUNCTION_LINES}"


def bans() -> Iterator[str]:
    for path in sorted(SOURCE.rglob("*.py")):
        inside = path.relative_to(SOURCE).as_posix()
        for number, line in enumerate(path.read_text().split("\n"), start=1):
            for pattern, allowed, why in BANS:
                if pattern.search(line) and not inside.startswith(allowed or ("\0",)):
                    yield f"src/segtailor/{inside}:{number}: {why}"


def duplicates() -> Iterator[str]:
    """Yield runs of identical code lines that stand in two places; imports and short lines do not count."""
    seen: dict[tuple[str, ...], str] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        lines = [
            (number, line.strip())
            for number, line in enumerate(path.read_text().split("\n"), start=1)
            if len(line.strip()) > 3 and not line.strip().startswith(("#", "import ", "from ", '"""', "@"))
        ]
        last = -DUPLICATE_LINES
        for start in range(len(lines) - DUPLICATE_LINES + 1):
            window = lines[start : start + DUPLICATE_LINES]
            key = tuple(line for _, line in window)
            place = f"{path.relative_to(ROOT)}:{window[0][0]}"
            if key in seen and start - last >= DUPLICATE_LINES and _dense(window):
                yield f"{place}: {DUPLICATE_LINES} lines repeat {seen[key]}"
                last = start
            seen.setdefault(key, place)


def _dense(window: list[tuple[int, str]]) -> bool:
    return all(after - before < 8 for (before, _), (after, _) in pairwise(window))


def ratio() -> Iterator[str]:
    """Compare lines that do something: no blank lines, comments, docstrings; conformance kits are neither side."""
    kits = SOURCE / "testing"
    code = sum(statements(path) for path in SOURCE.rglob("*.py") if kits not in path.parents)
    tests = sum(statements(path) for path in (ROOT / "tests").rglob("*.py"))
    if tests < TEST_RATIO * code:
        yield f"tests have {tests} lines for {code} of code: ratio {tests / code:.2f}, at least {TEST_RATIO}"


def statements(path: Path) -> int:
    text = path.read_text()
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            first = node.body[0]
            lines -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


if __name__ == "__main__":
    sys.exit(main())
