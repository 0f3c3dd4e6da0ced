"""What a deployed graph does besides the network: preprocessing before it, resize and arg max after it."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor, nn

from segtailor.core.errors import unknown
from segtailor.core.plan import MAIN
from segtailor.core.target import Includes
from segtailor.core.task import Preprocessing
from segtailor.nets.inference import enlarge
from segtailor.nets.network import Network


class Staged(nn.Module):
    """A network with the stages that `includes` names; labels are (N, height, width), uint8 up to 256 classes.

    `end-to-end` reads uint8 pixels (N, height, width, 3); the others read normalised images.
    """

    def __init__(self, network: nn.Module, includes: Includes, *, align_corners: bool) -> None:
        super().__init__()
        self.network = network
        self.includes = includes
        self.align_corners = align_corners
        self.label_type = torch.uint8
        self.mean: Tensor
        self.scale: Tensor

    def normalise_with(self, preprocessing: Preprocessing) -> None:
        """Keep the preprocessing as buffers, so that it moves to the device with the network."""
        like = next(self.network.parameters())
        mean = torch.tensor(preprocessing.mean, dtype=like.dtype, device=like.device) * 255
        scale = 1 / (torch.tensor(preprocessing.std, dtype=like.dtype, device=like.device) * 255)
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("scale", scale, persistent=False)

    def forward(self, image: Tensor) -> Tensor:
        """Run all stages."""
        size = image.shape[2:]
        if self.includes == "end-to-end":
            size = image.shape[1:3]
            image = ((image.to(self.mean.dtype) - self.mean) * self.scale).permute(0, 3, 1, 2)
        logits: Tensor = self.network(image)
        if self.includes == "network":
            return logits
        if self.includes != "network+argmax":
            logits = enlarge(logits, (size[0], size[1]), align_corners=self.align_corners)
        return logits.argmax(1).to(self.label_type)


def staged(network: Network, includes: str, *, preprocessing: Preprocessing | None = None) -> nn.Module:
    """Add the stages that `includes` names around a network."""
    if includes not in get_args(Includes):
        raise unknown("kind of timing", includes, get_args(Includes))
    module = Staged(network, includes, align_corners=network.plan.align_corners)  # type: ignore[arg-type]
    if network.plan.shape(network.plan.outputs[MAIN]).channels > 256:
        module.label_type = torch.int32
    module.normalise_with(preprocessing or Preprocessing())
    return module.eval()
