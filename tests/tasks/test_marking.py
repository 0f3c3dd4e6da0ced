"""Errors drawn over pale pictures."""

from __future__ import annotations

import numpy as np
from PIL import Image

from segtailor.core.task import IGNORE, Task
from segtailor.tasks import kind_of
from segtailor.tasks.kind import ERROR_COLOUR, pale_picture

IMAGE = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)


def colours(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture).astype(int)


def test_wrong_labels_are_marked_and_unknown_ones_are_not() -> None:
    target = np.zeros((40, 60), np.uint8)
    target[:, 30:] = IGNORE
    found = np.zeros_like(target)
    found[:10] = 1
    shown = colours(kind_of(Task(classes=("a", "b"))).mark(IMAGE, target, found, Task(classes=("a", "b"))))
    assert (shown[:10, :30] == ERROR_COLOUR).all()
    assert (shown[10:] == pale_picture(IMAGE)[10:]).all()
    assert (shown[:, 30:] == pale_picture(IMAGE)[:, 30:]).all()


def test_depths_are_marked_by_how_far_they_are_off() -> None:
    task = Task(classes=("depth",), kind="depth")
    target = np.full((40, 60), 10.0, np.float32)
    target[:, 50:] = 0.0  # not measured
    found = np.full_like(target, 10.0)
    found[:10], found[10:20] = 12.5, 30.0
    shown = colours(kind_of(task).mark(IMAGE, target, found, task))
    assert (shown[10:20, :50] == ERROR_COLOUR).all()
    half = (pale_picture(IMAGE)[:10, :50] + np.array(ERROR_COLOUR)) / 2
    assert np.abs(shown[:10, :50] - half).max() <= 1
    assert (shown[20:] == pale_picture(IMAGE)[20:]).all()
    assert (shown[:, 50:] == pale_picture(IMAGE)[:, 50:]).all()


def test_a_line_leads_from_each_labelled_joint_to_where_it_was_found() -> None:
    task = Task(
        classes=tuple(f"joint{number}" for number in range(16)), kind="pose", skeleton="mpii", crop=(40, 60)
    )
    target = np.zeros((16, 3), np.float32)
    target[0] = (10, 20, 1)
    found = np.zeros((16, 3), np.float32)
    found[0] = (50, 20, 0.9)
    shown = colours(kind_of(task).mark(IMAGE, target, found, task))
    assert shown[20, 30, 0] - shown[20, 30, 2] > 60  # the line, softened at its edges
    assert shown[10, 30, 0] == shown[10, 30, 2]
    assert shown[20, 10].max() < 60  # the joint itself
    assert (shown[35] == shown[35, :, :1]).all()  # what is not labelled is not drawn: grey alone
