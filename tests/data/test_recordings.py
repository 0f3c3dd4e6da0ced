"""Recordings by name, and splits that keep neighbouring frames together."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from segtailor.core.errors import DataProblem
from segtailor.data.camvid import CamVid
from segtailor.data.recordings import by_recording, recordings
from segtailor.data.splits import by_ratio
from segtailor.strategies.halves import HalvedTrain
from tests.data.trees import write_image, write_mask

CAMVID = [
    f"{drive}_{number:05d}"
    for drive, count in (("0001TP", 62), ("0006R0", 101), ("0016E5", 204))
    for number in range(count)
]
CITYSCAPES = [
    f"{city}/{city}_000000_{number:06d}" for city in ("ulm", "bonn", "lyon", "kiel") for number in range(9)
]
SCENES = [f"office_{scene}/{number}" for scene in range(4) for number in range(5)]


def sides(names: list[str], share: float, seed: int = 0) -> tuple[list[str], list[str]]:
    parts = by_recording(names, val=share, seed=seed)
    assert sorted([*parts["train"], *parts["val"]]) == sorted(names)
    return parts["train"], parts["val"]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("names", [CAMVID, CITYSCAPES, SCENES])
def test_frames_of_a_recording_stay_together(names: list[str], seed: int) -> None:
    fit, judge = sides(names, 0.5, seed)
    labels = recordings(names)
    cut = {labels[name] for name in fit} & {labels[name] for name in judge}
    assert len(cut) <= 1
    assert 0.35 <= len(judge) / len(names) <= 0.5
    for group in cut:  # cut once: the judging frames are the last ones of their recording
        ordered = sorted(name for name in names if labels[name] == group)
        assert [name in judge for name in ordered] == sorted(name in judge for name in ordered)


def test_a_small_share_is_cut_from_one_recording() -> None:
    _, judge = sides(CAMVID, 0.1)
    assert len(judge) == round(0.1 * len(CAMVID))
    assert len(Counter(recordings(judge).values())) == 1


def test_names_without_recordings_are_divided_one_by_one() -> None:
    for names in (
        [f"img_{n:04d}" for n in range(20)],
        [f"{n}" for n in range(20)],
        [f"a{n}_1" for n in range(20)],
    ):
        assert recordings(names) == {}
        assert by_recording(names, val=0.3, seed=2) == by_ratio(names, val=0.3, seed=2)


def test_shares_that_leave_nothing_are_refused() -> None:
    with pytest.raises(DataProblem, match="under 1"):
        by_recording(CAMVID, val=1.0)


def test_the_halves_of_a_search_keep_drives_together(tmp_path: Path) -> None:
    for name in (f"{drive}_{number:03d}" for drive in ("a1", "b2", "c3", "d4") for number in range(4)):
        write_image(tmp_path / "train" / f"{name}.png")
        write_mask(tmp_path / "trainannot" / f"{name}.png", (0, 1))
    halves = HalvedTrain(dataset=CamVid(path=tmp_path)).halves()
    fit, judge = ({sample.name[:2] for sample in half} for half in (halves.fit, halves.judge))
    assert len(fit) == len(judge) == 2
    assert not fit & judge
