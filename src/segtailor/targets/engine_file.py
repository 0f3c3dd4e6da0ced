"""TensorRT engines as files. Experimental: written from the documentation of version 10, not yet run on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from segtailor.core.errors import Unsupported
from segtailor.core.target import Target
from segtailor.targets.runtime import runtime_for
from segtailor.targets.tensorrt import TrtCompiled, engine_bytes, read_engine


@dataclass(frozen=True, kw_only=True)
class EngineFile:
    """Writes and opens engines for the first GPU of this machine."""

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
        file.write_bytes(engine_bytes(graph))

    def open(self, file: Path) -> Callable[[NDArray[Any]], NDArray[Any]]:
        """Load an engine: a function from an input array to the output."""
        engine = read_engine(file.read_bytes())

        def run(array: NDArray[Any]) -> NDArray[Any]:
            import torch

            return TrtCompiled(engine, [torch.from_numpy(array).to("cuda")]).outputs(array)

        return run
