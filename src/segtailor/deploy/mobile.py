"""Files for phones and boards: ncnn, LiteRT, ExecuTorch and Core ML. They have one size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

from segtailor.core.errors import Unsupported
from segtailor.deploy.export import Graph, Runner, graph_module
from segtailor.nets.bundle import Model
from segtailor.nets.mobile.converter import Converter, missing
from segtailor.nets.mobile.coreml import STAND_IN, CoreMl
from segtailor.nets.mobile.executorch import ExecuTorch
from segtailor.nets.mobile.litert import LiteRt
from segtailor.nets.mobile.ncnn import Ncnn


class MobileFormat:
    """What these formats have in common. `stores_half`: weights can be stored in half precision."""

    converter: ClassVar[Converter]
    files: ClassVar[tuple[str, ...]]
    runtime: ClassVar[str]
    stores_half: ClassVar[bool] = False
    stand_in: ClassVar[str | None] = None

    def check(self, graph: Graph) -> None:
        """Refuse open sizes, precisions that the format lacks, and missing packages."""
        name = self.converter.name
        if graph.dynamic:
            raise Unsupported(
                f"export --to {name} writes files of one size; leave out --dynamic, or use onnx."
            )
        if graph.precision == "fp16" and not self.stores_half:
            raise Unsupported(
                f"export --to {name} writes fp32; leave out --precision, or use onnx or openvino."
            )
        problem = missing(self.converter)
        if problem is not None:
            raise Unsupported(f"export --to {problem}")

    def write(self, model: Model, graph: Graph, folder: Path) -> None:
        """Convert the graph in single precision; the format stores weights in another."""
        module = graph_module(model, replace(graph, precision="fp32"))
        self.converter.convert(module, (graph.example,), folder, half=graph.precision == "fp16")

    def open(self, folder: Path) -> Runner:
        """Open a session with one thread."""
        session = self.converter.open(folder, threads=1)

        def run(array: NDArray[Any]) -> list[NDArray[Any]]:
            session.load([array])
            session.run()
            return session.outputs()

        return run


class NcnnFormat(MobileFormat):
    """ncnn's two files. Half precision applies to stored weights."""

    converter: ClassVar[Converter] = Ncnn()
    files: ClassVar[tuple[str, ...]] = Ncnn.files
    runtime: ClassVar[str] = Ncnn.name
    stores_half: ClassVar[bool] = True

    def check(self, graph: Graph) -> None:
        """Refuse also pixels and finished outputs: ncnn reads floats and has no arg max over classes."""
        if graph.input == "pixels" or graph.output != "logits":
            raise Unsupported(
                "export --to ncnn writes the network alone, as ncnn reads floats and has no arg max over classes; "
                "leave out --preprocess and --output (--with-example shows both in a program)."
            )
        super().check(graph)


class LiteRtFormat(MobileFormat):
    """A .tflite file."""

    converter: ClassVar[Converter] = LiteRt()
    files: ClassVar[tuple[str, ...]] = LiteRt.files
    runtime: ClassVar[str] = LiteRt.name


class ExecuTorchFormat(MobileFormat):
    """A .pte file."""

    converter: ClassVar[Converter] = ExecuTorch()
    files: ClassVar[tuple[str, ...]] = ExecuTorch.files
    runtime: ClassVar[str] = ExecuTorch.name


class CoreMlFormat(MobileFormat):
    """A zipped .mlpackage. Core ML cannot be here: a reference interpreter computes what the program says."""

    converter: ClassVar[Converter] = CoreMl()
    files: ClassVar[tuple[str, ...]] = CoreMl.files
    runtime: ClassVar[str] = CoreMl.name
    stores_half: ClassVar[bool] = True
    stand_in: ClassVar[str | None] = STAND_IN
