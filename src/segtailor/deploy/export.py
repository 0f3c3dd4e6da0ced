"""The graph of a network that is exported: its form, the stages around it, its sizes, its metadata."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from segtailor.core.atomic import write_bytes
from segtailor.core.errors import Unsupported
from segtailor.core.space import architecture_document, fingerprint_of
from segtailor.core.task import Preprocessing
from segtailor.deploy.fold import inference_form
from segtailor.deploy.stages import INCLUDED, Stages, staged
from segtailor.nets.bundle import Model
from segtailor.nets.network import Network
from segtailor.nets.onnx.graph import onnx_bytes
from segtailor.nets.onnx.metadata import InputKind, OnnxMetadata, OutputKind

IMAGE = "image"  # name of every graph's input; the output is named by its content: `logits`, `labels`, ...
Precision: TypeAlias = Literal["fp32", "fp16"]
Runner: TypeAlias = Callable[
    [NDArray[Any]], Sequence[NDArray[Any]]
]  # from an input array to all outputs, in order
LABELS, CONFIDENCE, UNSURE = "labels", "confidence", "unsure"  # names of outputs
MAX_SIDE_PIXELS = 2**15


@dataclass(frozen=True, kw_only=True)
class Graph:
    """What is exported: the image size (height, width), kind of input and output, and the precision inside.

    A `dynamic` graph accepts other sizes as well; it is then checked at the size `image`. Inputs and outputs are in
    single precision, whatever the precision inside. With `confidence`, labels come with a second output of that name;
    with `unsure`, a probability, with a third one besides: 255 where the label is less likely, otherwise 0.
    """

    image: tuple[int, int]
    input: InputKind = "image"
    output: OutputKind = "logits"
    precision: Precision = "fp32"
    dynamic: bool = False
    confidence: bool = False
    unsure: float | None = None
    channels: int = 3

    def __post_init__(self) -> None:
        if (self.confidence or self.unsure is not None) and self.output != LABELS:
            raise Unsupported(
                "export --confidence and --unsure add outputs to a file of labels; give --output labels. "
                "Logits hold the probabilities already."
            )
        if self.unsure is not None and not (self.confidence and 0 < self.unsure < 1):
            raise Unsupported(
                f"export: a mask of unsure pixels below {self.unsure:g} needs a probability between 0 and 1, and the "
                "confidence beside it."
            )
        if not all(1 <= side <= MAX_SIDE_PIXELS for side in self.image):
            raise Unsupported(
                f"export: image {self.image} is out of range; give 1 to {MAX_SIDE_PIXELS} pixels per side."
            )
        for name, value, known in (
            ("precision", self.precision, get_args(Precision)),
            ("output", self.output, get_args(OutputKind)),
        ):
            if value not in known:
                raise Unsupported(f"export: {name} '{value}' cannot be written; choose {' or '.join(known)}.")

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs, in order."""
        more = (CONFIDENCE,) * self.confidence + (UNSURE,) * (self.unsure is not None)
        return (self.output, *more)

    @property
    def example(self) -> Tensor:
        """An input of this graph."""
        if self.input == "pixels":
            return torch.zeros(1, *self.image, self.channels, dtype=torch.uint8)
        return torch.zeros(1, self.channels, *self.image)

    @property
    def open_sides(self) -> tuple[dict[int, Any], ...] | None:
        """The open dimensions of the input, in the form that torch's exporter reads; None if there are none."""
        if not self.dynamic:
            return None
        first = 1 if self.input == "pixels" else 2
        return ({first: torch.export.Dim.DYNAMIC, first + 1: torch.export.Dim.DYNAMIC},)


class SinglePrecisionEnds(nn.Module):
    """A module with inputs and outputs in single precision, whatever it computes in."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.module, self.dtype = module, dtype

    def forward(self, image: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Convert, run, convert back; integers (pixels, labels) stay as they are."""
        output = self.module(image.to(self.dtype) if image.is_floating_point() else image)
        if isinstance(output, tuple):
            return tuple(part.float() if part.is_floating_point() else part for part in output)
        single: Tensor = output.float() if output.is_floating_point() else output
        return single


class ChannelsLast(nn.Module):
    """A module that computes in the channels-last layout, which is fastest for torch's own kernels."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, image: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Convert the image and run; pixels have that layout already."""
        if image.is_floating_point():
            image = image.contiguous(memory_format=torch.channels_last)
        output = self.module(image)
        if isinstance(output, tuple):
            return tuple(part.contiguous() for part in output)
        single: Tensor = output.contiguous()
        return single


def graph_module(model: Model, graph: Graph) -> nn.Module:
    """Return the module to export: the inference form of the network with the stages that the graph asks for."""
    stages = Stages(pixels=graph.input == "pixels", finished=graph.output != "logits")
    network = inference_form(model.network).cpu().float()
    module = staged(
        network,
        stages,
        preprocessing=model.preprocessing,
        image=None if graph.dynamic else graph.image,
        task=model.task,
        temperature=model.temperature if graph.confidence else None,
        unsure=graph.unsure,
    )
    if graph.precision == "fp16":
        module = SinglePrecisionEnds(module.half(), torch.float16)
    return module.eval().requires_grad_(False)


def metadata_of(model: Model, graph: Graph) -> OnnxMetadata:
    """Return the metadata that is written into an exported file."""
    return OnnxMetadata(
        task=model.task,
        preprocessing=model.preprocessing,
        input=graph.input,
        output=graph.output,
        align_corners=model.network.plan.align_corners,
        architecture=architecture_document(model.architecture),
        fingerprint=fingerprint_of(model.architecture),
        provenance=dict(model.provenance),
        confidence=graph.confidence,
        unsure=graph.unsure,
        temperature=model.temperature,
    )


def export_onnx(
    network: Network,
    file: Path,
    *,
    image: tuple[int, int],
    includes: str = "network",
    preprocessing: Preprocessing | None = None,
) -> None:
    """Write the inference form of a network as a bare ONNX file for images of one size (height, width).

    `includes` is `network` (output `logits`), `network+argmax` or `network+resize+argmax` (output `labels`), or
    `end-to-end` (uint8 pixels (1, height, width, 3) in, `labels` out).
    """
    module = staged(inference_form(network).float().cpu(), includes, preprocessing=preprocessing, image=image)
    stages = INCLUDED[includes]
    example = Graph(image=image, input="pixels" if stages.pixels else "image").example
    output = "labels" if stages.finished else "logits"
    write_bytes(file, onnx_bytes(module, (example,), names=(IMAGE,), output=output), what="ONNX file")
