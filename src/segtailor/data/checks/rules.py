"""Rules of the dataset doctor by kind of task: each turns the facts of all splits into findings.

Targets are counted in 256 levels, the last for what is ignored: classes for segmentation, logarithms of depth for
depth, joints for pose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from segtailor.core.task import IGNORE, Kind, Task
from segtailor.data.checks import leaks
from segtailor.data.checks.census import Census, Fault
from segtailor.data.dataset import Finding
from segtailor.tasks.pose.persons import outside

Rule: TypeAlias = Callable[[Sequence[Census], Task], Iterator[Finding]]
Counts: TypeAlias = NDArray[np.int64]  # (256,)
SHARED_RULES: tuple[Rule, ...] = (
    leaks.exact_duplicates,
    leaks.near_duplicates,
    leaks.shared_drives,
    leaks.mixed_sizes,
)
FIXES = {
    "unreadable": "Restore the file from its source, convert it to PNG or JPEG, or remove the pair.",
    "size-mismatch": "Export the mask at the size of its image, or remove the pair.",
    "colour-mask": "Give the colour of every class (a palette), or convert the masks to class ids.",
    "unknown-colour": "Add the colours to the palette or list them as ignored; never save masks as JPEG.",
    "all-ignored": "Check how the masks were exported; 255 means 'unlabelled'. If it marks the object: binary=true.",
    "unusable": "Correct the dataset's files or options.",
    "id-out-of-range": "Correct the mask, declare more classes, or name the id as ignored.",
    "polygon": "Draw it again, or remove it.",
    "outside": "Check that the annotation was made for this picture, at this size.",
    "broken-rle": "Export the annotations again, or remove this one.",
    "rle-size": "Export the annotations at the size of the picture.",
    "broken-mask": "Export the annotations again, or remove this one.",
    "unknown-segment": "Export the PNG and the JSON file together.",
}
ANNOTATION_SUFFIXES = (".json", ".xml", ".txt")
MASK_VALUE_FAULTS = ("id-out-of-range", "colour-mask", "unknown-colour")  # faults of the values in a mask
MIN_TRAIN_IMAGES, MIN_OTHER_IMAGES = 20, 10  # smaller splits are reported
TINY_CLASS_SHARE = 1e-3  # of the pixels
DOMINANT_CLASS_SHARE = 0.95  # of the pixels
MAX_CLASS_RATIO = 1000.0  # pixels of the most frequent class to those of the least frequent
MIN_DEPTH_METRES, MAX_DEPTH_METRES = 1e-4, 1e6  # depths outside count as the first or last level
LOG_DEPTH_STEP = np.log(MAX_DEPTH_METRES / MIN_DEPTH_METRES) / (IGNORE - 1)  # between two levels
USUAL_MEDIAN_METRES = (0.3, 150.0)  # the median depth of any scene lies within
SPARSE_DEPTH_SHARE = 0.5  # of pixels without a depth; more is reported


def faulty_files(census: Sequence[Census], task: Task) -> Iterator[Finding]:
    """Report samples that cannot be used; labels shifted by one are reported once, not for every file."""
    faults = [fault for split in census for fault in split.faults]
    refused = frozenset().union(*(fault.refused for fault in faults))
    stored = frozenset().union(*(fault.ids for fault in faults))
    read = {int(value) for split in census for value in np.flatnonzero(split.counts)}
    shifted = refused == {task.outputs} and 0 not in stored | read
    if shifted:
        first = next(fault for fault in faults if fault.refused)
        yield Finding(
            severity="error",
            kind="off-by-one",
            file=first.file,
            message=f"the ids run from 1 to {task.outputs} and 0 never occurs, but {task.outputs} classes "
            f"are numbered 0 to {task.outputs - 1}: the labels are shifted by one",
            fix="Subtract 1 from every id (255 stays), or give the classes their ids 1.. in the class list.",
        )
    yield from (fault_finding(fault) for fault in faults if not (shifted and fault.refused))


def fault_finding(fault: Fault) -> Finding:
    """Turn a fault into a finding."""
    lossy = fault.kind in MASK_VALUE_FAULTS and PurePath(fault.file).suffix.lower() in (".jpg", ".jpeg")
    fix = "JPEG changes the values at edges: export the masks again, as PNG." if lossy else FIXES[fault.kind]
    return Finding(severity=fault.severity, kind=fault.kind, file=fault.file, message=fault.message, fix=fix)


def small_splits(census: Sequence[Census], task: Task) -> Iterator[Finding]:
    """Report empty and very small splits, and datasets without a validation split."""
    del task
    for split in census:
        enough = MIN_TRAIN_IMAGES if split.split.startswith("train") else MIN_OTHER_IMAGES
        if split.total == 0:
            yield Finding(
                severity="error",
                kind="empty-split",
                message=f"split '{split.split}' holds no images with masks",
                fix="Add pairs to it or remove the split.",
            )
        elif split.total < enough:
            yield Finding(
                severity="warning",
                kind="tiny-split",
                message=f"split '{split.split}' has only {split.total} images; with under {enough}, "
                "scores are unreliable",
                fix="Add labelled images, or move some here from a larger split.",
            )
    if len(census) == 1:
        yield Finding(
            severity="warning",
            kind="no-validation",
            message=f"there is only split '{census[0].split}', so nothing is held out to measure on",
            fix="Add a 'val' folder, or divide by ratio (val=0.2).",
        )


def label_range(census: Sequence[Census], task: Task) -> Iterator[Finding]:
    """Report labels of no class. File datasets refuse them earlier; registered outside datasets may have them."""
    for split in census:
        for record in split.records:
            beyond = [int(i) for i in np.flatnonzero(record.counts[task.outputs : IGNORE]) + task.outputs]
            if beyond:
                yield Finding(
                    severity="error",
                    kind="id-out-of-range",
                    file=record.mask,
                    message=f"label {beyond[0]} occurs, the classes are 0 to {task.outputs - 1}",
                    fix=FIXES["id-out-of-range"],
                )


def binary_masks(census: Sequence[Census], task: Task) -> Iterator[Finding]:
    """Report masks that hold only 0 and 255: the object would be ignored instead of learned."""
    if any(fault.kind in MASK_VALUE_FAULTS for split in census for fault in split.faults):
        return  # some masks do hold other values
    read = [split for split in census if split.records and not _annotated(split)]
    binary = [split for split in read if np.flatnonzero(split.counts).tolist() == [0, IGNORE]]
    everywhere = len(binary) == len(read)
    for split in binary[:1] if everywhere else binary:
        where = "" if everywhere else f" of split '{split.split}'"
        yield Finding(
            severity="error" if everywhere else "warning",
            kind="binary-mask",
            file=next(record.mask for record in split.records if record.counts[IGNORE]),
            message=f"all masks{where} hold only 0 and 255. 255 means "
            f"'ignored', so '{task.classes[0]}' is the only class there",
            fix="If 255 marks the object, store 1 instead of 255 or open the folder with binary=true.",
        )


def shifted_classes(census: Sequence[Census], task: Task) -> Iterator[Finding]:
    """Report that class 0 never occurs while all others do: the ids probably start at 1."""
    counts = _total(census)[: task.outputs]
    if task.outputs > 1 and counts[0] == 0 and (counts[1:] > 0).all():
        yield Finding(
            severity="warning",
            kind="off-by-one",
            file=next(record.mask for split in census for record in split.records),
            message=f"'{task.classes[0]}' (id 0) never occurs while ids 1 to {task.outputs - 1} all do: "
            "the ids seem to start at 1",
            fix="If 0 is not a class, give the classes their ids in the class list, or subtract 1 from all ids; "
            "for annotation files, unlabelled=ignore leaves the background out.",
        )


def missing_classes(census: Sequence[Census], task: Task) -> Iterator[Finding]:
    """Report classes that do not occur in a split."""
    total = _total(census)
    for split in census:
        if not split.records:
            continue
        for label in np.flatnonzero(split.counts[: task.outputs] == 0):
            name = task.classes[label]
            looked = f"the {len(split.records)} images looked at of " if split.partial else ""
            nowhere = total[label] == 0
            yield Finding(
                severity="info" if split.partial else "warning",
                kind="missing-class",
                message=f"class '{name}' (id {label}) does not occur in {looked}split '{split.split}'"
                + (" nor in any other" if nowhere else ""),
                fix=(
                    "Remove the class from the class list or check the ids of the masks."
                    if nowhere
                    else "Move some images that show it into this split, or expect no figure for it."
                ),
            )


def ignored_masks(census: Sequence[Census], task: Task) -> Iterator[Finding]:
    """Report masks without any labelled pixel, and splits that have only such masks."""
    del task
    for split in census:
        shared = {record.mask for record in split.records} if _annotated(split) else set()
        if split.all_blank:
            yield Finding(
                severity="error",
                kind="all-ignored",
                file=split.blank[0].mask,
                message=f"every pixel of every mask in split '{split.split}' is ignored (255): nothing can "
                "be learned or scored",
                fix=FIXES["all-ignored"],
            )
            continue
        for record in split.blank:
            yield Finding(
                severity="warning",
                kind="all-ignored",
                file=record.mask,
                message="every pixel of this mask is ignored (255)"
                if record.mask not in shared
                else f"every pixel of {record.file} is ignored (255): nothing is annotated there that counts",
                fix="Label the image or remove the pair.",
            )


def imbalance(census: Sequence[Census], task: Task) -> Iterator[Finding]:
    """Report a dominant class and classes with very few pixels in the training split."""
    split = next((part for part in census if part.split == "train"), census[0] if census else None)
    if split is None or not split.records:
        return
    shares = split.shares(task.outputs)
    most, present = int(shares.argmax()), shares > 0
    if present.sum() > 1 and (
        shares[most] > DOMINANT_CLASS_SHARE or shares[most] > MAX_CLASS_RATIO * shares[present].min()
    ):
        least = int(np.where(present, shares, np.inf).argmin())
        yield Finding(
            severity="warning",
            kind="imbalance",
            message=f"in '{split.split}' class '{task.classes[most]}' covers {shares[most]:.1%} of the pixels"
            f", '{task.classes[least]}' {shares[least]:.3%}",
            fix="Train with class weights or OHEM, and judge by mIoU, not by pixel accuracy.",
        )
    for label in np.flatnonzero(present & (shares < TINY_CLASS_SHARE)):
        yield Finding(
            severity="warning",
            kind="tiny-class",
            message=f"class '{task.classes[label]}' covers only {shares[label]:.4%} of '{split.split}'",
            fix="Add images that show it, merge it with a similar class, or train with class weights.",
        )


def depth_gaps(census: Sequence[Census], task: Task) -> Iterator[Finding]:
    """Report depth maps without any depth, splits that have only such maps, and splits with few depths."""
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
        if not whole and share > SPARSE_DEPTH_SHARE:
            yield Finding(
                severity="warning",
                kind="sparse-depth",
                message=f"{share:.0%} of the pixels in split '{split.split}' have no depth",
                fix="Fill gaps where the sensor leaves them, or expect a slower training.",
            )


def depth_units(census: Sequence[Census], task: Task) -> Iterator[Finding]:
    """Report implausible depths: the files probably have another unit."""
    del task
    for split in census:
        middle = depth_quantile(split.counts, 0.5)
        if middle and not USUAL_MEDIAN_METRES[0] <= middle <= USUAL_MEDIAN_METRES[1]:
            side = "far too large" if middle > USUAL_MEDIAN_METRES[1] else "far too small"
            yield Finding(
                severity="warning",
                kind="depth-unit",
                file=split.records[0].mask,
                message=f"half of the depths in split '{split.split}' are beyond {middle:.3g} m, which is {side} for a "
                "scene: the files seem to count another unit",
                fix="Say what the numbers are: unit=mm, unit=cm or unit=m.",
            )
    middles = {
        split.split: depth_quantile(split.counts, 0.5)
        for split in census
        if depth_quantile(split.counts, 0.5)
    }
    if middles and max(middles.values()) > 20 * min(middles.values()):
        medians = ", ".join(f"{middle:.3g} m in '{name}'" for name, middle in middles.items())
        yield Finding(
            severity="warning",
            kind="depth-unit",
            message=f"the median depth differs a lot between splits ({medians}): one seems to have another unit",
            fix="Export all depth maps in one unit.",
        )


def depth_ranges(census: Sequence[Census], task: Task) -> Iterator[Finding]:
    """Report depths outside of the task's span, which are not scored."""
    if task.span is None:
        return
    for split in census:
        known = int(split.counts[:IGNORE].sum())
        low, high = (
            np.log(np.clip(bound, MIN_DEPTH_METRES, MAX_DEPTH_METRES) / MIN_DEPTH_METRES) / LOG_DEPTH_STEP
            for bound in task.span
        )
        inside = int(split.counts[int(np.floor(low)) : int(np.ceil(high)) + 1].sum())
        if known and inside < 0.99 * known:
            yield Finding(
                severity="warning",
                kind="depth-range",
                message=f"{1 - inside / known:.1%} of the depths in split '{split.split}' lie outside of "
                f"{task.span[0]:g} to {task.span[1]:g} m (from {depth_quantile(split.counts, 0.01):.3g} to "
                f"{depth_quantile(split.counts, 0.99):.3g} m) and are not scored",
                fix="Give other bounds (nearest=..., farthest=...), or check the unit.",
            )


