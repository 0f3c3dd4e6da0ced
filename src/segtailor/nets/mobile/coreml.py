"""Core ML: converted by coremltools from a trace. Its programs run on Apple's systems; here they are interpreted."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from segtailor.core.errors import Unsupported
from segtailor.nets.mobile.converter import ConverterSession, at_one_size, contiguous, converting

STAND_IN = "Core ML runs on Apple's systems only; here a reference interpreter stands in for it"


class CoreMlSession:
    """A program and the reference interpreter."""

    def __init__(self, file: Path) -> None:
        from segtailor.nets.mobile.mil import MilProgram

        self.threads: int | None = None
        with TemporaryDirectory() as place:
            shutil.unpack_archive(file, place, "zip")
            self._program = MilProgram(Path(place) / "model.mlpackage")
        self._inputs: list[NDArray[Any]] = []
        self._outputs: list[NDArray[Any]] = []

    def load(self, arrays: Sequence[NDArray[Any]]) -> None:
        """Keep the inputs."""
        self._inputs = contiguous(arrays)

    def run(self) -> None:
        """Interpret all operators."""
        self._outputs = self._program.run(*self._inputs)

    def outputs(self) -> list[NDArray[Any]]:
        """Return the outputs."""
        return self._outputs


class CoreMl:
    """Core ML programs, zipped: the package is a folder. `unzip` it on the Mac."""

    name: ClassVar[str] = "coreml"
    files: ClassVar[tuple[str, ...]] = ("model.mlpackage.zip",)
    imports: ClassVar[tuple[str, ...]] = ("coremltools",)
    install: ClassVar[str] = "pip install coremltools"

    def convert(
        self, module: nn.Module, examples: Sequence[Tensor], folder: Path, *, half: bool = False
    ) -> None:
        """Trace and convert; with `half` it also computes in half precision."""
        if not all(example.is_floating_point() for example in examples):
            raise Unsupported("export --to coreml reads normalised images; leave out --preprocess.")
        with converting(self.name), TemporaryDirectory() as place, torch.no_grad():
            import coremltools

            trace: Any = torch.jit.trace(at_one_size(module, examples), tuple(examples), check_trace=False)  # type: ignore[no-untyped-call]
            program = coremltools.convert(
                trace,
                inputs=[
                    coremltools.TensorType(name="image", shape=tuple(example.shape)) for example in examples
                ],
                convert_to="mlprogram",
                compute_precision=coremltools.precision.FLOAT16 if half else coremltools.precision.FLOAT32,
                minimum_deployment_target=coremltools.target.iOS16,
                skip_model_load=True,
            )
            program.save(f"{place}/model.mlpackage")
            packed = shutil.make_archive(str(folder / "model.mlpackage"), "zip", place, "model.mlpackage")
            if Path(packed).name != self.files[0]:
                raise Unsupported(f"coreml: the archive is named {packed}")

    def open(self, folder: Path, *, threads: int | None = None) -> ConverterSession:
        """Read the program for the interpreter, which uses the threads of torch."""
        del threads
        with converting(self.name):
            return CoreMlSession(folder / self.files[0])
