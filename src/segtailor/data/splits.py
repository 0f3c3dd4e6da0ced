"""Named splits: by list file, by ratio and seed, and several taken together (`train+val`)."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Collection, Sequence
from pathlib import Path

from segtailor.core.errors import DataProblem, UnknownName, unknown
from segtailor.data.dataset import Dataset, Sample
from segtailor.data.files import read_text

MAX_NAME_BYTES = 240  # file systems allow 255, including the suffix
COMMON_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}


def split_samples(dataset: Dataset, split: str) -> Sequence[Sample]:
    """Return the samples of a split, of several joined by `+`, or of `trainval` (train and val together)."""
    return [sample for part in parts_of(split, dataset.splits) for sample in dataset.samples(part)]


def parts_of(split: str, known: Sequence[str]) -> tuple[str, ...]:
    """Return the known splits that a name stands for: one, several joined by `+`, or `trainval`."""
    if split in known:
        return (split,)
    parts = split_parts(split)
    for part in parts:
        if part not in known:
            raise unknown("split", part, known)
    if len(set(parts)) != len(parts):
        raise UnknownName(f"split '{split}' names one split twice; write each once.")
    return parts


def split_parts(split: str) -> tuple[str, ...]:
    """Return the splits that a name stands for, whether they exist or not."""
    return ("train", "val") if split == "trainval" else tuple(split.split("+"))


class TooFewImages(DataProblem):
    """Too few images to be divided."""


def by_ratio(names: Sequence[str], *, val: float, test: float = 0.0, seed: int = 0) -> dict[str, list[str]]:
    """Divide names into train, val and test; the same names and seed always give the same splits.

    Names are ordered by a hash of seed and name, so that adding a file moves few others to another split.
    """
    counts = check_shares(len(names), val=val, test=test)
    ranked = sorted(names, key=lambda name: rank(f"{seed}:{name}"))
    held: dict[str, set[str]] = {}
    start = 0
    for split, count in counts.items():
        held[split] = set(ranked[start : start + count])
        start += count
    taken = set().union(*held.values())
    table = {"train": [name for name in names if name not in taken]}
    table.update({split: [name for name in names if name in chosen] for split, chosen in held.items()})
    return table


def check_shares(total: int, *, val: float, test: float = 0.0) -> dict[str, int]:
    """Return how many of `total` names each split gets besides train; shares that leave nothing to train on raise."""
    if not (val >= 0 and test >= 0 and val + test < 1):  # not-a-number is refused too
        raise DataProblem(
            f"val={val:g} and test={test:g} leave nothing to train on; together they must be under 1."
        )
    wanted = {"val": val, "test": test}
    counts = {split: max(1, round(share * total)) for split, share in wanted.items() if share > 0}
    if sum(counts.values()) >= total:
        raise TooFewImages(
            f"{total} image(s) cannot be divided into train and {' and '.join(counts)}; "
            "add images, or give val=0 to train without validation."
        )
    return counts


def rank(text: str) -> bytes:
    """Hash a name; names from some file systems are not valid text."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()


def read_list(path: Path, known: Collection[str] = ()) -> list[tuple[str, ...]]:
    """Read a list file: one or two columns, split by comma, tab or spaces; `#` starts a comment line.

    Names may be in double quotes; a line that is one of the `known` names is not split.
    """
    rows = []
    for number, line in enumerate(read_text(path, what="list").splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        row = (line.strip(),) if line.strip() in known else _columns(line)
        if not 1 <= len(row) <= 2 or not all(row):
            raise DataProblem(
                f"list {path}, line {number}: expected 'image' or 'image mask', got {len(row)} columns. "
                "Separate with a comma where names hold spaces."
            )
        if any(
            len(part.encode(errors="replace")) > MAX_NAME_BYTES for name in row for part in name.split("/")
        ):
            raise DataProblem(
                f"list {path}, line {number}: '{line[:40]}...' is longer than a file's name can be; correct the list."
            )
        if row not in (("image", "mask"), ("image", "label")):  # a header
            rows.append(row)
    return rows


def _columns(line: str) -> tuple[str, ...]:
    if "," in line or '"' in line:
        separator = "," if "," in line else " "
        cells = next(csv.reader([line.strip()], delimiter=separator, skipinitialspace=True))
        return tuple(cell.strip() for cell in cells)
    if "\t" in line:
        return tuple(cell.strip() for cell in line.strip().split("\t"))
    return tuple(line.split())
