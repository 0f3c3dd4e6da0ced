"""ONNX Runtime, and functions for all runtimes that read ONNX graphs."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import psutil
from numpy.typing import NDArray

from segtailor.core.errors import Unsupported
from segtailor.core.memory import check_memory
from segtailor.core.plan import Shape
from segtailor.core.target import Target
from segtailor.targets.runtime import Compiled, example_inputs, flag, split_device

if TYPE_CHECKING:
    from torch import nn

PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
NOISE_NOTE = (
    "int8 with ranges from noise: good for timing, which does not depend on values, but not for labels"
)
ARRAY_TYPES: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(uint8)": np.uint8,
}


class OrtCompiled(Compiled):
    """A session with inputs bound on its device."""

    def __init__(self, session: Any, arrays: Mapping[str, NDArray[Any]], *, target: Target) -> None:
        kind, index = split_device(target.device)
        self._session, self._device = session, (kind, index)
        self._output = session.get_outputs()[0].name
        self._names = list(arrays)
        self._types = {source.name: ARRAY_TYPES[source.type] for source in session.get_inputs()}
        self._binding = self._bind(arrays)
        if kind == "cpu":
            self.threads = session.get_session_options().intra_op_num_threads

    def _bind(self, arrays: Mapping[str, NDArray[Any]]) -> Any:
        import onnxruntime

        binding = self._session.io_binding()
        for name, kind in self._types.items():
            array = np.ascontiguousarray(arrays[name], dtype=kind)
            value = onnxruntime.OrtValue.ortvalue_from_numpy(array, *self._device)
            binding.bind_ortvalue_input(name, value)
        binding.bind_output(self._output, *self._device)
        return binding

    def run(self) -> None:
        """Do one inference on the bound inputs; returns when the device has finished."""
        self._session.run_with_iobinding(self._binding)

    def outputs(self, *arrays: NDArray[Any]) -> NDArray[Any]:
        """Run on arrays in host memory."""
        given = dict(zip(self._names, arrays, strict=True))
        feeds = {name: given[name].astype(kind, copy=False) for name, kind in self._types.items()}
        output: NDArray[Any] = self._session.run([self._output], feeds)[0]
        return output

    def close(self) -> None:
        """Free session and inputs."""
        self._binding = self._session = None


class OnnxRuntime:
    """ONNX Runtime. Options: threads, spin (0: threads sleep between runs), provider (cuda or tensorrt on a GPU)."""

    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    precisions: ClassVar[tuple[str, ...]] = ("fp32", "fp16", "int8")
    options: ClassVar[tuple[str, ...]] = ("threads", "spin", "provider")
    experimental: ClassVar[bool] = False

    def available(self, target: Target) -> str | None:
        """Return what is missing: the package, its provider for the device, or the precision there."""
        kind, _ = split_device(target.device)
        if find_spec("onnxruntime") is None:
            package = "onnxruntime" if kind == "cpu" else "onnxruntime-gpu"
            return f"the package {package} is not installed: `pip install {package} onnx onnxscript`."
        if kind == "cpu" and target.precision == "fp16":
            return "ONNX Runtime computes in fp32 or int8 on the CPU. Use cpu/onnxruntime/fp32."
        if kind != "cpu" and target.precision == "int8":
            return "int8 networks are made for the CPU. Use cpu/onnxruntime/int8, or fp16 on the GPU."
        import onnxruntime

        if _provider(target) not in onnxruntime.get_available_providers():
            return f"this ONNX Runtime has no {_provider(target)}: `pip install onnxruntime-gpu` on a CUDA machine."
        return None

    def compile(
        self, network: nn.Module, target: Target, inputs: Sequence[Shape], *, pixels: bool = False
    ) -> Compiled:
        """Export a copy of the network and open a session on it."""
        data = graph_of(network, target, inputs, pixels=pixels)
        return self.compile_onnx(data, target, example_inputs(inputs, pixels=pixels))

    def compile_onnx(self, data: bytes, target: Target, arrays: Sequence[NDArray[Any]]) -> Compiled:
        """Open a session on a serialised model, with `arrays` as its resident inputs."""
        from segtailor.nets.onnx.graph import onnx_session

        data, notes = in_precision(data, target, arrays)
        name, spin = _provider(target), flag(target, "spin", default=True)
        providers: list[Any] = [PROVIDERS["cpu"]]
        if name != PROVIDERS["cpu"]:
            providers.insert(0, (name, {"device_id": split_device(target.device)[1]}))
        threads = target.threads or psutil.cpu_count(logical=False) or 1  # its default, set to be reported
        session = onnx_session(data, threads=threads, spin=spin, providers=providers)
        if session.get_providers()[0] != name:  # it falls back to the CPU without an error
            raise Unsupported(
                f"target {target}: {name} did not start; check that its CUDA libraries are installed."
            )
        compiled = OrtCompiled(session, named(arrays), target=target)
        compiled.notes = notes
        return compiled


def graph_of(network: nn.Module, target: Target, inputs: Sequence[Shape], *, pixels: bool) -> bytes:
    """Return the ONNX graph of a network in the precision that the target's runtime reads."""
    import torch

    from segtailor.nets.onnx.graph import onnx_bytes

    dtype = torch.float16 if target.precision == "fp16" and target.runtime != "openvino" else torch.float32
    module = copy.deepcopy(network).eval().requires_grad_(False).cpu().to(dtype)
    tensors = [torch.from_numpy(array) for array in example_inputs(inputs, pixels=pixels)]
    examples = tensors if pixels else [tensor.to(dtype) for tensor in tensors]
    return onnx_bytes(module, examples, names=input_names(len(inputs)), output="output")


