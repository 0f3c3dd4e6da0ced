"""Contact sheets and the colours of labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from segtailor.core.errors import DataProblem, UnknownName
from segtailor.core.task import Task
from segtailor.data.dataset import Pair
from segtailor.data.sheet import PICTURE_WIDTH_PIXELS, contact_sheet
from segtailor.data.synthetic import Synthetic
from segtailor.tasks.segmentation.kind import colourise, overlay

PALETTE = ((255, 0, 0), (0, 255, 0))
TASK = Task(classes=("red", "green"), palette=PALETTE)


@dataclass(frozen=True)
class One:
    """One sample of any shape under any name."""

    name: str = "a"
    size: tuple[int, int] = (20, 30)
    task: Task = TASK
    splits: tuple[str, ...] = ("train",)
    fingerprint: str = "1"

    def samples(self, split: str) -> tuple[One, ...]:
        return (self,) if split in self.splits else ()

    def read(self) -> Pair:
        labels = np.zeros(self.size, np.uint8)
        labels[: self.size[0] // 2] = 1
        return Pair(np.full((*self.size, 3), 100, np.uint8), labels)


def test_colourise_gives_each_class_its_colour_and_the_rest_black() -> None:
    painted = colourise(np.array([[0, 1, 2, 255]], np.uint8), PALETTE)
    assert painted.tolist() == [[[255, 0, 0], [0, 255, 0], [0, 0, 0], [0, 0, 0]]]


def test_overlay_mixes_by_opacity_and_leaves_ignored_pixels_bare() -> None:
    image = np.full((1, 2, 3), 100, np.uint8)
    mixed = overlay(image, np.array([[0, 255]], np.uint8), PALETTE, opacity=0.5)
    assert mixed.tolist() == [[[178, 50, 50], [100, 100, 100]]]


@pytest.mark.parametrize("opacity", [0.0, 1.0])
def test_overlay_at_its_ends_is_the_image_or_the_colours(opacity: float) -> None:
    rng = np.random.default_rng(0)
    image, labels = rng.integers(0, 256, (5, 6, 3), np.uint8), rng.integers(0, 2, (5, 6), np.uint8)
    expected = colourise(labels, PALETTE) if opacity else image
    assert np.array_equal(overlay(image, labels, PALETTE, opacity), expected)


def test_a_sheet_shows_the_image_left_and_the_overlay_right() -> None:
    sheet = np.asarray(contact_sheet(One(), "train", count=1).picture)
    height, x = PICTURE_WIDTH_PIXELS * 20 // 30, 8 + PICTURE_WIDTH_PIXELS // 2
    top, bottom = 32 + height // 4, 32 + 3 * height // 4
    assert sheet[top, x].tolist() == sheet[bottom, x].tolist() == [100, 100, 100]
    right = x + PICTURE_WIDTH_PIXELS + 8
    assert sheet[top, right].tolist() == overlay_of(1)
    assert sheet[bottom, right].tolist() == overlay_of(0)


def overlay_of(label: int) -> list[int]:
    image = np.full((1, 1, 3), 100, np.uint8)
    colour: list[int] = overlay(image, np.full((1, 1), label, np.uint8), PALETTE)[0, 0].tolist()
    return colour


def test_the_legend_holds_every_colour_of_the_palette() -> None:
    sheet = np.asarray(contact_sheet(One(), "train", count=1).picture)
    legend = sheet[32 + PICTURE_WIDTH_PIXELS * 20 // 30 + 8 :].reshape(-1, 3)
    for colour in PALETTE:
        assert (legend == colour).all(1).sum() > 100


def test_equal_seeds_give_equal_sheets_and_others_choose_others() -> None:
    dataset = Synthetic(images={"train": 9}, size=(16, 32))
    first, same, other = (contact_sheet(dataset, "train", count=2, seed=seed).picture for seed in (1, 1, 2))
    assert first.tobytes() == same.tobytes()
    assert first.tobytes() != other.tobytes()


def test_more_pictures_or_columns_than_samples_are_no_problem() -> None:
    dataset = Synthetic(images={"train": 3}, size=(16, 32))
    sheet = contact_sheet(dataset, "train", columns=9, count=50).picture
    assert sheet.width == 3 * (2 * PICTURE_WIDTH_PIXELS + 8) + 4 * 8


@pytest.mark.parametrize("size", [(300, 4), (4, 300), (1, 1)])
def test_odd_shapes_and_long_names_still_fit(size: tuple[int, int]) -> None:
    sheet = contact_sheet(One(name="very/long/" * 40 + "end", size=size), "train", count=1).picture
    assert sheet.width == 2 * PICTURE_WIDTH_PIXELS + 3 * 8
    assert sheet.height < 3 * PICTURE_WIDTH_PIXELS


def test_very_many_classes_make_a_taller_legend() -> None:
    few, many = One(), One(task=Task(classes=tuple(f"class number {i}" for i in range(150))))
    assert contact_sheet(many, "train").picture.height > contact_sheet(few, "train").picture.height + 500


@pytest.mark.parametrize("wrong", [{"count": 0}, {"columns": 0}])
def test_an_empty_sheet_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(DataProblem, match="too small"):
        contact_sheet(One(), "train", **wrong)


def test_an_empty_split_is_refused() -> None:
    with pytest.raises(DataProblem, match="no images"):
        contact_sheet(One(splits=()), "train")


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(UnknownName):
        contact_sheet(Synthetic(), "nope")


@dataclass(frozen=True)
class Several:
    """Samples of which some cannot be read."""

    torn: tuple[str, ...]
    names: tuple[str, ...] = ("a", "b", "c")
    task: Task = TASK
    splits: tuple[str, ...] = ("train",)

    def samples(self, split: str) -> list[One]:
        names = self.names if split in self.splits else ()
        return [Torn(name=name) if name in self.torn else One(name=name) for name in names]


class Torn(One):
    """A sample that cannot be read."""

    def read(self) -> Pair:
        raise DataProblem(f"image {self.name} is cut; restore it.")


def test_what_cannot_be_read_is_left_out_and_told() -> None:
    sheet = contact_sheet(Several(torn=("b",)), "train", columns=9)
    assert sheet.problems == ("image b is cut; restore it.",)
    assert (
        sheet.picture.tobytes()
        == contact_sheet(Several(torn=(), names=("a", "c")), "train").picture.tobytes()
    )


def test_a_sheet_on_which_nothing_could_be_seen_is_refused() -> None:
    with pytest.raises(DataProblem, match=r"none of 2 samples .* image a is cut"):
        contact_sheet(Several(torn=("a", "b"), names=("a", "b")), "train")
