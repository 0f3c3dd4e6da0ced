"""Rules for the source that linters do not check: which folders may name devices, the environment, pickle."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "segtailor"
RULES = {  # what is searched for, and the folders where it is allowed
    "reads of the environment": (r"\bos\.environ|\bos\.getenv", ("verbs", "training")),
    "names of devices": (r"\.cuda\(|torch\.cuda|[\"']cuda[\"':]", ("targets", "training")),
    "changes of sys.path": (r"\bsys\.path\b", ()),
    "marks of unfinished work": (r"\bTODO\b|\bFIXME\b", ()),
    "pickle": (r"\bpickle\b", ("nets",)),
    "registrations, for which there is tables.py": (r"\b[A-Z][A-Z_]+\.(?:register|add)\(", ()),
}


@pytest.mark.parametrize("rule", RULES)
def test_the_source_has_these_only_where_they_belong(rule: str) -> None:
    pattern, folders = RULES[rule]
    lines = [
        f"{path.relative_to(SOURCE)}:{number}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] not in folders
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if re.search(pattern, line)
    ]
    assert lines == []


def test_a_public_class_name_means_one_thing() -> None:
    homes: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for name in re.findall(r"^class ([A-Z]\w*)", path.read_text(encoding="utf-8"), re.MULTILINE):
            homes.setdefault(name, []).append(str(path.relative_to(SOURCE)))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}
