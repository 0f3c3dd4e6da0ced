"""Rules about depth maps, from a histogram of logarithms: levels 0..254 are depths, 255 is no measurement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from segtailor.core.task import IGNORE, Task
from segtailor.data.checks.census import Census
from segtailor.data.checks.findings import Finding

LEAST, MOST = 1e-4, 1e6  # metres: what lies outside counts as the first or last level
STEP = np.log(MOST / LEAST) / (IGNORE - 1)
USUAL = (0.3, 150.0)  # metres within which the median of any picture of a scene lies
SPARSE = 0.5  # share of pixels without a depth that deserves a word


def depth_counts(depth: NDArray[np.float32]) -> NDArray[np.int64]:
    """Count the depths of a map by level."""
    known = np.isfinite(depth) & (depth > 0)
    levels = np.rint(np.log(np.clip(depth[known], LEAST, MOST) / LEAST) / STEP).astype(np.int64)
    counts = np.bincount(levels, minlength=IGNORE + 1)
    counts[IGNORE] = depth.size - levels.size
    return counts


def quantile(counts: NDArray[np.int64], share: float) -> float:
    """Return the depth in metres below which a share of the measured pixels lies; 0 where none is."""
    known = np.cumsum(counts[:IGNORE])
    if not known[-1]:
        return 0.0
    level = int(np.searchsorted(known, share * known[-1]))
    return float(LEAST * np.exp(STEP * min(level, IGNORE - 1)))


def measured_share(counts: NDArray[np.int64], task: Task) -> dict[str, float]:
    """Return the share of pixels with a depth."""
    return {task.classes[0]: float(counts[:IGNORE].sum() / max(int(counts.sum()), 1))}


def gaps(census: Sequence[Census], task: Task) -> Iterator[Finding]:
    """Maps without a single depth, splits made of such maps, and splits with few depths."""
    del task
    for split in census:
        whole = split.all_blank
        for record in split.blank[: 1 if whole else None]:
            every = f"every depth map in split '{split.split}' is" if whole else "this depth map is"
            yield Finding(
                severity="error" if whole else "warning",
                kind="all-missing",
                file=record.mask,
                message=f"{every} empty: no pixel has a depth, so nothing can be learned or scored",
                fix="Check how depth was exported: 0 and not-a-number mean 'not measured'. Restore or remove the pair.",
            )
        share = split.counts[IGNORE] / max(int(split.counts.sum()), 1)
        if not whole and share > SPARSE:
            yield Finding(
                severity="warning",
                kind="sparse-depth",
                message=f"{share:.0%} of the pixels in split '{split.split}' have no depth",
                fix="Fill gaps where the sensor leaves them, or expect a slower training.",
            )


def units(census: Sequence[Census], task: Task) -> Iterator[Finding]:
    """Depths that no picture has: the numbers count something else than was said."""
    del task
    for split in census:
        middle = quantile(split.counts, 0.5)
        if middle and not USUAL[0] <= middle <= USUAL[1]:
            side = "far too large" if middle > USUAL[1] else "far too small"
            yield Finding(
                severity="warning",
                kind="depth-unit",
                file=split.records[0].mask,
                message=f"half of the depths in split '{split.split}' are beyond {middle:.3g} m, which is {side} for a "
                "scene: the files seem to count another unit",
                fix="Say what the numbers are: unit=mm, unit=cm or unit=m.",
            )
    middles = {split.split: quantile(split.counts, 0.5) for split in census if quantile(split.counts, 0.5)}
    if middles and max(middles.values()) > 20 * min(middles.values()):
        told = ", ".join(f"{middle:.3g} m in '{name}'" for name, middle in middles.items())
        yield Finding(
            severity="warning",
            kind="depth-unit",
            message=f"the median depth differs a lot between splits ({told}): one of them seems to have another unit",
            fix="Export all depth maps in one unit.",
        )


def spans(census: Sequence[Census], task: Task) -> Iterator[Finding]:
    """Depths outside of the bounds, which are not scored."""
    if task.span is None:
        return
    for split in census:
        known = int(split.counts[:IGNORE].sum())
        low, high = (np.log(np.clip(bound, LEAST, MOST) / LEAST) / STEP for bound in task.span)
        inside = int(split.counts[int(np.floor(low)) : int(np.ceil(high)) + 1].sum())
        if known and inside < 0.99 * known:
            yield Finding(
                severity="warning",
                kind="depth-range",
                message=f"{1 - inside / known:.1%} of the depths in split '{split.split}' lie outside of "
                f"{task.span[0]:g} to {task.span[1]:g} m (from {quantile(split.counts, 0.01):.3g} to "
                f"{quantile(split.counts, 0.99):.3g} m) and are not scored",
                fix="Give other bounds (nearest=..., farthest=...), or check the unit.",
            )
