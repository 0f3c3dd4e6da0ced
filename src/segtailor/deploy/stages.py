"""The stages of a deployed graph around the network: preprocessing before it, the task's last step after it."""

from __future__ import annotations

import copy
from typing import NamedTuple, get_args

import torch
from torch import Tensor, nn

from segtailor.core.errors import unknown
from segtailor.core.plan import MAIN
from segtailor.core.target import Includes
from segtailor.core.task import Preprocessing, Task
from segtailor.nets.network import Network
from segtailor.tasks import Head, kind_of
from segtailor.tasks.segmentation.confident_head import ConfidentHead
from segtailor.tasks.segmentation.kind import LabelHead


class Stages(NamedTuple):
    """Which stages to add: uint8 `pixels` as input, a `finished` output such as labels, `resize` to the image size."""

    pixels: bool = False
    finished: bool = False
    resize: bool = True


INCLUDED: dict[str, Stages] = {
    "network": Stages(),
    "network+argmax": Stages(finished=True, resize=False),
    "network+resize+argmax": Stages(finished=True),
    "end-to-end": Stages(pixels=True, finished=True),
}


class Staged(nn.Module):
    """A network with stages around it. The task defines the finished output, e.g. labels (N, height, width).

    It reads uint8 pixels (N, height, width, 3) or normalised images (N, 3, height, width).
    """

    def __init__(self, network: nn.Module, stages: Stages, head: Head) -> None:
        super().__init__()
        self.network = network
        self.stages = stages
        self.head = head
        self.mean: Tensor
        self.scale: Tensor

    def normalise_with(self, preprocessing: Preprocessing) -> None:
        """Store the preprocessing as buffers, so that it moves to a device with the network."""
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
        if not self.stages.finished:
            return logits
        if not self.stages.resize:
            return self.head.small(logits)
        finished: Tensor = self.head(logits, (size[0], size[1]))
        return finished


def staged(
    network: Network,
    includes: str | Stages,
    *,
    preprocessing: Preprocessing | None = None,
    image: tuple[int, int] | None = None,
    task: Task | None = None,
    temperature: float | None = None,
    unsure: float | None = None,
) -> nn.Module:
    """Add the stages that `includes` names around a network; without a `task` its outputs are classes.

    With a `temperature`, finished labels come with their confidence, and with a mask of what is less likely than
    `unsure`, if that is given.

    If the `image` size (height, width) is given, an exported graph computes labels in bands of rows.
    """
    if isinstance(includes, str) and includes not in INCLUDED:
        raise unknown("kind of timing", includes, get_args(Includes))
    stages = includes if isinstance(includes, Stages) else INCLUDED[includes]
    align = network.plan.align_corners
    if task is None:
        classes = network.plan.shape(network.plan.outputs[MAIN]).channels
        label_type = torch.int32 if classes > 256 else torch.uint8
        head: Head = LabelHead(align_corners=align, label_type=label_type)
    elif temperature is not None:
        head = ConfidentHead(
            align_corners=align, label_type=torch.uint8, temperature=temperature, unsure=unsure
        )
    else:
        head = kind_of(task).head(task, align_corners=align)
    if image is not None and stages.finished and stages.resize:
        head.prepare(output_size(network, image), image)
    module = Staged(network, stages, head)
    module.normalise_with(preprocessing or Preprocessing())
    return module.eval()


def output_size(network: Network, image: tuple[int, int]) -> torch.Size:
    """Return the shape (1, classes, h, w) of the logits for one image, without computing them."""
    without_data = copy.deepcopy(network).to("meta")
    with torch.no_grad():
        logits: Tensor = without_data(torch.empty(1, network.plan.image.channels, *image, device="meta"))
    return logits.shape
