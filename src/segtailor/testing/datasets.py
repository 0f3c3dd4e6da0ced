"""What a dataset must satisfy: readable samples with valid labels, stable order, splits that share nothing."""

from __future__ import annotations

import numpy as np

from segtailor.core.errors import DataProblem, UnknownName
from segtailor.data.dataset import Dataset, check_pair


def check_dataset(dataset: Dataset, *, limit: int | None = None) -> None:
    """Raise `AssertionError` unless names, fingerprints, shapes, labels and splits of a dataset are as promised.

    Reads every sample, or the first `limit` of each split.
    """
    if not dataset.splits:
        raise AssertionError("the dataset has no splits")
    names: dict[str, str] = {}
    fingerprints: dict[str, str] = {}
    for split in dataset.splits:
        _check_split(dataset, split, limit)
        for sample in dataset.samples(split):
            _claim(names, sample.name, split, "name")
            _claim(fingerprints, sample.fingerprint, split, "fingerprint")
    try:
        dataset.samples("no such split")
    except UnknownName:
        return
    raise AssertionError("an unknown split did not raise UnknownName")


def _check_split(dataset: Dataset, split: str, limit: int | None) -> None:
    samples = dataset.samples(split)
    if not samples:
        raise AssertionError(f"split '{split}' is empty")
    again = dataset.samples(split)
    if [(one.name, one.fingerprint) for one in samples] != [(one.name, one.fingerprint) for one in again]:
        raise AssertionError(f"split '{split}' gives other samples, names or fingerprints when asked again")
    for sample in samples[:limit]:
        try:
            check_pair(sample.read(), dataset.task, sample.name)
        except DataProblem as problem:
            raise AssertionError(f"split '{split}': {problem}") from problem
    first, second = samples[0].read(), again[0].read()
    if not (np.array_equal(first.image, second.image) and np.array_equal(first.labels, second.labels)):
        raise AssertionError(f"split '{split}': sample '{samples[0].name}' reads differently the second time")


def _claim(owners: dict[str, str], value: str, split: str, what: str) -> None:
    if value in owners:
        raise AssertionError(
            f"two samples have the {what} '{value}': in split '{owners[value]}' and in '{split}'"
        )
    owners[value] = split
