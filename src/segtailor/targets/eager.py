"""PyTorch runtimes: `eager`, and `compiled` by torch.compile."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from numpy.typing import NDArray

from segtailor.core.plan import Shape
from segtailor.core.target import Target
from segtailor.targets.runtime import Compiled, example_inputs, flag, split_device, torch_threads

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


class TorchCompiled(Compiled):
    """A module with resident tensors on one device."""

    def __init__(self, call: Any, *, inputs: Sequence[Tensor], threads: int | None) -> None:
        self._call = call
        self.inputs = tuple(inputs)
        self._threads = threads
        self.asynchronous = self.inputs[0].device.type == "cuda"
        if not self.asynchronous:
            import torch

            self.threads = threads or torch.get_num_threads()

    def run(self) -> None:
        """Do one inference on the resident inputs."""
        import torch

        with torch.inference_mode():
            self._call(*self.inputs)

    def outputs(self, *arrays: NDArray[Any]) -> NDArray[Any]:
        """Copy in, run, copy out."""
        import torch

        with self.prepared(), torch.inference_mode():
            return to_host(self._call(*self.placed(arrays)))

    def placed(self, arrays: Sequence[NDArray[Any]]) -> list[Tensor]:
        """Return arrays as tensors of the device, type and layout of the resident inputs."""
        import torch

        return [
            torch.from_numpy(array).to(like.device, like.dtype, memory_format=layout_of(like))
            for array, like in zip(arrays, self.inputs, strict=True)
        ]

    def synchronise(self) -> None:
        """Wait for the device."""
        if self.asynchronous:
            import torch

            torch.cuda.synchronize(self.inputs[0].device)

    def prepared(self) -> AbstractContextManager[None]:
        """Apply the number of threads, or the CUDA device with cuDNN's kernel selection."""
        if self.asynchronous:
            return cuda_settings(self.inputs[0].device)
        return torch_threads(self._threads)

    def close(self) -> None:
        """Drop the network and its inputs."""
        self._call = None
        self.inputs = ()


class Eager:
    """PyTorch, operator by operator. Options: threads, channels_last (1, the default, or 0)."""

    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    precisions: ClassVar[tuple[str, ...]] = ("fp32", "bf16", "fp16")
    options: ClassVar[tuple[str, ...]] = ("threads", "channels_last")
    experimental: ClassVar[bool] = False

    def available(self, target: Target) -> str | None:
        """Return why the device cannot be used, or None."""
        return torch_device_problem(target)

    def compile(
        self, network: nn.Module, target: Target, inputs: Sequence[Shape], *, pixels: bool = False
    ) -> Compiled:
        """Move a copy of the network to the device, in the precision and layout asked for."""
        module, tensors = place(network, target, inputs, pixels=pixels)
        return TorchCompiled(module, inputs=tensors, threads=target.threads)


class TorchCompile:
    """PyTorch with torch.compile; compiling takes 10 to 30 seconds. Options: threads, channels_last."""

    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    precisions: ClassVar[tuple[str, ...]] = ("fp32", "bf16", "fp16")
    options: ClassVar[tuple[str, ...]] = ("threads", "channels_last")
    experimental: ClassVar[bool] = False

    def available(self, target: Target) -> str | None:
        """Return why the device or the compiler of torch.compile cannot be used, or None."""
        problem = torch_device_problem(target)
        if problem is None and split_device(target.device)[0] == "cpu" and not shutil.which("g++"):
            problem = "torch.compile on CPU needs the compiler g++; install it (e.g. the package g++)."
        return problem

    def compile(
        self, network: nn.Module, target: Target, inputs: Sequence[Shape], *, pixels: bool = False
    ) -> Compiled:
        """Compile a copy of the network for this one input size; the first run compiles."""
        import torch

        module, tensors = place(network, target, inputs, pixels=pixels)
        call = torch.compile(module, dynamic=False, fullgraph=True)
        compiled = TorchCompiled(call, inputs=tensors, threads=target.threads)
        # All networks share one `forward`, and torch.compile stops compiling a function after a few versions of it.
        no_limit = torch._dynamo.config.patch(recompile_limit=10_000, accumulated_recompile_limit=10_000)
        with compiled.prepared(), no_limit:
            compiled.run()
        return compiled


def torch_device_problem(target: Target) -> str | None:
    """Return why torch cannot use the target's device here, or None."""
    import torch

    kind, index = split_device(target.device)
    if kind == "cpu":
        return None
    if not torch.cuda.is_available():
        return "there is no CUDA device, or this PyTorch was built without CUDA. Use a cpu/... target."
    if index >= torch.cuda.device_count():
        return f"there is no device '{target.device}'; this machine has {torch.cuda.device_count()}."
    return None


def place(
    network: nn.Module, target: Target, inputs: Sequence[Shape], *, pixels: bool
) -> tuple[nn.Module, list[Tensor]]:
    """Copy network and example inputs to the target's device, precision and memory layout."""
    import torch

    device = torch.device(*split_device(target.device)) if target.device != "cpu" else torch.device("cpu")
    dtype = torch_type(target.precision)
    last = flag(target, "channels_last", default=True)
    layout = torch.channels_last if last else torch.contiguous_format
    module = copy.deepcopy(network).eval().requires_grad_(False).to(device, dtype)
    module.to(memory_format=layout)  # type: ignore[call-overload]
    tensors = []
    for array in example_inputs(inputs, pixels=pixels):
        tensor = torch.from_numpy(array).to(device)
        tensors.append(tensor if pixels else tensor.to(dtype, memory_format=layout))
    return module, tensors


@contextmanager
def cuda_settings(device: torch.device) -> Iterator[None]:
    """Make a device current and let cuDNN choose kernels by timing them: input sizes do not change."""
    import torch

    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        with torch.cuda.device(device):
            yield
    finally:
        torch.backends.cudnn.benchmark = before


def torch_type(precision: str) -> torch.dtype:
    """Return the torch type of a precision."""
    import torch

    return {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[precision]


def layout_of(tensor: Tensor) -> torch.memory_format:
    """Return the memory layout of a tensor."""
    import torch

    last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last and not tensor.is_contiguous() else torch.contiguous_format


def to_host(tensor: Tensor) -> NDArray[Any]:
    """Return a tensor as an array; numpy has no bfloat16, so floats come back in single precision."""
    host = tensor.detach().cpu()
    array: NDArray[Any] = (host.float() if host.is_floating_point() else host).numpy()
    return array
