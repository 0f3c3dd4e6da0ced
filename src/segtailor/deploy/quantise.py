"""Int8: quantise an exported fp32 ONNX model on images of a dataset, and decide from measurements whether to keep it.

ONNX Runtime's quantiser or NNCF does the quantising; both write ONNX. Measuring is the caller's part.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from importlib.util import find_spec
from io import StringIO
from itertools import pairwise
from random import Random
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from segtailor.core.errors import DataProblem, Unsupported, UserError, unknown
from segtailor.core.target import Includes
from segtailor.core.task import Preprocessing, Task
from segtailor.data.dataset import Dataset, Pair, Sample, check_pair
from segtailor.data.splits import split_samples
from segtailor.nets.inference import letterbox, normalise, undo_letterbox
from segtailor.nets.onnx.int8 import int8_onnx, read_fp32, with_metadata_of

Method: TypeAlias = Literal["onnxruntime", "nncf"]

MIOU_LIMIT = 0.01  # mIoU that int8 may lose, as a fraction
CPU = torch.device("cpu")


# Images, in the form that an exported graph reads: for measuring value ranges, and for scoring.


@dataclass(frozen=True, kw_only=True)
class GraphForm:
    """What a graph of one size reads: uint8 `pixels` or normalised images. It returns logits or labels."""

    image: tuple[int, int]
    pixels: bool = False
    align_corners: bool = False
    preprocessing: Preprocessing = field(default_factory=Preprocessing)

    def read(self, picture: NDArray[np.uint8]) -> NDArray[Any]:
        """Return an image (height, width, 3) as the graph's input; one of another size is resized to fit."""
        batch = np.ascontiguousarray(letterbox(picture, self.image, self.preprocessing)[None])
        return batch if self.pixels else normalise(batch, self.preprocessing, CPU).numpy()

    def found(self, output: NDArray[Any], size: tuple[int, int], task: Task) -> NDArray[Any]:
        """Return the prediction for an image of `size` from labels (1, h, w) or logits (1, classes, h, w)."""
        finished = output.ndim == 3
        align = self.align_corners
        return undo_letterbox(output, self.image, size, task=task, finished=finished, align_corners=align)


class SampledImages(Sequence[Pair]):
    """Samples of a split. Each is decoded when it is asked for, so that memory holds one at a time."""

    def __init__(self, samples: Sequence[Sample], task: Task) -> None:
        self._samples, self.task = samples, task

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: Any) -> Any:
        sample = self._samples[index]
        pair = Pair(*(np.asarray(part) for part in sample.read()))
        check_pair(pair, self.task, sample.name, channels=getattr(sample, "channels", 3))
        return pair


def sample_images(dataset: Dataset, split: str, *, count: int | None = None, seed: int = 0) -> SampledImages:
    """Return `count` images of a split, spread evenly over it (all if None, or if it has fewer)."""
    samples = split_samples(dataset, split)
    if not samples:
        raise DataProblem(f"split '{split}' has no samples; check the dataset's folders or lists.")
    chosen = spread(len(samples), len(samples) if count is None else count, seed=seed)
    return SampledImages([samples[index] for index in chosen], dataset.task)


