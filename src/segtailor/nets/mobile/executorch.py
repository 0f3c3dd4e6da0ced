"""ExecuTorch: a program of torch.export, lowered to XNNPACK, run by ExecuTorch's own runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from segtailor.nets.mobile.converter import ConverterSession, contiguous, converting


class ExecuTorchSession:
    """A loaded method. The threads are those of the process: ExecuTorch has one pool."""

    def __init__(self, file: Path, *, threads: int | None) -> None:
        from executorch.extension.pybindings import portable_lib
        from executorch.runtime import Runtime

        if threads is not None:
            portable_lib._unsafe_reset_threadpool(threads)
        self.threads: int | None = portable_lib._threadpool_get_thread_count()
        self._program = Runtime.get().load_program(file.read_bytes())
        self._method: Any = self._program.load_method("forward")
        self._inputs: list[Tensor] = []
        self._outputs: Sequence[Tensor] = ()

    def load(self, arrays: Sequence[NDArray[Any]]) -> None:
        """Keep copies of the inputs."""
        self._inputs = [torch.from_numpy(array.copy()) for array in contiguous(arrays)]

    def run(self) -> None:
        """Run all layers."""
        self._outputs = self._method.execute(self._inputs)

    def outputs(self) -> list[NDArray[Any]]:
        """Return copies of the outputs, whose memory the next run uses again."""
        return [output.numpy().copy() for output in self._outputs]


class ExecuTorch:
    """ExecuTorch on processors, through XNNPACK."""

    name: ClassVar[str] = "executorch"
    files: ClassVar[tuple[str, ...]] = ("model.pte",)
    imports: ClassVar[tuple[str, ...]] = ("executorch",)
    install: ClassVar[str] = "pip install executorch"

    def convert(
        self, module: nn.Module, examples: Sequence[Tensor], folder: Path, *, half: bool = False
    ) -> None:
        """Export and lower in single precision; layers that XNNPACK lacks run by portable kernels."""
        del half
        with converting(self.name), torch.no_grad():
            from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
            from executorch.exir import to_edge_transform_and_lower

            program = torch.export.export(module, tuple(examples))
            lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]).to_executorch()
            (folder / self.files[0]).write_bytes(lowered.buffer)

    def open(self, folder: Path, *, threads: int | None = None) -> ConverterSession:
        """Load the file."""
        return ExecuTorchSession(folder / self.files[0], threads=threads)
