"""Maps of a fixed encoder, computed once: what decoders are trained on in the first stage and judged on after it."""

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
from segtailor.nets.inference import enlarge, normalise
from segtailor.nets.network import Network
from segtailor.nets.parts import Part
from segtailor.nets.teacher import Teacher
from segtailor.tasks import Targets

AT_ONCE = 16  # images through the encoder at a time


@dataclass(frozen=True, kw_only=True, eq=False)
class FixedEncoder:
    """A fixed encoder: how to find its taps in a plan, its weights by key of any network that has it, its input.

    `fingerprint` changes with the weights, `about` says in words where they come from.
    """

    taps: Callable[[Plan], tuple[str, ...]]
    network: Network
    fingerprint: str
    about: str
    preprocessing: Preprocessing

    @property
    def part(self) -> Part:
        """The encoder alone: from the image to its taps."""
        names = self.taps(self.network.plan)
        return Part(self.network, inputs=(IMAGE,), outputs={name: name for name in names})

    def fill(self, network: Network) -> None:
        """Give a network fresh copies of the encoder's weights."""
        names = {f"nodes.{node.name}." for node in self.part.order}
        state = {
            key: value for key, value in self.network.state_dict().items() if key.startswith(tuple(names))
        }
        network.load_state_dict({**network.state_dict(), **state})


@dataclass(frozen=True, kw_only=True)
class FeatureStores:
    """The files of one evaluator: maps to fit on (with the teacher's logits), and maps to judge by."""

    fit: ArrayStore
    judge: ArrayStore
    teacher: ArrayStore | None = None

    def all(self) -> list[ArrayStore]:
        """Every store there is."""
        return [store for store in (self.fit, self.judge, self.teacher) if store is not None]


class Wanted(NamedTuple):
    """What is cut from the images: augmented crops to fit on, central ones to judge by."""

    augment: Augment
    images: int
    judge: tuple[int, int]
    seed: int


def stores(
    root: Path, encoder: FixedEncoder, halves: tuple[Pixels, Pixels], wanted: Wanted, *,
    classes: int, teacher: Teacher | None = None,
) -> FeatureStores:  # fmt: skip
    """Say where the maps belong and how large they are; nothing is computed."""
    fit, judge = halves
    same: dict[str, Json] = {"encoder": encoder.fingerprint, "preprocessing": to_json(encoder.preprocessing)}
    about: dict[str, Json] = {
        **same,
        "data": fit.fingerprint,
        "augment": to_json(wanted.augment),
        "images": wanted.images,
        "seed": wanted.seed,
    }
    kept = _map_type(fit.targets)
    cut = tap_shapes(encoder, wanted.augment.crop)
    size = (cut[0].height, cut[0].width)
    arrays = _map_specs(cut, wanted.images) | {"labels": ArraySpec(shape=(wanted.images, *size), dtype=kept)}
    seen: dict[str, Json] = {**same, "data": judge.fingerprint, "size": list(wanted.judge)}
    count = len(judge)
    shown = _map_specs(tap_shapes(encoder, wanted.judge), count)
    shown |= {
        "labels": ArraySpec(shape=(count, *wanted.judge), dtype=kept),
        "images": ArraySpec(shape=(count, *wanted.judge, 3), dtype="uint8"),
    }
    taught = None
    if teacher is not None:
        known: dict[str, Json] = {**about, "teacher": teacher.fingerprint}
        logits = {"logits": ArraySpec(shape=(wanted.images, classes, *size))}
        taught = ArrayStore(folder=root / f"teacher-{fingerprint(known)}", about=known, arrays=logits)
    return FeatureStores(
        fit=ArrayStore(folder=root / f"fit-{fingerprint(about)}", about=about, arrays=arrays),
        judge=ArrayStore(folder=root / f"judge-{fingerprint(seen)}", about=seen, arrays=shown),
        teacher=taught,
    )


def _map_type(targets: Targets) -> str:
    """Return the type of targets that are maps; others cannot be shrunk to features."""
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
    encoder: FixedEncoder, pixels: Pixels, wanted: Wanted, *, device: torch.device
) -> Iterator[Mapping[str, NDArray[Any]]]:
    """Yield maps and labels of the augmented images; labels are shrunk (nearest) to the first map."""
    part = encoder.part.to(device).eval()
    for images, labels in crops(pixels, wanted, encoder.preprocessing, device=device):
        with torch.inference_mode():
            maps = part({IMAGE: images})
            size = next(iter(maps.values())).shape[2:]
            small = functional.interpolate(labels[:, None], size=size, mode="nearest")[:, 0]
        yield {**_numbered(maps.values()), "labels": small.cpu().numpy()}


def teacher_rows(
    teacher: Teacher, encoder: FixedEncoder, pixels: Pixels, wanted: Wanted, *,
    size: tuple[int, int], device: torch.device,
) -> Iterator[Mapping[str, NDArray[Any]]]:  # fmt: skip
    """Yield the teacher's logits of the same augmented images, at the size of the first map."""
    for images, _ in crops(pixels, wanted, encoder.preprocessing, device=device):
        logits = teacher(images, encoder.preprocessing)
        yield {"logits": enlarge(logits.float(), size, align_corners=False).cpu().numpy()}


def judge_rows(
    encoder: FixedEncoder, pixels: Pixels, wanted: Wanted, *, device: torch.device
) -> Iterator[Mapping[str, NDArray[Any]]]:
    """Yield maps, labels and pixels of the central crops."""
    part = encoder.part.to(device).eval()
    for start in range(0, len(pixels), AT_ONCE):
        pairs = [
            central(pixels, index, wanted.judge) for index in range(start, min(start + AT_ONCE, len(pixels)))
        ]
        images, labels = (np.stack(side) for side in zip(*pairs, strict=True))
        with torch.inference_mode():
            maps = part({IMAGE: normalise(images, encoder.preprocessing, device)})
        yield {**_numbered(maps.values()), "labels": labels, "images": images}


def crops(
    pixels: Pixels, wanted: Wanted, preprocessing: Preprocessing, *, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the augmented images and labels, the same ones every time."""
    batches = batches_of(pixels, wanted.augment, preprocessing, device=device)(
        batch=AT_ONCE, seed=wanted.seed
    )
    for start in range(0, wanted.images, AT_ONCE):
        batch = batches.at(start // AT_ONCE)
        left = wanted.images - start
        yield batch.images[:left], batch.labels[:left]


def central(pixels: Pixels, index: int, size: tuple[int, int]) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Return the centre of a picture in a size; pictures that are smaller are enlarged first."""
    image, labels = pixels.pair(index)
    height, width = labels.shape
    scale = max(1.0, size[0] / height, size[1] / width)
    if scale > 1:
        goal = [max(wanted, round(side * scale)) for wanted, side in zip(size, (height, width), strict=True)]
        picture = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float()
        smooth = functional.interpolate(picture, size=goal, mode="bilinear", align_corners=False)
        image = smooth[0].permute(1, 2, 0).round().clamp(0, 255).byte().numpy()
        mask = functional.interpolate(
            torch.from_numpy(np.array(labels))[None, None], size=goal, mode="nearest"
        )
        labels = mask[0, 0].numpy()
        height, width = goal
    top, left = (height - size[0]) // 2, (width - size[1]) // 2
    place = slice(top, top + size[0]), slice(left, left + size[1])
    return np.asarray(image[place]), np.asarray(labels[place])


def calibrate_norms(part: nn.Module, images: Sequence[Tensor]) -> None:
    """Let the norms of fresh weights see some images: their starting statistics fit no weights at all."""
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
