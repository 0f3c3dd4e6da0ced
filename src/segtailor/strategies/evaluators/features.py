"""Maps of a fixed encoder, computed once and cached: the first stage of `staged` trains and scores decoders on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from segtailor.core.codec import Json, fingerprint, to_json
from segtailor.core.errors import Unsupported
from segtailor.core.plan import IMAGE, Plan, Shape
from segtailor.core.task import Preprocessing
from segtailor.data.arrays import ArraySpec, ArrayStore
from segtailor.data.augment import Augment
from segtailor.data.batches import batches_of
from segtailor.data.cache import Pixels
from segtailor.nets.inference import normalise
from segtailor.nets.network import Network, PartialNetwork
from segtailor.nets.teacher import Teacher
from segtailor.tasks import Targets
from segtailor.tasks.enlarging import enlarge

ENCODER_BATCH = 16  # images


@dataclass(frozen=True, kw_only=True, eq=False)
class FixedEncoder:
    """A fixed encoder: how to find its taps (output nodes) in a plan, a network that holds its weights, its input.

    `fingerprint` changes with the weights, `about` tells the user where they come from.
    """

    taps: Callable[[Plan], tuple[str, ...]]
    network: Network
    fingerprint: str
    about: str
    preprocessing: Preprocessing

    @property
    def part(self) -> PartialNetwork:
        """The encoder without decoder: from the image to its taps."""
        names = self.taps(self.network.plan)
        return PartialNetwork(self.network, inputs=(IMAGE,), outputs={name: name for name in names})

    def fill(self, network: Network) -> None:
        """Copy the encoder's weights into a network."""
        names = {f"nodes.{node.name}." for node in self.part.order}
        state = {
            key: value for key, value in self.network.state_dict().items() if key.startswith(tuple(names))
        }
        network.load_state_dict({**network.state_dict(), **state})


@dataclass(frozen=True, kw_only=True)
class FeatureStores:
    """The files of one evaluator: maps to train on, with the teacher's logits, and maps to score on."""

    fit: ArrayStore
    judge: ArrayStore
    teacher: ArrayStore | None = None

    def all(self) -> list[ArrayStore]:
        """Return all stores that exist for these settings."""
        return [store for store in (self.fit, self.judge, self.teacher) if store is not None]


class CropSettings(NamedTuple):
    """What is cut from the images: `images` augmented crops to train on, central ones of size `judge` to score on."""

    augment: Augment
    images: int
    judge: tuple[int, int]
    seed: int


def stores(
    root: Path, encoder: FixedEncoder, halves: tuple[Pixels, Pixels], crop_settings: CropSettings, *,
    classes: int, teacher: Teacher | None = None,
) -> FeatureStores:  # fmt: skip
    """Return where the maps are stored and how large they are; nothing is computed."""
    fit, judge = halves
    same: dict[str, Json] = {"encoder": encoder.fingerprint, "preprocessing": to_json(encoder.preprocessing)}
    about: dict[str, Json] = {
        **same,
        "data": fit.fingerprint,
        "augment": to_json(crop_settings.augment),
        "images": crop_settings.images,
        "seed": crop_settings.seed,
    }
    dtype = _map_type(fit.targets)
    fit_shapes = tap_shapes(encoder, crop_settings.augment.crop)
    size = (fit_shapes[0].height, fit_shapes[0].width)
    fit_arrays = _map_specs(fit_shapes, crop_settings.images) | {
        "labels": ArraySpec(shape=(crop_settings.images, *size), dtype=dtype)
    }
    judge_about: dict[str, Json] = {**same, "data": judge.fingerprint, "size": list(crop_settings.judge)}
    count = len(judge)
    judge_arrays = _map_specs(tap_shapes(encoder, crop_settings.judge), count)
    judge_arrays |= {
        "labels": ArraySpec(shape=(count, *crop_settings.judge), dtype=dtype),
        "images": ArraySpec(shape=(count, *crop_settings.judge, 3), dtype="uint8"),
    }
    teacher_store = None
    if teacher is not None:
        teacher_about: dict[str, Json] = {**about, "teacher": teacher.fingerprint}
        logits = {"logits": ArraySpec(shape=(crop_settings.images, classes, *size))}
        teacher_store = ArrayStore(
            folder=root / f"teacher-{fingerprint(teacher_about)}", about=teacher_about, arrays=logits
        )
    return FeatureStores(
        fit=ArrayStore(folder=root / f"fit-{fingerprint(about)}", about=about, arrays=fit_arrays),
        judge=ArrayStore(
            folder=root / f"judge-{fingerprint(judge_about)}", about=judge_about, arrays=judge_arrays
        ),
        teacher=teacher_store,
    )


def _map_type(targets: Targets) -> str:
    """Return the type of targets that are maps; others cannot be shrunk to the size of features."""
    if targets.shape((2, 3)) != (2, 3):
        raise Unsupported(
            "the evaluator 'staged' trains on shrunk target maps, and the targets of this task are no maps; "
            "choose the evaluator 'train'."
        )
    return str(targets.dtype)


