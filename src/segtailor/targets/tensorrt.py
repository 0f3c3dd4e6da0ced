"""TensorRT, through its Python package or its command `trtexec` (which only times), and its engines as files.

Experimental: written from the documentation of versions 10 and 11, not yet run on a device. The tests of `trtexec` use
recorded texts of both versions. Version 11 has no precision flags: networks are strongly typed, so the graph's own
types say where to compute in half precision. A graph of another precision than its target is refused, as is an engine.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from segtailor.core.errors import Unsupported
from segtailor.core.plan import Shape
from segtailor.core.target import Target
from segtailor.targets.eager import TorchCompiled, to_host, torch_device_problem
from segtailor.targets.onnx import graph_of
from segtailor.targets.runtime import Compiled, example_inputs, runtime_for, split_device

if TYPE_CHECKING:
    from torch import Tensor, nn


RUNS_PER_CALL = 500  # of the command trtexec: starting it takes seconds
BUILD_TIMEOUT_SECONDS, TIMING_TIMEOUT_SECONDS = 1800, 300


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
        check_graph_precision(data, target)
        if find_spec("tensorrt") is None:
            return TrtexecCompiled(data, target)
        import torch

        engine = checked_engine(engine_bytes(data), target.precision)
        device = torch.device(*split_device(target.device))
        half = target.precision == "fp16"
        tensors = [torch.from_numpy(array).to(device) for array in arrays]
        inputs = [tensor.half() if half and tensor.is_floating_point() else tensor for tensor in tensors]
        return TrtCompiled(engine, inputs)


class TrtCompiled(TorchCompiled):
    """An execution context with torch tensors as buffers."""

    def __init__(self, engine: Any, inputs: Sequence[Tensor]) -> None:
        import torch

        super().__init__(None, inputs=inputs, threads=None)
        self._engine, self._context = engine, engine.create_execution_context()
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        kinds = {name: _torch_type(engine.get_tensor_dtype(name)) for name in names}
        self._outputs: list[Tensor] = []
        for name, tensor in zip(names[: len(inputs)], self.inputs, strict=True):
            self._context.set_tensor_address(name, tensor.data_ptr())
        for name in names[len(inputs) :]:
            shape = tuple(engine.get_tensor_shape(name))
            self._outputs.append(torch.empty(shape, dtype=kinds[name], device=self.inputs[0].device))
            self._context.set_tensor_address(name, self._outputs[-1].data_ptr())

    def run(self) -> None:
        """Enqueue one inference."""
        import torch

        stream = torch.cuda.current_stream(self.inputs[0].device).cuda_stream
        self._context.execute_async_v3(stream)

    def outputs(self, *arrays: NDArray[Any]) -> NDArray[Any]:
        """Copy in, run, copy out."""
        return self.all_outputs(*arrays)[0]

    def all_outputs(self, *arrays: NDArray[Any]) -> list[NDArray[Any]]:
        """Do the same for every output of the graph, in its order."""
        import torch

        for static, array in zip(self.inputs, arrays, strict=True):
            static.copy_(torch.from_numpy(array))
        self.run()
        return [to_host(output) for output in self._outputs]

    def close(self) -> None:
        """Free the engine."""
        super().close()
        self._context = self._engine = None


class TrtexecCompiled(Compiled):
    """An engine file for the command trtexec, and the times that the command measured for it."""

    def __init__(self, model: bytes, target: Target) -> None:
        self._folder = TemporaryDirectory(prefix="segtailor-trtexec-")
        self._times: deque[float] = deque()
        source = self._file("model.onnx")
        source.write_bytes(model)
        try:
            told = self._call(
                f"--onnx={source}",
                f"--saveEngine={self._file('engine')}",
                "--stronglyTyped",  # needed by version 10, always on in version 11
                "--skipInference",
                "--profilingVerbosity=detailed",
                f"--exportLayerInfo={self._file('layers.json')}",
                seconds=BUILD_TIMEOUT_SECONDS,
            )
            check_engine_precision(self._read("layers.json", "layers"), target.precision)
        except BaseException:
            self.close()
            raise
        version = version_of(told)
        self.notes = (f"timed by trtexec of TensorRT {version}",) if version else ()

    def run(self) -> None:
        """Drop the time of the next measured run."""
        self.next_seconds()

    def next_seconds(self) -> float:
        """Return the seconds of the next run on the device; measure more when none is left."""
        if not self._times:
            self._times.extend(self._measure())
        return self._times.popleft()

    def outputs(self, *arrays: NDArray[Any]) -> NDArray[Any]:
        """Refuse: the command does not return outputs."""
        raise Unsupported(
            f"trtexec only measures time and cannot compute {len(arrays)} input(s); "
            "install the Python package tensorrt to run networks."
        )

    def close(self) -> None:
        """Remove the engine."""
        self._folder.cleanup()

    def _measure(self) -> list[float]:
        report = self._file("times.json")
        self._call(
            f"--loadEngine={self._file('engine')}", f"--iterations={RUNS_PER_CALL}", "--warmUp=200", "--duration=0",
            "--useCudaGraph", "--useSpinWait", "--noDataTransfers",  # what version 11 does in any case
            f"--exportTimes={report}", seconds=TIMING_TIMEOUT_SECONDS,
        )  # fmt: skip
        try:
            times = [float(row["computeMs"]) / 1000 for row in self._read(report.name, "times")]
        except (ValueError, KeyError, TypeError) as problem:
            raise Unsupported(
                f"trtexec wrote no times that can be read ({problem}); check its version."
            ) from None
        if not times:
            raise Unsupported("trtexec measured no run; check its version.")
        return times

    def _read(self, name: str, what: str) -> Any:
        try:
            return json.loads(self._file(name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise Unsupported(
                f"trtexec wrote no {what} that can be read ({problem}); check its version."
            ) from None

    def _call(self, *words: str, seconds: float) -> str:
        command = [trtexec_path() or "trtexec", *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        except (OSError, subprocess.TimeoutExpired) as problem:
            raise Unsupported(f"trtexec could not be run ({problem}). Use cuda/graph/fp16.") from None
        if done.returncode != 0:
            tail = " ".join((done.stderr or done.stdout).split())[-300:]
            raise Unsupported(f"trtexec failed with code {done.returncode}: {tail}. Use cuda/graph/fp16.")
        return done.stdout

    def _file(self, name: str) -> Path:
        return Path(self._folder.name) / name


def trtexec_path() -> str | None:
    """Return the path of the command trtexec, or None."""
    return shutil.which("trtexec")


@dataclass(frozen=True, kw_only=True)
class EngineFile:
    """Writes and opens engine files for the first GPU of this machine."""

    precision: str = "fp16"

    def check(self) -> None:
        """Raise `Unsupported` naming what is missing here."""
        runtime_for(Target(device="cuda", runtime="tensorrt", precision=self.precision))
        if find_spec("tensorrt") is None:
            raise Unsupported(
                "export --to tensorrt needs the package tensorrt (the command trtexec alone cannot run the engine to "
                "check it): `pip install tensorrt` from NVIDIA's index."
            )

    def write(self, graph: bytes, file: Path) -> None:
        """Build an engine from a serialised ONNX model."""
        data = engine_bytes(graph)
        checked_engine(data, self.precision)
        file.write_bytes(data)

    def open(self, file: Path) -> Callable[[NDArray[Any]], Sequence[NDArray[Any]]]:
        """Load an engine; return a function from an input array to the output arrays."""
        engine = read_engine(file.read_bytes())

        def run(array: NDArray[Any]) -> list[NDArray[Any]]:
            import torch

            return TrtCompiled(engine, [torch.from_numpy(array).to("cuda")]).all_outputs(array)

        return run


def check_graph_precision(data: bytes, target: Target) -> None:
    """Refuse a graph whose weights have another precision than the target: its time would bear a wrong name."""
    import onnx

    weights = onnx.load_model_from_string(data).graph.initializer
    sizes = {
        name: sum(math.prod(weight.dims) for weight in weights if weight.data_type == kind)
        for name, kind in (("fp32", onnx.TensorProto.FLOAT), ("fp16", onnx.TensorProto.FLOAT16))
    }
    found = max(sizes, key=lambda name: sizes[name])
    if any(sizes.values()) and found != target.precision:
        raise Unsupported(
            f"target {target}: the graph computes in {found}, and TensorRT takes precisions from the graph. Export it "
            f"with --precision {target.precision}, or use {replace(target, precision=found)}."
        )


def version_of(told: str) -> str | None:
    """Return the version of TensorRT that a log of trtexec names."""
    found = re.search(r"\[I\] TensorRT version: ([\d.]+)", told)
    return found[1] if found else None


def check_engine_precision(information: Any, wanted: str) -> None:
    """Refuse an engine that computes in another precision than its target, by what its inspector tells of its layers.

    Version 10 names types under `Format/Datatype`, version 11 under `Datatype`.
    """
    layers = information.get("Layers", ()) if isinstance(information, dict) else ()
    tensors = [
        tensor
        for layer in layers
        if isinstance(layer, dict)  # only a name where the engine keeps no details
        for side in ("Inputs", "Outputs")
        for tensor in layer.get(side, ())
    ]
    kinds = [str(tensor.get("Datatype", tensor.get("Format/Datatype", ""))) for tensor in tensors]
    half = any(kind.startswith("Half") or "FP16" in kind for kind in kinds)
    if not half and not any(kind.startswith("Float") or "FP32" in kind for kind in kinds):
        raise Unsupported("TensorRT does not tell in which types its engine computes; check its version.")
    found = "fp16" if half else "fp32"
    if found != wanted:
        raise Unsupported(
            f"TensorRT built an engine that computes in {found}, not in {wanted}: its time would bear a wrong name. "
            f"Export the graph with --precision {wanted}, or use cuda/graph/{wanted}."
        )


def checked_engine(data: bytes, precision: str) -> Any:
    """Load a serialised engine, and check in which precision it computes."""
    import tensorrt

    engine = read_engine(data)
    text = engine.create_engine_inspector().get_engine_information(tensorrt.LayerInformationFormat.JSON)
    check_engine_precision(json.loads(text), precision)
    return engine


def engine_bytes(data: bytes) -> bytes:
    """Build a strongly typed engine: the graph's own types say where to compute in half precision."""
    import tensorrt

    logger = tensorrt.Logger(tensorrt.Logger.ERROR)
    builder = tensorrt.Builder(logger)
    graph = builder.create_network(1 << int(tensorrt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = tensorrt.OnnxParser(graph, logger)
    if not parser.parse(data):
        raise Unsupported(f"TensorRT cannot read the network: {parser.get_error(0)}. Use cuda/graph/fp16.")
    config = builder.create_builder_config()
    config.profiling_verbosity = tensorrt.ProfilingVerbosity.DETAILED  # so that the engine tells its types
    plan = builder.build_serialized_network(graph, config)
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
