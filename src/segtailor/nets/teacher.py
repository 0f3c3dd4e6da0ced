"""Teachers for distillation: bundles, ONNX files and torch modules that give logits of the same classes."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from segtailor.core.errors import Unsupported, UserError
from segtailor.core.shipped import DESCRIPTION, bundle_folder
from segtailor.core.task import Preprocessing
from segtailor.core.trust import refuse_reach
from segtailor.nets.bundle import WEIGHTS, Model, load_bundle
from segtailor.nets.inference import aligns_corners
from segtailor.nets.onnx.confined import foreign_session
from segtailor.tasks.enlarging import enlarge

PROBE_SIDE_PIXELS = 64  # of the blank image on which a teacher is tried
MAX_MEMBERS = 16  # of an ensemble
FORMS = (
    "a bundle folder, the name of shipped weights, a file ending in .onnx, or package.module:function that returns a "
    "torch module"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Teacher:
    """Logits from normalised images; `preprocessing` is the normalisation that it expects."""

    logits: Callable[[Tensor], Tensor]
    fingerprint: str
    preprocessing: Preprocessing

    def __call__(self, images: Tensor, given: Preprocessing) -> Tensor:
        """Return logits (n, classes, h, w) of images that were normalised by `given`."""
        with torch.inference_mode():
            return self.logits(renormalised(images, given, self.preprocessing))


def open_teacher(name: str, classes: int, *, device: torch.device, trusted: bool = True) -> Teacher:
    """Open a teacher by name and try it; other classes, or labels instead of logits, are refused.

    A function is imported and called only if the name is `trusted`: typed by a user, not read from a file.
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
        teacher = teacher_of(_call_function(name), Preprocessing(), device=device)
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
    """Try a teacher on a blank image; raise unless it gives floating-point logits of `classes` classes."""
    image = torch.zeros(1, 3, PROBE_SIDE_PIXELS, PROBE_SIDE_PIXELS, device=device)
    logits = teacher(image, Preprocessing())
    if not isinstance(logits, Tensor) or logits.ndim != 4 or not logits.is_floating_point():
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(
            f"teacher '{name}' gives {shape}, not logits (images, classes, height, width); export it without arg max."
        )
    if logits.shape[1] != classes:
        raise UserError(
            f"the teacher {name} knows {logits.shape[1]} classes, the data has {classes}; "
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


class Renormalised(nn.Module):
    """A teacher for images that were normalised by `given`: it sees them normalised by `wanted`."""

    scale: Tensor
    shift: Tensor

    def __init__(
        self, logits: Callable[[Tensor], Tensor], given: Preprocessing, wanted: Preprocessing
    ) -> None:
        super().__init__()
        self.logits = logits  # a module becomes a part of this one, and moves with it
        std, mean = (
            torch.tensor([getattr(row, name) for row in (given, wanted)]) for name in ("std", "mean")
        )
        # Buffers, as a step that is recorded cannot copy from the host.
        self.register_buffer("scale", (std[0] / std[1])[:, None, None], persistent=False)
        self.register_buffer("shift", ((mean[0] - mean[1]) / std[1])[:, None, None], persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the teacher's logits."""
        return self.logits(images * self.scale + self.shift)


def is_foreign(name: str) -> bool:
    """Tell whether a teacher is an ONNX file or a function, not bundles."""
    path = bundle_folder(name)
    return path.suffix == ".onnx" or (":" in name and not path.exists())


class Ensemble(nn.Module):
    """Several networks as one teacher: the mean of their outputs, at the largest output size among them."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, image: Tensor) -> Tensor:
        """Return the mean output, (n, channels, h, w)."""
        outputs = [member(image) for member in self.members]
        size = (max(output.shape[2] for output in outputs), max(output.shape[3] for output in outputs))
        sized = [
            enlarge(output.float(), size, align_corners=aligns_corners(member))
            for output, member in zip(outputs, self.members, strict=True)
        ]
        return torch.stack(sized).mean(0)


def load_members(path: Path) -> dict[Path, Model]:
    """Load a bundle, or the bundles in a folder (`NAME` or `NAME/weights` below it, at most MAX_MEMBERS), by folder.

    `path` may also be the name of shipped weights.
    """
    path = bundle_folder(path)
    folders = [path]
    if path.is_dir() and not (path / DESCRIPTION).exists():
        entries = sorted(entry for entry in path.iterdir() if entry.is_dir())
        candidates = [entry if (entry / DESCRIPTION).exists() else entry / "weights" for entry in entries]
        folders = [folder for folder in candidates if (folder / DESCRIPTION).exists()][:MAX_MEMBERS] or [path]
    return {folder: load_bundle(folder) for folder in folders}


def _call_function(name: str) -> nn.Module:
    """Import and call `module:function`."""
    module, _, function = name.partition(":")
    try:
        network: Any = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as problem:
        raise UserError(f"teacher '{name}' cannot be imported ({problem}); give {FORMS}.") from problem
    if not isinstance(network, nn.Module):
        raise UserError(f"teacher '{name}' returns a {type(network).__name__}, not a torch module.")
    return network


def _from_onnx(path: Path) -> Teacher:
    """Open a graph that takes one normalised float image (or a batch), of fixed or dynamic size."""
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
        resized = enlarge(images, size, align_corners=False).cpu().numpy()
        batches = [resized[at : at + count] for at in range(0, len(resized), count)] if count else [resized]
        outputs = [session.run(None, {source.name: batch})[0] for batch in batches]
        return torch.from_numpy(np.concatenate(outputs)).to(images.device)

    return Teacher(
        logits=logits,
        fingerprint=hashlib.sha256(path.read_bytes()).hexdigest()[:16],
        preprocessing=Preprocessing(),
    )
