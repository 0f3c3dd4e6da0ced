"""Two disjoint halves of the training split as a dataset of its own: a search that is given it sees no validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from segtailor.core.errors import unknown
from segtailor.core.strategy import Halves
from segtailor.core.task import Task
from segtailor.data.dataset import Dataset, Sample
from segtailor.data.splits import by_ratio, split_samples

FIT, JUDGE = "fit", "judge"


@dataclass(frozen=True, kw_only=True)
class HalvedTrain:
    """The splits `fit` (for weights) and `judge` (for choices), divided by seed and sample name."""

    dataset: Dataset
    split: str = "train"
    share: float = 0.5  # of samples that judge
    seed: int = 0

    @property
    def task(self) -> Task:
        """The classes of the dataset."""
        return self.dataset.task

    @property
    def splits(self) -> tuple[str, ...]:
        """The two halves."""
        return (FIT, JUDGE)

    def samples(self, split: str) -> Sequence[Sample]:
        """Return the samples of one half."""
        if split not in self.splits:
            raise unknown("split", split, self.splits)
        return self._parts[split]

    def halves(self) -> Halves:
        """Return both as plain data."""
        return Halves(fit=tuple(self.samples(FIT)), judge=tuple(self.samples(JUDGE)))

    @cached_property
    def _parts(self) -> dict[str, list[Sample]]:
        samples = {sample.name: sample for sample in split_samples(self.dataset, self.split)}
        names = by_ratio(list(samples), val=self.share, seed=self.seed)
        return {
            half: [samples[name] for name in names[part]] for half, part in ((FIT, "train"), (JUDGE, "val"))
        }
