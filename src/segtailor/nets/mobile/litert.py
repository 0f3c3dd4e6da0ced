"""LiteRT (TensorFlow Lite): converted by litert-torch, run by the interpreter of ai-edge-litert."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from segtailor.core.errors import Unsupported
from segtailor.nets.mobile.converter import (
    ConverterSession,
    SampleInputs,
    at_one_size,
    contiguous,
    converting,
)


class LiteRtSession:
    """An interpreter."""

    def __init__(self, file: Path, *, threads: int | None) -> None:
        from ai_edge_litert.interpreter import Interpreter

        self.threads = threads
        self._interpreter: Any = Interpreter(model_path=str(file), num_threads=threads)
        self._interpreter.allocate_tensors()
        inputs = sorted(self._interpreter.get_input_details(), key=lambda detail: str(detail["name"]))
        self._inputs = [detail["index"] for detail in inputs]
        named = self._interpreter.get_signature_runner().get_output_details()
        self._outputs = [named[name]["index"] for name in sorted(named)]  # output_0, output_1, ...

    def load(self, arrays: Sequence[NDArray[Any]]) -> None:
        """Copy the inputs."""
        for index, array in zip(self._inputs, contiguous(arrays), strict=True):
            self._interpreter.set_tensor(index, array)

    def run(self) -> None:
        """Run all layers."""
        self._interpreter.invoke()

    def outputs(self) -> list[NDArray[Any]]:
        """Return copies of the outputs."""
        return [np.array(self._interpreter.get_tensor(index)) for index in self._outputs]


class LiteRt:
    """LiteRT on processors, through XNNPACK."""

    name: ClassVar[str] = "litert"
    files: ClassVar[tuple[str, ...]] = ("model.tflite",)
    imports: ClassVar[tuple[str, ...]] = ("litert_torch", "ai_edge_litert")
    install: ClassVar[str] = "pip install litert-torch && pip install --upgrade typing-extensions"
    quantiser: ClassVar[str] = "ai-edge-quantizer"

    def convert(
        self, module: nn.Module, examples: Sequence[Tensor], folder: Path, *, half: bool = False
    ) -> None:
        """Convert in single precision."""
        del half
        with converting(self.name), torch.no_grad():
            import litert_torch

            graph = without_expanding(at_one_size(module, examples))
            litert_torch.convert(graph, tuple(examples)).export(str(folder / self.files[0]))

    def open(self, folder: Path, *, threads: int | None = None) -> ConverterSession:
        """Load the file."""
        return LiteRtSession(folder / self.files[0], threads=threads)

    def quantise(self, folder: Path, out: Path, images: SampleInputs) -> None:
        """Round kernels and maps to signed bytes; inputs and outputs of the file stay as they are."""
        if find_spec("ai_edge_quantizer") is None:
            raise Unsupported(
                "litert in int8 needs the package ai-edge-quantizer, which comes with litert-torch: "
                f"`{self.install}`."
            )
        from ai_edge_litert.interpreter import Interpreter

        file = folder / self.files[0]
        ((signature, names),) = Interpreter(model_path=str(file)).get_signature_list().items()
        with converting(f"{self.name} in int8"):
            from ai_edge_quantizer import recipe
            from ai_edge_quantizer.qtyping import TFLOperationName
            from ai_edge_quantizer.quantizer import Quantizer

            quantizer = Quantizer(str(file))
            quantizer.load_quantization_recipe(recipe.static_wi8_ai8())
            for end in (TFLOperationName.INPUT, TFLOperationName.OUTPUT):
                quantizer.update_quantization_recipe(
                    regex=".*", operation_name=end, algorithm_key="no_quantize"
                )
            ranges = quantizer.calibrate({signature: _NamedFeeds(images, sorted(names["inputs"]))})
            quantizer.quantize(ranges).export_model(str(out / self.files[0]), overwrite=True)


class _NamedFeeds:
    """Inputs by name, as the quantiser reads them; it goes over them several times."""

    def __init__(self, feeds: SampleInputs, names: Sequence[str]) -> None:
        self._feeds, self._names = feeds, names

    def __len__(self) -> int:
        return len(self._feeds)

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        for arrays in self._feeds:
            yield dict(zip(self._names, contiguous(arrays), strict=True))


def without_expanding(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Replace `expand` of single pixels by the same pixel enlarged: litert-torch 0.10 confuses its axes.

    It turns maps into channels-last ones, but not the sizes that `expand` is given.
    """
    aten = torch.ops.aten
    for node in module.graph.nodes:
        if node.op != "call_function" or node.target is not aten.expand.default:
            continue
        wanted = tuple(node.meta["val"].shape)
        if len(wanted) != 4 or tuple(node.args[0].meta["val"].shape) != (*wanted[:2], 1, 1):
            continue
        with module.graph.inserting_before(node):
            enlarged = module.graph.call_function(
                aten.upsample_nearest2d.vec, (node.args[0], list(wanted[2:]), None)
            )
        node.replace_all_uses_with(enlarged)
        module.graph.erase_node(node)
    module.recompile()
    return module
