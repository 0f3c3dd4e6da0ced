"""Which samples belong to one recording (a drive, a scene, a city), by their names, and splits that keep these whole.

Neighbouring frames look alike, so figures on frames whose neighbours trained are too good.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from segtailor.data.splits import by_ratio, check_shares, rank

MIN_FRAMES = 3  # of a recording, on average; a prefix shared by fewer files is a running number
MAX_SHORTFALL = 0.25  # of the wanted number of samples that may be missing before a recording is cut
GENERIC_PREFIXES = frozenset(
    ("img", "image", "frame", "pic", "picture", "photo", "sample", "scene", "train", "val", "valid", "test")
)


def prefix_of(name: str) -> str:
    """Return the part of a name before its running number, e.g. `0016E5` of `0016E5_08641`; empty without one."""
    match = re.match(r"([^_\-.]*[A-Za-z0-9][^_\-.]*)[_\-].*\d", PurePosixPath(name).name)
    return match[1] if match else ""


def names_recording(prefix: str, total: Counter[str]) -> bool:
    """Tell whether a prefix names a recording: not a word like `img`, not a year, not a single word for all files."""
    if prefix.lower() in GENERIC_PREFIXES or re.fullmatch(r"(19|20)\d\d", prefix):
        return False
    return len(total) > 1 or any(character.isdigit() for character in prefix)


def recordings(names: Sequence[str]) -> dict[str, str]:
    """Return the recording of every name: by prefix, else by folder; empty where neither tells any."""
    for label in (prefix_of, lambda name: str(PurePosixPath(name).parent).removeprefix(".")):
        labels = {name: label(name) for name in names}
        total = Counter(filter(None, labels.values()))
        often = total and total.total() >= MIN_FRAMES * len(total) and total.total() == len(names)
        if often and all(names_recording(group, total) for group in total):
            return labels
    return {}


def by_recording(names: Sequence[str], *, val: float, seed: int = 0) -> dict[str, list[str]]:
    """Divide names into train and val, recording by recording; name by name where no recordings are known."""
    labels = recordings(names)
    return divide_recordings(labels, val=val, seed=seed) if labels else by_ratio(names, val=val, seed=seed)


def divide_recordings(labels: Mapping[str, str], *, val: float, seed: int = 0) -> dict[str, list[str]]:
    """Divide names, given with their recordings, into train and val.

    Whole recordings are taken, in an order that the seed decides, as long as they fit. Where too few fit, one is cut
    once, so that only the frames at the cut have neighbours on the other side.
    """
    names = list(labels)
    check_shares(len(names), val=val)
    if val == 0:
        return {"train": names}
    wanted = max(1, round(val * len(names)))
    held: set[str] = set()
    left: list[list[str]] = []
    for members in _ranked(labels, seed):
        if len(held) + len(members) <= wanted:
            held.update(members)
        else:
            left.append(members)
    missing = wanted - len(held)
    if left and missing > MAX_SHORTFALL * wanted:
        longest = max(left, key=len)
        held.update(longest[len(longest) - missing :])
    return {
        "train": [name for name in names if name not in held],
        "val": [name for name in names if name in held],
    }


def _ranked(labels: Mapping[str, str], seed: int) -> list[list[str]]:
    """Return the recordings in the order of a hash, each with its names sorted."""
    groups: dict[str, list[str]] = {}
    for name, group in labels.items():
        groups.setdefault(group, []).append(name)
    return [sorted(groups[group]) for group in sorted(groups, key=lambda group: rank(f"{seed}:{group}"))]
