"""What a deployed graph does besides the network: preprocessing before it, and the task's last stage after it."""

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
from segtailor.tasks.segmentation.kind import LabelHead


class Stages(NamedTuple):
    """What stands around a network: uint8 pixels in, the finished output (such as labels) out, at the image's size."""

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
    """A network with stages around it; what is finished is the matter of the task, e.g. labels (N, height, width).

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
) -> nn.Module:
    """Add the stages that `includes` names around a network; without a `task` its outputs are classes.

    With the `image` size (height, width) a graph that is exported later makes labels in bands of rows.
    """
    if isinstance(includes, str) and includes not in INCLUDED:
        raise unknown("kind of timing", includes, get_args(Includes))
    stages = includes if isinstance(includes, Stages) else INCLUDED[includes]
    if task is None:
        many = network.plan.shape(network.plan.outputs[MAIN]).channels > 256
        label_type = torch.int32 if many else torch.uint8
        head: Head = LabelHead(align_corners=network.plan.align_corners, label_type=label_type)
    else:
        head = kind_of(task).head(task, align_corners=network.plan.align_corners)
    if image is not None and stages.finished and stages.resize:
        head.prepare(output_size(network, image), image)
    module = Staged(network, stages, head)
    module.normalise_with(preprocessing or Preprocessing())
    return module.eval()


def output_size(network: nn.Module, image: tuple[int, int]) -> torch.Size:
    """Return the shape (1, classes, h, w) of the logits for one image, without computing them."""
    shapeless = copy.deepcopy(network).to("meta")
    with torch.no_grad():
        logits: Tensor = shapeless(torch.empty(1, 3, *image, device="meta"))
    return logits.shape
