"""ncnn, LiteRT and ExecuTorch on the CPU of this machine: networks are converted to their files and run from there.

Latencies on this machine compare networks within one runtime; a phone or board has other kernels for its processor.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

import psutil
from numpy.typing import NDArray

from segtailor.core.errors import Unsupported
from segtailor.core.plan import Shape
from segtailor.core.target import Target
from segtailor.targets.onnx import NOISE_NOTE
from segtailor.targets.runtime import Compiled, example_inputs

if TYPE_CHECKING:
    from torch import nn

    from segtailor.nets.mobile.converter import Converter, ConverterSession


class MobileCompiled(Compiled):
    """A session on converted files. Those in a temporary `place` are removed when it is closed."""

    def __init__(
        self,
        session: ConverterSession,
        arrays: Sequence[NDArray[Any]],
        place: TemporaryDirectory[str] | None = None,
    ) -> None:
        self._session: ConverterSession | None = session
        self._place, self._resident = place, arrays
        self.threads = session.threads
        session.load(arrays)

    def run(self) -> None:
        """Do one inference on the resident inputs."""
        if self._session is not None:
            self._session.run()

    def outputs(self, *arrays: NDArray[Any]) -> NDArray[Any]:
        """Run on arrays in host memory, and put the resident inputs back."""
        if self._session is None:
            raise ValueError("the network is closed")
        self._session.load(arrays)
        self._session.run()
        output = self._session.outputs()[0]
        self._session.load(self._resident)
        return output

    def close(self) -> None:
        """Free the session and remove the files."""
        self._session = None
        if self._place is not None:
            self._place.cleanup()


class MobileRuntime:
    """What these runtimes have in common. Option: threads."""

    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    precisions: ClassVar[tuple[str, ...]] = ("fp32",)
    options: ClassVar[tuple[str, ...]] = ("threads",)
    experimental: ClassVar[bool] = False

    def converter(self) -> Converter:
        """Return the converter to the runtime's files."""
        raise NotImplementedError

    def available(self, target: Target) -> str | None:  # noqa: ARG002 - the form of the protocol
        """Return which package is missing."""
        from segtailor.nets.mobile.converter import missing

        return missing(self.converter())

    def compile(
        self, network: nn.Module, target: Target, inputs: Sequence[Shape], *, pixels: bool = False
    ) -> Compiled:
        """Convert a copy of the network and open it; for int8 it is rounded with ranges from noise."""
        import torch

        arrays = example_inputs(inputs, pixels=pixels)
        module = copy.deepcopy(network).eval().requires_grad_(False).cpu().float()
        place = TemporaryDirectory()
        try:
            folder = Path(place.name)
            self.converter().convert(module, [torch.from_numpy(array) for array in arrays], folder)
            if target.precision == "int8":
                folder = self._in_int8(folder, arrays)
            compiled = MobileCompiled(self._session(folder, target), arrays, place)
            compiled.notes = (NOISE_NOTE,) if target.precision == "int8" else ()
            return compiled
        except BaseException:
            place.cleanup()
            raise

    def compile_files(self, folder: Path, target: Target, arrays: Sequence[NDArray[Any]]) -> Compiled:
        """Open files that were written before, in the precision of the target, with `arrays` as resident inputs."""
        return MobileCompiled(self._session(folder, target), arrays)

    def _session(self, folder: Path, target: Target) -> ConverterSession:
        threads = target.threads or psutil.cpu_count(logical=False) or 1
        return self.converter().open(folder, threads=threads)

    def _in_int8(self, folder: Path, arrays: Sequence[NDArray[Any]]) -> Path:
        from segtailor.nets.mobile.converter import Int8Converter

        converter, out = self.converter(), folder / "int8"
        if not isinstance(converter, Int8Converter):
            raise Unsupported(f"{converter.name} has no int8 here; use fp32, or cpu/onnxruntime/int8.")
        out.mkdir()
        converter.quantise(folder, out, [arrays])
        return out


class NcnnRuntime(MobileRuntime):
    """ncnn in single precision or int8. Option: threads."""

    precisions: ClassVar[tuple[str, ...]] = ("fp32", "int8")

    def converter(self) -> Converter:
        """Return pnnx and ncnn."""
        from segtailor.nets.mobile.ncnn import Ncnn

        return Ncnn()


class LiteRtRuntime(MobileRuntime):
    """LiteRT (TensorFlow Lite) in single precision or int8. Option: threads."""

    precisions: ClassVar[tuple[str, ...]] = ("fp32", "int8")

    def converter(self) -> Converter:
        """Return litert-torch and its interpreter."""
        from segtailor.nets.mobile.litert import LiteRt

        return LiteRt()


class ExecuTorchRuntime(MobileRuntime):
    """ExecuTorch with XNNPACK in single precision. Option: threads (of the process)."""

    def converter(self) -> Converter:
        """Return ExecuTorch."""
        from segtailor.nets.mobile.executorch import ExecuTorch

        return ExecuTorch()