def tap_shapes(encoder: FixedEncoder, image: tuple[int, int]) -> list[Shape]:
    """Return the shapes of the maps for images of a size (height, width)."""
    plan = encoder.network.plan
    sized = Plan(
        image=Shape(3, *image),
        nodes=plan.nodes,
        outputs=plan.outputs,
        dormant=plan.dormant,
        align_corners=plan.align_corners,
    )
    return [sized.shape(name) for name in encoder.taps(sized)]


def fit_rows(
    encoder: FixedEncoder, pixels: Pixels, crop_settings: CropSettings, *, device: torch.device
) -> Iterator[Mapping[str, NDArray[Any]]]:
    """Yield maps and labels of the augmented images; labels are shrunk (nearest) to the size of the first map."""
    part = encoder.part.to(device).eval()
    for images, labels in crops(pixels, crop_settings, encoder.preprocessing, device=device):
        with torch.inference_mode():
            maps = part({IMAGE: images})
            size = next(iter(maps.values())).shape[2:]
            small = functional.interpolate(labels[:, None], size=size, mode="nearest")[:, 0]
        yield {**_numbered(maps.values()), "labels": small.cpu().numpy()}


def teacher_rows(
    teacher: Teacher, encoder: FixedEncoder, pixels: Pixels, crop_settings: CropSettings, *,
    size: tuple[int, int], device: torch.device,
) -> Iterator[Mapping[str, NDArray[Any]]]:  # fmt: skip
    """Yield the teacher's logits of the same augmented images, at the size of the first map."""
    for images, _ in crops(pixels, crop_settings, encoder.preprocessing, device=device):
        logits = teacher(images, encoder.preprocessing)
        yield {"logits": enlarge(logits.float(), size, align_corners=False).cpu().numpy()}


def judge_rows(
    encoder: FixedEncoder, pixels: Pixels, crop_settings: CropSettings, *, device: torch.device
) -> Iterator[Mapping[str, NDArray[Any]]]:
    """Yield maps, labels and pixels of the central crops."""
    part = encoder.part.to(device).eval()
    for start in range(0, len(pixels), ENCODER_BATCH):
        pairs = [
            central(pixels, index, crop_settings.judge)
            for index in range(start, min(start + ENCODER_BATCH, len(pixels)))
        ]
        images, labels = (np.stack(side) for side in zip(*pairs, strict=True))
        with torch.inference_mode():
            maps = part({IMAGE: normalise(images, encoder.preprocessing, device)})
        yield {**_numbered(maps.values()), "labels": labels, "images": images}


def crops(
    pixels: Pixels, crop_settings: CropSettings, preprocessing: Preprocessing, *, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the augmented images and labels, the same ones every time."""
    batches = batches_of(pixels, crop_settings.augment, preprocessing, device=device)(
        batch=ENCODER_BATCH, seed=crop_settings.seed
    )
    for start in range(0, crop_settings.images, ENCODER_BATCH):
        batch = batches.at(start // ENCODER_BATCH)
        left = crop_settings.images - start
        yield batch.images[:left], batch.labels[:left]


def central(pixels: Pixels, index: int, size: tuple[int, int]) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Return the centre of an image in a size; smaller images are enlarged first."""
    image, labels = pixels.pair(index)
    height, width = labels.shape
    scale = max(1.0, size[0] / height, size[1] / width)
    if scale > 1:
        enlarged = [
            max(wanted, round(side * scale)) for wanted, side in zip(size, (height, width), strict=True)
        ]
        picture = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float()
        smooth = functional.interpolate(picture, size=enlarged, mode="bilinear", align_corners=False)
        image = smooth[0].permute(1, 2, 0).round().clamp(0, 255).byte().numpy()
        mask = functional.interpolate(
            torch.from_numpy(np.array(labels))[None, None], size=enlarged, mode="nearest"
        )
        labels = mask[0, 0].numpy()
        height, width = enlarged
    top, left = (height - size[0]) // 2, (width - size[1]) // 2
    window = slice(top, top + size[0]), slice(left, left + size[1])
    return np.asarray(image[window]), np.asarray(labels[window])


def calibrate_norms(part: nn.Module, images: Sequence[Tensor]) -> None:
    """Measure the statistics of norms on some images: the initial ones do not match random weights."""
    norms = [module for module in part.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over the batches
    part.train()
    with torch.no_grad():
        for batch in images:
            part({IMAGE: batch})
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    part.eval()


def _map_specs(shapes: Sequence[Shape], count: int) -> dict[str, ArraySpec]:
    return {f"tap{level}": ArraySpec(shape=(count, *shape)) for level, shape in enumerate(shapes)}


def _numbered(maps: Any) -> dict[str, NDArray[Any]]:
    return {f"tap{level}": tensor.cpu().numpy() for level, tensor in enumerate(maps)}
