"""Several networks as one teacher: the mean of their outputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from segtailor.core.shipped import DESCRIPTION, bundle_folder
from segtailor.nets.bundle import Model, load_bundle
from segtailor.nets.inference import aligned, enlarge

MOST_MEMBERS = 16


class Committee(nn.Module):
    """The mean of what its members say, at the finest of their strides; of logits it is a log-opinion pool."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, image: Tensor) -> Tensor:
        """Return the mean output, (n, channels, h, w)."""
        outputs = [member(image) for member in self.members]
        size = (max(output.shape[2] for output in outputs), max(output.shape[3] for output in outputs))
        sized = [
            enlarge(output.float(), size, align_corners=aligned(member))
            for output, member in zip(outputs, self.members, strict=True)
        ]
        return torch.stack(sized).mean(0)


def load_members(path: Path) -> dict[Path, Model]:
    """Load a bundle, or all bundles right below a folder that is none itself (`NAME` or `NAME/weights`), by folder.

    The name of shipped weights stands for their folder.
    """
    path = bundle_folder(path)
    found = [path]
    if path.is_dir() and not (path / DESCRIPTION).exists():
        below = sorted(entry for entry in path.iterdir() if entry.is_dir())
        inner = [entry if (entry / DESCRIPTION).exists() else entry / "weights" for entry in below]
        found = [entry for entry in inner if (entry / DESCRIPTION).exists()][:MOST_MEMBERS] or [path]
    return {folder: load_bundle(folder) for folder in found}
