"""OpenVINO on the CPU; it reads the ONNX graph of a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from segtailor.core.errors import Unsupported
from segtailor.core.plan import Shape
from segtailor.core.target import Target
from segtailor.targets.onnx import graph_of, in_precision, named
from segtailor.targets.runtime import Compiled, example_inputs

if TYPE_CHECKING:
    from torch import nn

# Layers of an int8 network that are not quantised are computed in fp32.
HINTS = {"fp32": "f32", "fp16": "f16", "bf16": "bf16", "int8": "f32"}


class VinoCompiled(Compiled):
    """A compiled model with one request."""

    def __init__(self, model: Any, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._names = list(arrays)
        self._request = model.create_infer_request()
        self._types = {source.get_any_name(): source.element_type.to_dtype() for source in model.inputs}
        self.threads = int(model.get_property("INFERENCE_NUM_THREADS")) or None
        self._fill(arrays)

    def _fill(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        for name, kind in self._types.items():
            self._request.get_tensor(name).data[:] = arrays[name].astype(kind, copy=False)

    def run(self) -> None:
        """Do one inference on the resident inputs."""
        self._request.infer()

    def outputs(self, *arrays: NDArray[Any]) -> NDArray[Any]:
        """Run on arrays in host memory."""
        self._fill(dict(zip(self._names, arrays, strict=True)))
        self._request.infer()
        output: NDArray[Any] = np.array(self._request.get_output_tensor(0).data)
        return output

    def close(self) -> None:
        """Free the request."""
        self._request = None


class OpenVino:
    """OpenVINO on the CPU, set for latency. Option: threads."""

    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    precisions: ClassVar[tuple[str, ...]] = ("fp32", "bf16", "fp16", "int8")
    options: ClassVar[tuple[str, ...]] = ("threads",)
    experimental: ClassVar[bool] = False

    def available(self, target: Target) -> str | None:
        """Return what is missing: the package, or a processor that computes in the precision."""
        if find_spec("openvino") is None:
            return "the package openvino is not installed: `pip install openvino onnx onnxscript`."
        if target.precision != "fp32":
            import openvino

            supported = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
            if target.precision.upper() not in supported:
                return (
                    f"OpenVINO cannot compute in {target.precision} on this processor. Use cpu/openvino/fp32."
                )
        return None

    def compile(
        self, network: nn.Module, target: Target, inputs: Sequence[Shape], *, pixels: bool = False
    ) -> Compiled:
        """Export a copy of the network in single precision and compile it; OpenVINO lowers the precision itself."""
        data = graph_of(network, target, inputs, pixels=pixels)
        return self.compile_onnx(data, target, example_inputs(inputs, pixels=pixels))

    def compile_onnx(self, data: bytes, target: Target, arrays: Sequence[NDArray[Any]]) -> Compiled:
        """Compile a serialised model, with `arrays` as its resident inputs."""
        import openvino

        data, notes = in_precision(data, target, arrays)
        settings: dict[str, Any] = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": HINTS[target.precision],
        }
        if target.threads is not None:
            settings["INFERENCE_NUM_THREADS"] = target.threads
        core = openvino.Core()
        try:
            model = core.compile_model(core.read_model(model=data), "CPU", settings)
        except RuntimeError as problem:
            line = str(problem).strip().split("\n")[-1][:200]
            raise Unsupported(
                f"OpenVINO cannot compile the network ({line}). Use cpu/onnxruntime/fp32."
            ) from None
        compiled = VinoCompiled(model, named(arrays))
        compiled.notes = notes
        return compiled
