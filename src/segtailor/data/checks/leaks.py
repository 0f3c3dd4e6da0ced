"""Rules of the dataset doctor about images that occur in two splits: duplicates, and frames of one recording."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from segtailor.core.task import Task
from segtailor.data.checks.census import Census, ImageFacts
from segtailor.data.dataset import Finding
from segtailor.data.recordings import MIN_FRAMES, names_recording, prefix_of

# Of grey thumbnails: neighbouring video frames stay below, recompressed copies lie above.
DUPLICATE_CORRELATION = 0.996
MIN_CONTRAST_GREY_LEVELS = 3.0  # standard deviation; thumbnails with less are too similar to compare
THUMBNAILS_PER_BLOCK = 1024  # compared at once
MAX_THUMBNAILS_PER_SPLIT = 20_000  # more are not compared


def exact_duplicates(census: Sequence[Census], task: Task) -> Iterator[Finding]:
    """Report images with the same pixels, in two splits or twice in one."""
    del task
    first_use: dict[bytes, tuple[str, str]] = {}  # fingerprint: split and file
    reported: set[tuple[str, str]] = set()  # several samples may be cut out of one picture
    for split in census:
        for record in split.pictures:
            here = (split.split, record.file)
            other = first_use.setdefault(record.fingerprint, here)
            if here == other or here in reported:
                continue
            reported.add(here)
            across = other[0] != split.split
            yield Finding(
                severity="warning" if across else "info",
                kind="duplicate",
                file=record.file,
                message=f"split '{split.split}' holds the same picture as {other[1]} in split '{other[0]}'"
                + (": scores there will be too good" if across else ""),
                fix="Remove one of the two.",
            )


def near_duplicates(census: Sequence[Census], task: Task) -> Iterator[Finding]:
    """Report images of two splits that differ only in compression, size or brightness."""
    del task
    for first, second in combinations(census, 2):
        ours, theirs = _comparable(first.pictures), _comparable(second.pictures)
        if not ours or not theirs:
            continue
        table = _normalised(ours)
        for start in range(0, len(theirs), THUMBNAILS_PER_BLOCK):
            part = theirs[start : start + THUMBNAILS_PER_BLOCK]
            likeness = _normalised(part) @ table.T
            best = likeness.argmax(1)
            for row in np.flatnonzero(likeness[np.arange(len(part)), best] > DUPLICATE_CORRELATION):
                twin = ours[best[row]]
                if twin.fingerprint == part[row].fingerprint:
                    continue  # reported as exact
                yield Finding(
                    severity="warning",
                    kind="near-duplicate",
                    file=part[row].file,
                    message=f"split '{second.split}' holds almost the same picture as {twin.file} in split "
                    f"'{first.split}' (likeness {likeness[row, best[row]]:.4f}): scores will be too good",
                    fix="Keep both in the same split, or remove one.",
                )


def shared_drives(census: Sequence[Census], task: Task) -> Iterator[Finding]:
    """Report recordings whose frames are in two splits; frames of one share the first part of the file name."""
    del task
    groups = {
        split.split: Counter(filter(None, (prefix_of(record.name) for record in split.pictures)))
        for split in census
    }
    total = sum(groups.values(), Counter[str]())
    if not total or total.total() < MIN_FRAMES * len(total):
        return
    for first, second in combinations(groups, 2):
        shared = sorted(
            name for name in groups[first].keys() & groups[second].keys() if names_recording(name, total)
        )
        if not shared:
            continue
        hit = sum(groups[second][name] for name in shared)
        count = sum(groups[second].values())
        yield Finding(
            severity="warning",
            kind="shared-drive",
            message=f"{hit} of {count} images of split '{second}' come from drives that split '{first}' "
            f"shows too ({', '.join(shared[:5])}{', ...' if len(shared) > 5 else ''}): scores on "
            f"'{second}' will be optimistic and say little about new places",
            fix="Put whole drives into one split, e.g. hold one drive out; or keep a test drive apart.",
        )


def mixed_sizes(census: Sequence[Census], task: Task) -> Iterator[Finding]:
    """Report images of several sizes: allowed, but batches will be resampled."""
    del task
    found = Counter(record.size for split in census for record in split.pictures)
    if len(found) > 1:
        listed = ", ".join(f"{width}x{height} ({count})" for (height, width), count in found.most_common(4))
        yield Finding(
            severity="info",
            kind="mixed-sizes",
            message=f"the images have {len(found)} sizes (width x height): {listed}",
            fix="Nothing to do unless one of them is a mistake.",
        )


def _comparable(records: Sequence[ImageFacts]) -> list[ImageFacts]:
    return [record for record in records if record.thumbnail.std() >= MIN_CONTRAST_GREY_LEVELS][
        :MAX_THUMBNAILS_PER_SPLIT
    ]


def _normalised(records: Sequence[ImageFacts]) -> NDArray[np.float32]:
    table = np.stack([record.thumbnail for record in records])
    table = table - table.mean(1, keepdims=True)
    return np.asarray(table / np.linalg.norm(table, axis=1, keepdims=True), np.float32)
