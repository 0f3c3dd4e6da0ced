"""Arrays on disk: made once, mapped after that, refused where they belong to something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segtailor.core.errors import DataProblem
from segtailor.data.arrays import INDEX, ArraySpec, ArrayStore, check_space

VALUES = np.arange(24, dtype=np.float32).reshape(4, 2, 3)


def store(folder: Path, **about: Any) -> ArrayStore:
    return ArrayStore(
        folder=folder / "made",
        about={"data": "street", "size": [2, 3], **about},
        arrays={"maps": ArraySpec(shape=(4, 2, 3)), "marks": ArraySpec(shape=(4,), dtype="uint8")},
    )


def filling(calls: list[int]) -> Callable[[], Iterator[Mapping[str, Any]]]:
    def fill() -> Iterator[Mapping[str, Any]]:
        calls.append(1)
        for start in (0, 3):
            yield {
                "maps": VALUES[start : start + 3],
                "marks": np.arange(start, min(4, start + 3), dtype=np.uint8),
            }

    return fill


def test_arrays_are_computed_once_and_mapped_after_that(tmp_path: Path) -> None:
    calls: list[int] = []
    for _ in range(2):
        found = store(tmp_path).open(filling(calls))
        assert np.array_equal(found["maps"], VALUES)
        assert found["marks"].tolist() == [0, 1, 2, 3]
        assert isinstance(found["maps"], np.memmap)
    assert len(calls) == 1


def test_arrays_of_other_data_are_refused_and_left_alone(tmp_path: Path) -> None:
    store(tmp_path).open(filling([]))
    other = store(tmp_path, data="forest")
    with pytest.raises(DataProblem, match=r"made from other data: its data is 'street', wanted is 'forest'"):
        other.open(filling([]))
    with pytest.raises(DataProblem, match="its seed is None, wanted is 3"):
        check_space([store(tmp_path, seed=3)])
    assert store(tmp_path).ready()


@pytest.mark.parametrize("damage", ["cut", "index"])
def test_damaged_arrays_are_made_again(damage: str, tmp_path: Path) -> None:
    calls: list[int] = []
    store(tmp_path).open(filling(calls))
    file = tmp_path / "made" / ("maps" if damage == "cut" else INDEX)
    file.write_bytes(file.read_bytes()[:-2])
    assert np.array_equal(store(tmp_path).open(filling(calls))["maps"], VALUES)
    assert len(calls) == 2


def test_a_disk_that_is_too_small_is_told_before_anything_is_computed(tmp_path: Path) -> None:
    calls: list[int] = []
    huge = replace(store(tmp_path), arrays={"maps": ArraySpec(shape=(2**30, 2**20))})
    with pytest.raises(
        DataProblem, match=r"needs 4194304\.00 GiB.*GiB are free\. Free some space.*evaluator\.images"
    ):
        huge.open(filling(calls))
    with pytest.raises(DataProblem, match="needs"):
        check_space([store(tmp_path), huge])
    assert not calls
    assert not (tmp_path / "made").exists()


def test_an_interrupted_build_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Iterator[Mapping[str, Any]]:
        yield {"maps": VALUES[:3], "marks": np.arange(3, dtype=np.uint8)}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store(tmp_path).open(broken)
    assert not store(tmp_path).ready()
    with pytest.raises(ValueError, match="array 'maps' has 72 bytes, not 96"):
        store(tmp_path).open(lambda: iter([{"maps": VALUES[:3], "marks": np.arange(4, dtype=np.uint8)}]))
