"""TensorRT through its Python package, or its command `trtexec`. Experimental: written from the documentation of
version 10, not yet run on a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from segtailor.core.errors import Unsupported
from segtailor.core.plan import Shape
from segtailor.core.registry import RUNTIMES
from segtailor.core.target import Target
from segtailor.targets.eager import TorchCompiled, to_host, torch_device_problem
from segtailor.targets.onnx import graph_of
from segtailor.targets.runtime import Compiled, example_inputs, split_device
from segtailor.targets.trtexec import TrtexecCompiled, trtexec_path

if TYPE_CHECKING:
    from torch import Tensor, nn


class TrtCompiled(TorchCompiled):
    """An execution context with torch tensors as buffers."""

    def __init__(self, engine: Any, inputs: Sequence[Tensor]) -> None:
        import torch

        super().__init__(None, inputs=inputs, threads=None)
        self._engine, self._context = engine, engine.create_execution_context()
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        kinds = {name: _torch_type(engine.get_tensor_dtype(name)) for name in names}
        self._output = torch.empty(0)
        for name, tensor in zip(names[: len(inputs)], self.inputs, strict=True):
            self._context.set_tensor_address(name, tensor.data_ptr())
        for name in names[len(inputs) :]:
            shape = tuple(engine.get_tensor_shape(name))
            self._output = torch.empty(shape, dtype=kinds[name], device=self.inputs[0].device)
            self._context.set_tensor_address(name, self._output.data_ptr())

    def run(self) -> None:
        """Enqueue one inference."""
        import torch

        stream = torch.cuda.current_stream(self.inputs[0].device).cuda_stream
        self._context.execute_async_v3(stream)

    def outputs(self, *arrays: NDArray[Any]) -> NDArray[Any]:
        """Copy in, run, copy out."""
        import torch

        for static, array in zip(self.inputs, arrays, strict=True):
            static.copy_(torch.from_numpy(array))
        self.run()
        return to_host(self._output)

    def close(self) -> None:
        """Free the engine."""
        super().close()
        self._context = self._engine = None


@RUNTIMES.register("tensorrt")
class TensorRt:
    """TensorRT engines built from the ONNX graph; building takes minutes."""

    devices: ClassVar[tuple[str, ...]] = ("cuda",)
    precisions: ClassVar[tuple[str, ...]] = ("fp16", "fp32")
    options: ClassVar[tuple[str, ...]] = ()
    experimental: ClassVar[bool] = True

    def available(self, target: Target) -> str | None:
        """Return what is missing: a CUDA device, or both the package and the command."""
        if find_spec("tensorrt") is None and trtexec_path() is not None:
            return None
        problem = torch_device_problem(target)
        if problem is None and find_spec("tensorrt") is None:
            problem = (
                "neither the package tensorrt nor the command trtexec is there: "
                "`pip install tensorrt` (from NVIDIA's index), or put trtexec on the PATH (it only times)."
            )
        return problem

    def compile(
        self, network: nn.Module, target: Target, inputs: Sequence[Shape], *, pixels: bool = False
    ) -> Compiled:
        """Export a copy of the network and build an engine from it."""
        data = graph_of(network, target, inputs, pixels=pixels)
        return self.compile_onnx(data, target, example_inputs(inputs, pixels=pixels))

    def compile_onnx(self, data: bytes, target: Target, arrays: Sequence[NDArray[Any]]) -> Compiled:
        """Build an engine from a serialised model, with `arrays` as its resident inputs."""
        if find_spec("tensorrt") is None:
            return TrtexecCompiled(data, half=target.precision == "fp16")
        import torch

        engine = read_engine(engine_bytes(data))
        device = torch.device(*split_device(target.device))
        half = target.precision == "fp16"
        tensors = [torch.from_numpy(array).to(device) for array in arrays]
        inputs = [tensor.half() if half and tensor.is_floating_point() else tensor for tensor in tensors]
        return TrtCompiled(engine, inputs)


def engine_bytes(data: bytes) -> bytes:
    """Build a strongly typed engine: the graph's own types say where to compute in half precision."""
    import tensorrt

    logger = tensorrt.Logger(tensorrt.Logger.ERROR)
    builder = tensorrt.Builder(logger)
    graph = builder.create_network(1 << int(tensorrt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = tensorrt.OnnxParser(graph, logger)
    if not parser.parse(data):
        raise Unsupported(f"TensorRT cannot read the network: {parser.get_error(0)}. Use cuda/graph/fp16.")
    plan = builder.build_serialized_network(graph, builder.create_builder_config())
    if plan is None:
        raise Unsupported("TensorRT could not build an engine for this network. Use cuda/graph/fp16.")
    return bytes(plan)


def read_engine(data: bytes) -> Any:
    """Load a serialised engine; one that was built by another version or for another GPU is refused."""
    import tensorrt

    engine = tensorrt.Runtime(tensorrt.Logger(tensorrt.Logger.ERROR)).deserialize_cuda_engine(data)
    if engine is None:
        raise Unsupported(
            "TensorRT cannot load the engine; it belongs to another version or GPU. Build it again."
        )
    return engine


def _torch_type(kind: Any) -> Any:
    import tensorrt
    import torch

    return torch.from_numpy(np.empty(0, tensorrt.nptype(kind))).dtype
