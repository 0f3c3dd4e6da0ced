"""Pictures that an exported file is checked on, and the size that it is made for when nobody says."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from segtailor.core.errors import DataProblem, UserError
from segtailor.data.dataset import Pair
from segtailor.data.locate import locate
from segtailor.data.scene import render
from segtailor.nets.bundle import Model
from segtailor.tasks import Targets, kind_of
from segtailor.tasks.segmentation.kind import Labels

SAMPLES = 8  # pictures of a data set
SCENES, NOISE = 3, 1  # and without a data set


def known_size(model: Model) -> tuple[int, int] | None:
    """Return the image size that a bundle tells, or that of the data it was trained on, if that data is here."""
    match model.provenance.get("image"):
        case [int(height), int(width)]:
            return height, width
    data = model.provenance.get("data")
    if not isinstance(data, str):
        return None
    try:
        dataset = locate(data)
        split = "val" if "val" in dataset.splits else dataset.splits[0]
        height, width = dataset.samples(split)[0].read().image.shape[:2]
    except (UserError, OSError, IndexError):  # the data is elsewhere
        return None
    return height, width


def data_samples(data: str, size: tuple[int, int], model: Model) -> list[Pair]:
    """Return samples spread over the validation split (or what there is), resized to the file's size."""
    dataset = locate(data)
    if dataset.task.outputs != model.task.outputs:
        raise DataProblem(
            f"the model knows {model.task.outputs} classes, the data has {dataset.task.outputs}; "
            "check it on data with the same classes."
        )
    split = next((name for name in ("val", "test") if name in dataset.splits), dataset.splits[0])
    samples = dataset.samples(split)
    chosen = sorted({round(at) for at in np.linspace(0, len(samples) - 1, SAMPLES)})
    targets = kind_of(dataset.task).targets(dataset.task)
    return [_at_size(samples[index].read(), size, targets) for index in chosen]


def synthetic_samples(size: tuple[int, int]) -> list[Pair]:
    """Return rendered street scenes and noise of a size."""
    rendered = max(size[0], 16), max(size[1], 16)  # nothing smaller can be rendered
    scenes = [render(0, index, rendered, split="verify") for index in range(SCENES)]
    pairs = [_at_size(Pair(scene.image, scene.labels), size, Labels()) for scene in scenes]
    return pairs + [Pair(noise(size, seed), np.zeros(size, np.uint8)) for seed in range(NOISE)]


def noise(size: tuple[int, int], seed: int) -> NDArray[np.uint8]:
    """Return a picture of noise."""
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)


def _at_size(pair: Pair, size: tuple[int, int], targets: Targets) -> Pair:
    own = (pair.image.shape[0], pair.image.shape[1])
    if own == size:
        return pair
    picture = Image.fromarray(pair.image).resize(size[::-1], Image.Resampling.BILINEAR)
    return Pair(np.array(picture, dtype=np.uint8), targets.resized(pair.labels, own, size))
