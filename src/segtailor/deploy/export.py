"""Write a network as an ONNX file of fixed size."""

from __future__ import annotations

from pathlib import Path

import torch

from segtailor.core.atomic import write_bytes
from segtailor.core.task import Preprocessing
from segtailor.deploy.fold import inference_form
from segtailor.deploy.stages import staged
from segtailor.nets.network import Network
from segtailor.nets.onnx_graph import onnx_bytes

IMAGE, LOGITS, LABELS = "image", "logits", "labels"  # names of the graph's input and output


def export_onnx(
    network: Network,
    file: Path,
    *,
    image: tuple[int, int],
    includes: str = "network",
    preprocessing: Preprocessing | None = None,
) -> None:
    """Write the inference form of a network for images of one size (height, width).

    `includes` is `network` (output `logits`), `network+argmax` or `network+resize+argmax` (output `labels`), or
    `end-to-end` (uint8 pixels (1, height, width, 3) in, `labels` out).
    """
    module = staged(inference_form(network), includes, preprocessing=preprocessing).float().cpu()
    pixels = includes == "end-to-end"
    example = torch.zeros(1, *image, 3, dtype=torch.uint8) if pixels else torch.zeros(1, 3, *image)
    output = LOGITS if includes == "network" else LABELS
    write_bytes(file, onnx_bytes(module, (example,), names=(IMAGE,), output=output), what="ONNX file")