def people_without_joints(census: Sequence[Census], task: Task) -> Iterator[Finding]:
    """Report people without a labelled joint inside their crop."""
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
    """Report joints that are never labelled in a split."""
    for split in census:
        for joint in np.flatnonzero(split.counts[: task.outputs] == 0) if split.records else ():
            yield Finding(
                severity="warning",
                kind="missing-joint",
                message=f"joint '{task.classes[joint]}' is never labelled in split '{split.split}'",
                fix="Label it, or expect no figure for it.",
            )


def label_counts(labels: NDArray[np.uint8]) -> Counts:
    """Count labels."""
    return np.bincount(labels.ravel(), minlength=256).astype(np.int64)


def class_shares(counts: Counts, task: Task) -> dict[str, float]:
    """Return the share of each class among the pixels that count."""
    counted = counts[: task.outputs]
    shares = counted / max(int(counted.sum()), 1)
    return {name: float(share) for name, share in zip(task.classes, shares, strict=True)}


def depth_counts(depth: NDArray[np.float32]) -> NDArray[np.int64]:
    """Count the depths of a map by level."""
    known = np.isfinite(depth) & (depth > 0)
    levels = np.rint(
        np.log(np.clip(depth[known], MIN_DEPTH_METRES, MAX_DEPTH_METRES) / MIN_DEPTH_METRES) / LOG_DEPTH_STEP
    ).astype(np.int64)
    counts = np.bincount(levels, minlength=IGNORE + 1)
    counts[IGNORE] = depth.size - levels.size
    return counts


