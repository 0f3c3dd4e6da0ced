"""What a deployed graph does besides the network: preprocessing before it, resize and arg max after it."""

from __future__ import annotations

import copy
from typing import NamedTuple, get_args

import torch
from torch import Tensor, nn

from segtailor.core.errors import unknown
from segtailor.core.plan import MAIN
from segtailor.core.target import Includes
from segtailor.core.task import Preprocessing
from segtailor.deploy.labels import Labels
from segtailor.nets.network import Network


class Stages(NamedTuple):
    """What stands around a network: uint8 pixels in, labels out, labels at the image's size."""

    pixels: bool = False
    labels: bool = False
    resize: bool = True


INCLUDED: dict[str, Stages] = {
    "network": Stages(),
    "network+argmax": Stages(labels=True, resize=False),
    "network+resize+argmax": Stages(labels=True),
    "end-to-end": Stages(pixels=True, labels=True),
}


class Staged(nn.Module):
    """A network with stages around it; labels are (N, height, width), uint8 up to 256 classes.

    It reads uint8 pixels (N, height, width, 3) or normalised images (N, 3, height, width).
    """

    def __init__(self, network: nn.Module, stages: Stages, labels: Labels) -> None:
        super().__init__()
        self.network = network
        self.stages = stages
        self.labels = labels
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
        if self.stages.pixels:
            size = image.shape[1:3]
            image = ((image.to(self.mean.dtype) - self.mean) * self.scale).permute(0, 3, 1, 2)
        logits: Tensor = self.network(image)
        if not self.stages.labels:
            return logits
        if not self.stages.resize:
            return logits.argmax(1).to(self.labels.label_type)
        labels: Tensor = self.labels(logits, (size[0], size[1]))
        return labels


def staged(
    network: Network,
    includes: str | Stages,
    *,
    preprocessing: Preprocessing | None = None,
    image: tuple[int, int] | None = None,
) -> nn.Module:
    """Add the stages that `includes` names around a network.

    With the `image` size (height, width) a graph that is exported later makes labels in bands of rows.
    """
    if isinstance(includes, str) and includes not in INCLUDED:
        raise unknown("kind of timing", includes, get_args(Includes))
    stages = includes if isinstance(includes, Stages) else INCLUDED[includes]
    many = network.plan.shape(network.plan.outputs[MAIN]).channels > 256
    labels = Labels(align_corners=network.plan.align_corners, label_type=torch.int32 if many else torch.uint8)
    if image is not None and stages.labels and stages.resize:
        labels.prepare(output_size(network, image), image)
    module = Staged(network, stages, labels)
    module.normalise_with(preprocessing or Preprocessing())
    return module.eval()


def output_size(network: nn.Module, image: tuple[int, int]) -> torch.Size:
    """Return the shape (1, classes, h, w) of the logits for one image, without computing them."""
    shapeless = copy.deepcopy(network).to("meta")
    with torch.no_grad():
        logits: Tensor = shapeless(torch.empty(1, 3, *image, device="meta"))
    return logits.shape
