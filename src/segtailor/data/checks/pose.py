"""Rules about people: levels 0.. count labelled joints by their number, 255 those that are not labelled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from segtailor.core.task import IGNORE, Task
from segtailor.data.checks.census import Census
from segtailor.data.checks.findings import Finding


def joint_counts(target: NDArray[np.float32]) -> NDArray[np.int64]:
    """Count the labelled joints of a person, each by its number."""
    labelled = target[:-1, 2] > 0
    counts = np.zeros(IGNORE + 1, np.int64)
    counts[: len(labelled)] = labelled
    counts[IGNORE] = int((~labelled).sum())
    return counts


def people_without_joints(census: Sequence[Census], task: Task) -> Iterator[Finding]:
    """People of whom no joint is labelled inside their crop."""
    del task
    for split in census:
        whole = split.all_blank
        for record in split.blank[: 1 if whole else None]:
            who = f"nobody in split '{split.split}'" if whole else "this person"
            yield Finding(
                severity="error" if whole else "warning",
                kind="no-joints",
                file=record.mask,
                message=f"{who} has {'a' if whole else 'no'} labelled joint inside the box: nothing can be learned",
                fix="Check boxes and joints, which are in pixels of the picture, or remove the person.",
            )


def rare_joints(census: Sequence[Census], task: Task) -> Iterator[Finding]:
    """Joints that a split never shows."""
    for split in census:
        for joint in np.flatnonzero(split.counts[: task.outputs] == 0) if split.records else ():
            yield Finding(
                severity="warning",
                kind="missing-joint",
                message=f"joint '{task.classes[joint]}' is never labelled in split '{split.split}'",
                fix="Label it, or expect no figure for it.",
            )