def depth_quantile(counts: NDArray[np.int64], share: float) -> float:
    """Return the depth in metres below which a share of the measured pixels lies; 0 where nothing was measured."""
    known = np.cumsum(counts[:IGNORE])
    if not known[-1]:
        return 0.0
    level = int(np.searchsorted(known, share * known[-1]))
    return float(MIN_DEPTH_METRES * np.exp(LOG_DEPTH_STEP * min(level, IGNORE - 1)))


def measured_share(counts: NDArray[np.int64], task: Task) -> dict[str, float]:
    """Return the share of pixels with a depth."""
    return {task.classes[0]: float(counts[:IGNORE].sum() / max(int(counts.sum()), 1))}


def joint_counts(target: NDArray[np.float32], *, size: tuple[int, int] | None = None) -> NDArray[np.int64]:
    """Count the labelled joints of a person, level by level in the order of the skeleton; with `size`, in the crop."""
    labelled = target[:-1, 2] > 0
    if size is not None:
        labelled &= ~outside(target[:-1], size)
    counts = np.zeros(IGNORE + 1, np.int64)
    counts[: len(labelled)] = labelled
    counts[IGNORE] = int((~labelled).sum())
    return counts


def _annotated(split: Census) -> bool:
    """Tell whether labels are drawn from annotation files: these name their classes, so 255 marks no object."""
    return any(PurePath(record.mask).suffix.lower() in ANNOTATION_SUFFIXES for record in split.records)


