"""Dividing names and reading lists."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segtailor.core.errors import DataProblem
from segtailor.data.splits import by_ratio, parts_of, read_list


@given(
    names=st.sets(st.text(min_size=1, max_size=5), min_size=3, max_size=30),
    val=st.floats(0, 0.4),
    test=st.floats(0, 0.3),
    seed=st.integers(0, 9),
)
def test_ratio_splits_are_a_partition_in_order(names: set[str], val: float, test: float, seed: int) -> None:
    ordered = sorted(names)
    table = by_ratio(ordered, val=val, test=test, seed=seed)
    assert sorted(name for part in table.values() for name in part) == ordered
    assert all(part == sorted(part) and part for part in table.values())
    assert ("val" in table) == (val > 0)
    assert abs(len(table.get("val", [])) - val * len(ordered)) <= 1
    assert table == by_ratio(ordered, val=val, test=test, seed=seed)


def test_adding_a_file_moves_few_others() -> None:
    names = [f"{index:03d}" for index in range(100)]
    before, after = by_ratio(names, val=0.2), by_ratio([*names, "new"], val=0.2)
    assert len(set(before["val"]) ^ set(after["val"]) - {"new"}) <= 2


def test_joined_splits() -> None:
    known = ("train", "val", "test")
    assert parts_of("trainval", known) == ("train", "val")
    assert parts_of("val+test", known) == ("val", "test")
    assert parts_of("trainval", ("trainval", "test")) == ("trainval",)


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        ("a b\nc d\n", [("a", "b"), ("c", "d")]),
        ('image,mask\n"a, x.png",b c.png\n', [("a, x.png", "b c.png")]),
        ("\ufeffa\tb c\r\n# no\r\n\r\n", [("a", "b c")]),
        ("a\n", [("a",)]),
        ('"/x/a 1.png"  "y/a 1.png"\n', [("/x/a 1.png", "y/a 1.png")]),
    ],
)
def test_lists_are_read(tmp_path: Path, content: str, rows: list[tuple[str, ...]]) -> None:
    (tmp_path / "list.txt").write_text(content, encoding="utf-8")
    assert read_list(tmp_path / "list.txt") == rows


@pytest.mark.parametrize("content", [b"a b c\n", b"a,\n", b"\xff\xfe\x00"])
def test_bad_lists_are_explained(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "list.txt").write_bytes(content)
    with pytest.raises(DataProblem, match=r"list .*list\.txt"):
        read_list(tmp_path / "list.txt")
