"""What the doctor looks at, by kind of task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from segtailor.core.task import Kind, Task
from segtailor.data.checks import content, depth, leaks, pose
from segtailor.data.checks.census import Census
from segtailor.data.checks.findings import Finding

Rule: TypeAlias = Callable[[Sequence[Census], Task], Iterator[Finding]]
Counts: TypeAlias = NDArray[np.int64]  # of 256 levels, the last for what does not count

SHARED: tuple[Rule, ...] = (leaks.exact_duplicates, leaks.near_duplicates, leaks.shared_drives, leaks.sizes)
CLASSLESS: tuple[Rule, ...] = (content.faulty_files, content.small_splits, *SHARED)  # need to know no classes


@dataclass(frozen=True, kw_only=True)
class Checks:
    """How targets are counted, the rules about them, and what shares are told of a split."""

    count: Callable[[NDArray[Any]], Counts]
    rules: tuple[Rule, ...]
    shares: Callable[[Counts, Task], dict[str, float]]


def label_counts(labels: NDArray[np.uint8]) -> Counts:
    """Count labels."""
    return np.bincount(labels.ravel(), minlength=256).astype(np.int64)


def class_shares(counts: Counts, task: Task) -> dict[str, float]:
    """Return the share of each class among the pixels that count."""
    counted = counts[: task.outputs]
    shares = counted / max(int(counted.sum()), 1)
    return {name: float(share) for name, share in zip(task.classes, shares, strict=True)}


CHECKS: Mapping[Kind, Checks] = {
    "segmentation": Checks(
        count=label_counts,
        rules=(
            content.faulty_files,
            content.label_range,
            content.binary_masks,
            content.shifted_classes,
            content.ignored_masks,
            content.small_splits,
            content.missing_classes,
            content.imbalance,
            *SHARED,
        ),
        shares=class_shares,
    ),
    "depth": Checks(
        count=depth.depth_counts,
        rules=(content.faulty_files, depth.gaps, depth.units, depth.spans, content.small_splits, *SHARED),
        shares=depth.measured_share,
    ),
    "pose": Checks(
        count=pose.joint_counts,
        rules=(
            content.faulty_files,
            pose.people_without_joints,
            pose.rare_joints,
            content.small_splits,
            *SHARED,
        ),
        shares=class_shares,
    ),
}
