"""What a converter is: it writes a traced module as the files of one runtime, and opens them again on this machine."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from segtailor.core.errors import Unsupported


class ConverterSession(Protocol):
    """Files opened by their runtime. `threads` is None if the runtime does not tell."""

    threads: int | None

    def load(self, arrays: Sequence[NDArray[Any]]) -> None:
        """Copy or keep the inputs of the next runs."""

    def run(self) -> None:
        """Do one inference on them."""

    def outputs(self) -> list[NDArray[Any]]:
        """Return copies of the outputs of the last run, in the order of the module's."""


class Converter(Protocol):
    """A way to write files. `imports` are the modules that it needs, `install` how to get them."""

    name: ClassVar[str]
    files: ClassVar[tuple[str, ...]]
    imports: ClassVar[tuple[str, ...]]
    install: ClassVar[str]

    def convert(
        self, module: nn.Module, examples: Sequence[Tensor], folder: Path, *, half: bool = False
    ) -> None:
        """Write the files of a module in evaluation mode; with `half` weights are stored in half precision."""

    def open(self, folder: Path, *, threads: int | None = None) -> ConverterSession:
        """Open files that were written here."""


class SampleInputs(Protocol):
    """Inputs of a network for several runs, all inputs of a run at once; they can be iterated again."""

    def __len__(self) -> int:
        """Return the number of runs."""

    def __iter__(self) -> Iterator[Sequence[NDArray[Any]]]:
        """Yield the inputs of each."""


@runtime_checkable
class Int8Converter(Converter, Protocol):
    """A converter that can also write its files in eight bits. `quantiser` names what does it."""

    quantiser: ClassVar[str]

    def quantise(self, folder: Path, out: Path, images: SampleInputs) -> None:
        """Write the fp32 files of a folder to another one in eight bits, with ranges measured on inputs."""


def missing(converter: Converter) -> str | None:
    """Return which packages are not installed and how to get them, or None."""
    absent = [name for name in converter.imports if find_spec(name) is None]
    if not absent:
        return None
    return f"{converter.name} needs {' and '.join(absent)}, not installed here: `{converter.install}`."


def at_one_size(module: nn.Module, examples: Sequence[Tensor]) -> torch.fx.GraphModule:
    """Return the module with all sizes as constants; traces of the module itself would compute sizes at run time."""
    exported: torch.fx.GraphModule = torch.export.export(module, tuple(examples)).module()
    for node in list(exported.graph.nodes):
        if (
            node.op == "call_function" and node.target is torch.ops.aten.alias.default
        ):  # unknown to coremltools
            node.replace_all_uses_with(node.args[0])
            exported.graph.erase_node(node)
    exported.recompile()
    return exported


def contiguous(arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return arrays in the plain layout: these runtimes read memory without looking at strides."""
    return [np.ascontiguousarray(array) for array in arrays]


@contextlib.contextmanager
def converting(name: str) -> Iterator[None]:
    """Keep a converter's chatter off the terminal, and turn its errors into one that says what to do."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        silent = io.StringIO()
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(silent),
            contextlib.redirect_stderr(silent),
        ):
            warnings.simplefilter("ignore")
            yield
    except Unsupported:
        raise
    except Exception as problem:  # converters raise anything
        line = " ".join(str(problem).split())[:200]
        raise Unsupported(
            f"{name} cannot convert this network ({type(problem).__name__}: {line}). Use onnx, or cpu/onnxruntime/fp32."
        ) from problem
    finally:
        logging.disable(before)