def _total(census: Sequence[Census]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.sum([split.counts for split in census], axis=0) if census else np.zeros(256, np.int64)


@dataclass(frozen=True, kw_only=True)
class KindChecks:
    """For one kind of task: how targets are counted, the rules to check, and the shares reported for a split."""

    count: Callable[[NDArray[Any]], Counts]
    rules: tuple[Rule, ...]
    shares: Callable[[Counts, Task], dict[str, float]]


def counter(task: Task) -> Callable[[NDArray[Any]], Counts]:
    """Return how the targets of a task are counted; of people, the joints that their crop shows."""
    return partial(joint_counts, size=task.crop) if task.kind == "pose" else CHECKS[task.kind].count


CLASSLESS_RULES: tuple[Rule, ...] = (faulty_files, small_splits, *SHARED_RULES)  # for unknown classes
CHECKS: Mapping[Kind, KindChecks] = {
    "segmentation": KindChecks(
        count=label_counts,
        rules=(
            faulty_files,
            label_range,
            binary_masks,
            shifted_classes,
            ignored_masks,
            small_splits,
            missing_classes,
            imbalance,
            *SHARED_RULES,
        ),
        shares=class_shares,
    ),
    "depth": KindChecks(
        count=depth_counts,
        rules=(
            faulty_files,
            depth_gaps,
            depth_units,
            depth_ranges,
            small_splits,
            *SHARED_RULES,
        ),
        shares=measured_share,
    ),
    "pose": KindChecks(
        count=joint_counts,
        rules=(
            faulty_files,
            people_without_joints,
            rare_joints,
            small_splits,
            *SHARED_RULES,
        ),
        shares=class_shares,
    ),
}
