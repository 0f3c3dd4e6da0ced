"""Teachers to learn from: any bundle, any ONNX file, any torch module that gives logits of the same classes."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from segtailor.core.errors import Unsupported, UserError
from segtailor.core.shipped import bundle_folder
from segtailor.core.task import Preprocessing
from segtailor.core.trust import refuse_reach
from segtailor.nets.bundle import WEIGHTS, load_bundle
from segtailor.nets.inference import enlarge
from segtailor.nets.onnx_confined import foreign_session

PROBE = 64  # side of the noise that a teacher is tried on
FORMS = (
    "a bundle folder, the name of shipped weights, a file ending in .onnx, or package.module:function that returns a "
    "torch module"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Teacher:
    """Logits from normalised images. `fingerprint` changes with the weights; `preprocessing` is what it expects."""

    logits: Callable[[Tensor], Tensor]
    fingerprint: str
    preprocessing: Preprocessing

    def __call__(self, images: Tensor, given: Preprocessing) -> Tensor:
        """Return logits (n, classes, h, w) of images that were normalised as `given`."""
        with torch.inference_mode():
            return self.logits(renormalised(images, given, self.preprocessing))


def open_teacher(name: str, classes: int, *, device: torch.device, trusted: bool = True) -> Teacher:
    """Find a teacher by name and try it; one with other classes, or labels instead of logits, is refused.

    A function is imported and called only where the name is `trusted`: typed by a user, not read from a file.
    """
    path = bundle_folder(name)
    if path.suffix == ".onnx":
        teacher = _from_onnx(path)
    elif path.is_dir():
        model = load_bundle(path)
        weights = hashlib.sha256((path / WEIGHTS).read_bytes()).hexdigest()[:16]
        teacher = teacher_of(model.network, model.preprocessing, device=device, fingerprint=weights)
    elif ":" in name:
        refuse_reach(f"import and call the teacher '{name}'", trusted=trusted)
        teacher = teacher_of(_built(name), Preprocessing(), device=device)
    else:
        raise UserError(f"teacher '{name}': no such file or folder; give {FORMS}.")
    check_teacher(teacher, classes, name, device=device)
    return teacher


def teacher_of(
    module: nn.Module, preprocessing: Preprocessing, *, device: torch.device, fingerprint: str | None = None
) -> Teacher:
    """Make a teacher of a module that maps normalised images to logits."""
    module = module.to(device).eval().requires_grad_(False)
    return Teacher(
        logits=module, fingerprint=fingerprint or weights_fingerprint(module), preprocessing=preprocessing
    )


def check_teacher(teacher: Teacher, classes: int, name: str, *, device: torch.device) -> None:
    """Try a teacher on noise and refuse it unless it gives floating-point logits of `classes` classes."""
    found = teacher(torch.zeros(1, 3, PROBE, PROBE, device=device), Preprocessing())
    if not isinstance(found, Tensor) or found.ndim != 4 or not found.is_floating_point():
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise UserError(
            f"teacher '{name}' gives {shape}, not logits (images, classes, height, width); export it without arg max."
        )
    if found.shape[1] != classes:
        raise UserError(
            f"the teacher {name} knows {found.shape[1]} classes, the data has {classes}; "
            "distil from a network trained on the same classes."
        )


def renormalised(images: Tensor, given: Preprocessing, wanted: Preprocessing) -> Tensor:
    """Turn images normalised one way into the same images normalised another way."""
    if given == wanted:
        return images
    old_mean, old_std, mean, std = (
        torch.tensor(values, device=images.device)[:, None, None]
        for values in (given.mean, given.std, wanted.mean, wanted.std)
    )
    return (images * old_std + old_mean - mean) / std


def weights_fingerprint(module: nn.Module) -> str:
    """Fingerprint the weights of a module."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _built(name: str) -> nn.Module:
    module, _, function = name.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as problem:
        raise UserError(f"teacher '{name}' cannot be imported ({problem}); give {FORMS}.") from problem
    if not isinstance(found, nn.Module):
        raise UserError(f"teacher '{name}' returns a {type(found).__name__}, not a torch module.")
    return found


def _from_onnx(path: Path) -> Teacher:
    """Read a graph that takes one normalised float image (or a batch), of a fixed or an open size."""
    session = foreign_session(path)
    (source, *others) = session.get_inputs()
    if others or source.type != "tensor(float)" or len(source.shape) != 4:
        raise Unsupported(
            f"teacher {path}: its inputs are {[(item.name, item.type, item.shape) for item in session.get_inputs()]}; "
            "one float image (n, 3, height, width) is needed. Export the network alone."
        )
    count, _, height, width = (side if isinstance(side, int) else None for side in source.shape)

    def logits(images: Tensor) -> Tensor:
        size = (height or int(images.shape[2]), width or int(images.shape[3]))
        fitting = enlarge(images, size, align_corners=False).cpu().numpy()
        parts = [fitting[at : at + count] for at in range(0, len(fitting), count)] if count else [fitting]
        found = [session.run(None, {source.name: part})[0] for part in parts]
        return torch.from_numpy(np.concatenate(found)).to(images.device)

    return Teacher(
        logits=logits,
        fingerprint=hashlib.sha256(path.read_bytes()).hexdigest()[:16],
        preprocessing=Preprocessing(),
    )
