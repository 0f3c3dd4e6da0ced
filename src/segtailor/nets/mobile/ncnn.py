"""ncnn: converted by its program pnnx from a trace, run by its Python package. It has float inputs and no arg max."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from segtailor.core.errors import Unsupported
from segtailor.nets.mobile.converter import (
    ConverterSession,
    SampleInputs,
    at_one_size,
    contiguous,
    converting,
)

CONVERT_TIMEOUT_SECONDS = 600
HALF_OPTIONS = (
    "use_fp16_packed",
    "use_fp16_storage",
    "use_fp16_arithmetic",
    "use_bf16_storage",
)  # ncnn computes in half precision by default, where the processor can


class NcnnSession:
    """A network with one extractor for each run."""

    def __init__(self, param: Path, weights: Path, *, threads: int | None) -> None:
        self._net, self._output = open_net(param, weights, threads=threads), None
        self.threads: int | None = self._net.opt.num_threads
        self._mats: list[Any] = []

    def load(self, arrays: Sequence[NDArray[Any]]) -> None:
        """Copy the inputs."""
        self._mats = as_mats(arrays)

    def run(self) -> None:
        """Run all layers."""
        extractor = extractor_with(self._net, self._mats)
        problem, output = extractor.extract("out0")
        if problem != 0:
            raise Unsupported("ncnn could not run the network; the memory may be full.")
        self._output = output

    def outputs(self) -> list[NDArray[Any]]:
        """Return the output with the axis of the image."""
        return [np.array(self._output)[None]]


def open_net(param: Path, weights: Path, *, threads: int | None, keep_maps: bool = False) -> Any:
    """Load a network that computes in single precision (or in int8, as its files say) on the processor.

    With `keep_maps`, maps inside can be extracted one after the other without running the network again.
    """
    import ncnn

    net = ncnn.Net()
    if threads is not None:
        net.opt.num_threads = threads
    net.opt.use_vulkan_compute, net.opt.lightmode = False, not keep_maps
    for name in HALF_OPTIONS:
        setattr(net.opt, name, False)
    if net.load_param(str(param)) != 0 or net.load_model(str(weights)) != 0:
        raise Unsupported(f"ncnn cannot load {param.name}; export it again, or use onnx.")
    return net


def as_mats(arrays: Sequence[NDArray[Any]]) -> list[Any]:
    """Return copies of inputs without their first axis: ncnn runs one image, and only looks at the memory of arrays."""
    import ncnn

    return [ncnn.Mat(array[0]).clone() for array in contiguous(arrays)]


def extractor_with(net: Any, mats: Sequence[Any]) -> Any:
    """Return a run of a network on inputs."""
    extractor = net.create_extractor()
    for index, mat in enumerate(mats):
        extractor.input(f"in{index}", mat)
    return extractor


class Ncnn:
    """ncnn on processors."""

    name: ClassVar[str] = "ncnn"
    files: ClassVar[tuple[str, ...]] = ("model.ncnn.param", "model.ncnn.bin")
    imports: ClassVar[tuple[str, ...]] = ("ncnn", "pnnx")
    install: ClassVar[str] = "pip install ncnn pnnx"
    quantiser: ClassVar[str] = "segtailor"

    def convert(
        self, module: nn.Module, examples: Sequence[Tensor], folder: Path, *, half: bool = False
    ) -> None:
        """Trace, convert, and refuse layers that ncnn does not have."""
        if not all(example.is_floating_point() for example in examples):
            raise Unsupported("ncnn reads floats, not pixels; leave the preprocessing out of the file.")
        with converting(self.name), TemporaryDirectory() as place, torch.no_grad():
            trace: Any = torch.jit.trace(at_one_size(module, examples), tuple(examples), check_trace=False)  # type: ignore[no-untyped-call]
            trace.save(f"{place}/model.pt")
            shapes = ",".join(f"[{','.join(map(str, example.shape))}]" for example in examples)
            self._pnnx(Path(place), f"inputshape={shapes}", f"fp16={int(half)}")
            strange = unknown_layers((Path(place) / self.files[0]).read_text(encoding="utf-8"))
            if strange:
                raise Unsupported(
                    f"ncnn has no layer for {', '.join(strange)}. Give it the network alone (--output logits, or "
                    "--includes network), or use another runtime."
                )
            for name in self.files:
                shutil.copyfile(Path(place) / name, folder / name)

    def quantise(self, folder: Path, out: Path, images: SampleInputs) -> None:
        """Round the kernels, and the inputs of their layers."""
        from segtailor.nets.mobile.ncnn_int8 import quantise_files

        names = self.files
        source, done = ((place / names[0], place / names[1]) for place in (folder, out))
        quantise_files(source, done, images)

    def _pnnx(self, place: Path, *words: str) -> None:
        import pnnx

        done = subprocess.run(
            [pnnx.EXEC_PATH, "model.pt", *words],
            cwd=place, capture_output=True, text=True, check=False, timeout=CONVERT_TIMEOUT_SECONDS,
        )  # fmt: skip
        if done.returncode != 0 or not (place / self.files[1]).is_file():
            tail = " ".join((done.stderr or done.stdout).split())[-200:]
            raise Unsupported(
                f"pnnx cannot convert this network ({tail}). Use onnx, or cpu/onnxruntime/fp32."
            )

    def open(self, folder: Path, *, threads: int | None = None) -> ConverterSession:
        """Load both files."""
        return NcnnSession(folder / self.files[0], folder / self.files[1], threads=threads)


def unknown_layers(param: str) -> list[str]:
    """Return operators of torch that a converted file still names: ncnn's own layers have plain names."""
    kinds = {line.split()[0] for line in param.splitlines()[2:] if line.strip()}
    return sorted(kind for kind in kinds if not re.fullmatch(r"[A-Z]\w*", kind))
