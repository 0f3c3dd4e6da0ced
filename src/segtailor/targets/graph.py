"""PyTorch kernels recorded once and replayed as a CUDA graph: no launch cost and no Python per layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from numpy.typing import NDArray

from segtailor.core.plan import Shape
from segtailor.core.target import Target
from segtailor.targets.eager import TorchCompiled, cuda_settings, place, to_host, torch_device_problem
from segtailor.targets.runtime import Compiled, flag

if TYPE_CHECKING:
    from torch import Tensor, nn

WARM_UP_RUNS = 5  # before recording: libraries choose kernels and allocate workspaces


class GraphCompiled(TorchCompiled):
    """A recorded graph with static inputs and output."""

    def __init__(self, module: Callable[..., Tensor], inputs: Sequence[Tensor]) -> None:
        super().__init__(module, inputs=inputs, threads=None)
        with self.prepared():
            self._graph, self._output = self._record(module)

    def _record(self, module: Callable[..., Tensor]) -> tuple[Any, Tensor]:
        import torch

        device = self.inputs[0].device
        side: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.inference_mode():
            with torch.cuda.stream(side):
                for _ in range(WARM_UP_RUNS):
                    module(*self.inputs)
            torch.cuda.current_stream(device).wait_stream(side)
            torch.cuda.synchronize(device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                output = module(*self.inputs)
        return graph, output

    def run(self) -> None:
        """Replay on the resident inputs."""
        self._graph.replay()

    def outputs(self, *arrays: NDArray[Any]) -> NDArray[Any]:
        """Copy into the static inputs, replay, copy out."""
        import torch

        with self.prepared(), torch.inference_mode():
            for static, array in zip(self.inputs, arrays, strict=True):
                static.copy_(torch.from_numpy(array))
            self._graph.replay()
            return to_host(self._output)

    def close(self) -> None:
        """Free the graph and its memory."""
        super().close()
        self._graph = None
        del self._output


def quick_form(target: Target) -> Target:
    """Return the target without choosing kernels by timing, which takes seconds for each network; others as they are.

    Networks are slower there, all by nearly the same factor.
    """
    if target.runtime != "graph" or not flag(target, "tune", default=True):
        return target
    return replace(target, options={**target.options, "tune": "0"})


class CudaGraph:
    """A CUDA graph, best for batch 1. Options, each 1 (the default) or 0: channels_last; tune.

    With tune, operators are fused, kernels are chosen by timing, and branches run in parallel; without it, PyTorch's
    own kernels run one after the other.
    """

    devices: ClassVar[tuple[str, ...]] = ("cuda",)
    precisions: ClassVar[tuple[str, ...]] = ("fp16", "bf16", "fp32")
    options: ClassVar[tuple[str, ...]] = ("channels_last", "tune")
    experimental: ClassVar[bool] = False

    def available(self, target: Target) -> str | None:
        """Return why the CUDA device cannot be used, or None."""
        return torch_device_problem(target)

    def compile(
        self, network: nn.Module, target: Target, inputs: Sequence[Shape], *, pixels: bool = False
    ) -> Compiled:
        """Record a copy of the network at this input size."""
        module, tensors = place(network, target, inputs, pixels=pixels)
        if not flag(target, "tune", default=True):
            return GraphCompiled(module, tensors)
        from segtailor.targets.cuda.program import compile_program

        with cuda_settings(tensors[0].device):
            return GraphCompiled(compile_program(module, tensors), tensors)