def spread(total: int, count: int, *, seed: int) -> list[int]:
    """Return `count` of `total` indices in order: a random one from each of `count` equal intervals."""
    if count < 1:
        raise UserError(f"{count} pictures are too few; use 1 or more.")
    rng, count = Random(seed), min(count, total)
    edges = [total * step // count for step in range(count + 1)]
    return [rng.randrange(low, high) for low, high in pairwise(edges)]


class Feeds:
    """Graph inputs by name, one image at a time; can be iterated several times. `seen` is called with the count."""

    def __init__(
        self,
        images: SampledImages,
        form: GraphForm,
        *,
        name: str,
        seen: Callable[[int], None] | None = None,
    ) -> None:
        self._images, self._form, self._name, self._seen = images, form, name, seen

    def __len__(self) -> int:
        return len(self._images)

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        for index in range(len(self._images)):
            yield {self._name: self._form.read(self._images[index].image)}
            if self._seen is not None:
                self._seen(index + 1)


# Quantising.


def quantise_onnx(data: bytes, feeds: Feeds, *, method: str = "onnxruntime", what: str) -> bytes:
    """Return the int8 form of a serialised fp32 model, with value ranges measured on `feeds`."""
    check_method(method)
    if method == "nncf":
        return _quantise_with_nncf(data, feeds, what=what)
    return int8_onnx(data, feeds, what=what)


def check_method(method: str) -> None:
    """Refuse an unknown method, or one whose package is missing."""
    if method not in get_args(Method):
        raise unknown("way to quantise", method, get_args(Method))
    if method == "nncf" and find_spec("nncf") is None:
        raise Unsupported(
            "quantising by NNCF needs the package nncf, which is not installed: `pip install nncf`, "
            "or use the method onnxruntime."
        )


def _quantise_with_nncf(data: bytes, feeds: Feeds, *, what: str) -> bytes:
    """Quantise with NNCF's preset for speed; it also corrects the bias that rounding adds to each layer."""
    import nncf

    source = read_fp32(data, what=what)
    nncf.set_log_level(logging.ERROR)
    with redirect_stdout(StringIO()):  # its progress bars would end up in JSON output
        quantised: Any = nncf.quantize(
            source,
            nncf.Dataset(feeds),
            subset_size=len(feeds),
            preset=nncf.QuantizationPreset.PERFORMANCE,
        )
    return with_metadata_of(quantised, source)


# Deciding.


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Measurements of one network: latency with its spread (interquartile range over median), and quality."""

    target: str
    median_ms: float
    p95_ms: float
    spread: float
    miou: float


@dataclass(frozen=True, kw_only=True)
class Int8Verdict:
    """Whether int8 is kept, and the reason as one sentence."""

    kept: bool
    reason: str


@dataclass(frozen=True, kw_only=True)
class Int8Tuning:
    """A fine-tuning with rounding inside: mIoU in int8 without it and with it, and whether its network was `used`."""

    steps: int
    seconds: float
    miou_before: float
    miou_after: float
    used: bool


@dataclass(frozen=True, kw_only=True)
class Int8Decision:
    """Everything measured before (fp32) and after (int8) in one run on one runtime, and the decision.

    `ratio` is the median latency after over before, `label_agreement` the share of pixels on which both give the same
    label. `samples` were used for calibration, `images` for scoring. `source` is the fingerprint of the
    fp32 file. `file` is None unless int8 is kept. `tuning` is None unless the network was fine-tuned.
    """

    target: str
    kept: bool
    reason: str
    before: Reading
    after: Reading
    ratio: float
    miou_change: float
    limit: float
    label_agreement: float
    images: int
    samples: int
    method: str
    data: str
    image: tuple[int, int]
    includes: Includes
    source: str
    file: str | None
    warnings: tuple[str, ...] = ()
    tuning: Int8Tuning | None = None


def decide_int8(before: Reading, after: Reading, *, limit: float = MIOU_LIMIT) -> Int8Verdict:
    """Keep int8 if it is faster by more than the spread of the measurement, and loses at most `limit` of mIoU."""
    check_limit(limit)
    ratio, noise = after.median_ms / before.median_ms, max(before.spread, after.spread)
    loss = before.miou - after.miou
    times = f"{before.median_ms:.2f} ms in fp32, {after.median_ms:.2f} ms in int8"
    against = []
    if ratio >= 1:
        against.append(f"int8 is not faster on {after.target} ({times})")
    elif 1 - ratio <= noise:
        against.append(
            f"int8 is {1 - ratio:.1%} faster on {after.target} ({times}), "
            f"within the measurement's spread of {noise:.1%}"
        )
    if not loss <= limit:
        against.append(f"int8 loses {100 * loss:.2f} points of mIoU, {100 * limit:.2f} are allowed")
    if against:
        return Int8Verdict(kept=False, reason="; ".join(against) + ".")
    change = f"loses {100 * loss:.2f}" if loss > 0 else f"gains {-100 * loss:.2f}"
    return Int8Verdict(
        kept=True,
        reason=f"int8 takes {ratio:.0%} of the time on {after.target} ({times}) and {change} points of mIoU.",
    )


def check_limit(limit: float) -> None:
    """Refuse a limit that is not a share of mIoU."""
    if not 0 <= limit <= 1:
        raise UserError(f"a mIoU loss of {limit} cannot be a limit; give a fraction from 0 to 1, e.g. 0.01.")
