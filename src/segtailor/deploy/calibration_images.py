"""Pictures of a dataset in the form that an exported graph reads: for measuring ranges, and for scoring it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from segtailor.core.errors import DataProblem, UserError
from segtailor.core.task import Preprocessing, Task
from segtailor.data.dataset import Dataset, Pair, Sample, check_pair
from segtailor.data.splits import split_samples
from segtailor.nets.framing import found_on, framed
from segtailor.nets.inference import normalise

CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class GraphForm:
    """What a graph of one size reads: uint8 `pixels` or normalised images; it gives logits, or labels."""

    image: tuple[int, int]
    pixels: bool = False
    align_corners: bool = False
    preprocessing: Preprocessing = field(default_factory=Preprocessing)

    def read(self, picture: NDArray[np.uint8]) -> NDArray[Any]:
        """Return a picture (height, width, 3) as the graph's input; one of another size is fitted into it."""
        batch = np.ascontiguousarray(framed(picture, self.image, self.preprocessing)[None])
        return batch if self.pixels else normalise(batch, self.preprocessing, CPU).numpy()

    def found(self, output: NDArray[Any], size: tuple[int, int], task: Task) -> NDArray[Any]:
        """Return what an output, labels (1, h, w) or logits (1, classes, h, w), says about a picture of `size`."""
        finished = output.ndim == 3
        align = self.align_corners
        return found_on(output, self.image, size, task=task, finished=finished, align_corners=align)


class SampledImages(Sequence[Pair]):
    """Samples spread evenly over a split, decoded whenever they are asked for, so that memory holds one at a time."""

    def __init__(self, samples: Sequence[Sample], task: Task) -> None:
        self._samples, self.task = samples, task

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: Any) -> Any:
        sample = self._samples[index]
        pair = Pair(*(np.asarray(part) for part in sample.read()))
        check_pair(pair, self.task, sample.name)
        return pair


class Feeds:
    """Graph inputs by name, one picture at a time; they can be gone through several times. `seen` hears the count."""

    def __init__(
        self,
        pictures: SampledImages,
        form: GraphForm,
        *,
        name: str,
        seen: Callable[[int], None] | None = None,
    ) -> None:
        self._pictures, self._form, self._name, self._seen = pictures, form, name, seen

    def __len__(self) -> int:
        return len(self._pictures)

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        for index in range(len(self._pictures)):
            yield {self._name: self._form.read(self._pictures[index].image)}
            if self._seen is not None:
                self._seen(index + 1)


def sample_images(dataset: Dataset, split: str, *, count: int | None = None, seed: int = 0) -> SampledImages:
    """Return `count` pictures of a split (all if None, or if it has fewer), spread evenly."""
    samples = split_samples(dataset, split)
    if not samples:
        raise DataProblem(f"split '{split}' has no samples; check the dataset's folders or lists.")
    chosen = spread(len(samples), len(samples) if count is None else count, seed=seed)
    return SampledImages([samples[index] for index in chosen], dataset.task)


def spread(total: int, count: int, *, seed: int) -> list[int]:
    """Return `count` of `total` indices in order: one at random from each of `count` equal stretches."""
    if count < 1:
        raise UserError(f"{count} pictures are too few; use 1 or more.")
    rng, count = Random(seed), min(count, total)
    edges = [total * step // count for step in range(count + 1)]
    return [rng.randrange(low, high) for low, high in pairwise(edges)]