def in_precision(
    data: bytes, target: Target, arrays: Sequence[NDArray[Any]]
) -> tuple[bytes, tuple[str, ...]]:
    """Return a model in the precision of its target, with notes on what was done to it.

    For an int8 target an fp32 model is quantised here, with ranges from `arrays`, which are noise: the time of a
    network does not depend on values, but its labels do. A quantised model on another target would be timed under a
    wrong precision, so it is refused.
    """
    from segtailor.nets.onnx.int8 import int8_onnx, is_quantised, read_model

    quantised = is_quantised(read_model(data))
    if target.precision == "int8" and not quantised:
        return int8_onnx(data, [named(arrays)]), (NOISE_NOTE,)
    if target.precision != "int8" and quantised:
        fitting = replace(target, precision="int8")
        raise Unsupported(f"target {target}: the network is quantised to int8. Use {fitting}.")
    return data, ()


def output_shape(data: bytes) -> tuple[int, ...]:
    """Return the size of a serialised model's first output."""
    from segtailor.nets.onnx.graph import onnx_session

    return tuple(onnx_session(data).get_outputs()[0].shape)


def input_arrays(data: bytes, *, what: str = "the ONNX model") -> tuple[NDArray[Any], ...]:
    """Return noise of the sizes that a serialised model states; one with open sizes is refused."""
    from segtailor.nets.onnx.graph import onnx_session

    return tuple(noise_for(onnx_session(data, what=what), what=what).values())


def noise_for(session: Any, *, what: str) -> dict[str, NDArray[Any]]:
    """Return noise for the inputs of a session, by name; it is the same each time."""
    arrays: dict[str, NDArray[Any]] = {}
    rng = np.random.default_rng(0)
    for source in session.get_inputs():
        if source.type not in ARRAY_TYPES or not all(isinstance(side, int) for side in source.shape):
            raise Unsupported(
                f"{what}: input '{source.name}' is {source.type} of size {source.shape}; only images of "
                "one fixed size can be timed. Export it again with a fixed size."
            )
        needed = 8 * math.prod(source.shape)  # noise is drawn in double precision
        check_memory(
            needed, what=f"{what}: an input of size {source.shape}", remedy="Export it again, smaller."
        )
        if source.type == "tensor(uint8)":
            arrays[source.name] = rng.integers(0, 256, source.shape, dtype=np.uint8)
        else:
            arrays[source.name] = rng.standard_normal(source.shape).astype(ARRAY_TYPES[source.type])
    return arrays


def _provider(target: Target) -> str:
    kind, _ = split_device(target.device)
    name = target.options.get("provider", kind)
    if name not in PROVIDERS or (name == "cpu") != (kind == "cpu"):
        allowed = "cpu" if kind == "cpu" else "cuda or tensorrt"
        raise Unsupported(f"target {target}: provider '{name}' does not run on {kind}; choose {allowed}.")
    return PROVIDERS[name]


def named(arrays: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return arrays by the names of a graph's inputs."""
    return dict(zip(input_names(len(arrays)), arrays, strict=True))


def input_names(count: int) -> tuple[str, ...]:
    """Return the names of a graph's inputs."""
    return ("image",) if count == 1 else tuple(f"input{index}" for index in range(count))
