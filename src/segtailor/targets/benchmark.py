"""Time several networks on several targets, in turns, so that their latencies can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from segtailor.core import memory
from segtailor.core.errors import Unsupported, UserError
from segtailor.core.plan import Plan, Shape
from segtailor.core.target import Includes, Target
from segtailor.targets.onnx import input_arrays, noise_for, output_shape
from segtailor.targets.runtime import Compiled, check_sizes, example_inputs, runtime_for
from segtailor.targets.timing import BenchEntry, Measurement, TimingSettings, measure_all

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A network to time: a module in the form that is deployed, with all the stages that `includes` names."""

    name: str
    module: nn.Module
    inputs: tuple[Shape, ...]
    includes: Includes = "network"

    def compile(self, target: Target) -> Compiled:
        """Prepare for a target."""
        pixels = self.includes == "end-to-end"
        return runtime_for(target).compile(self.module, target, self.inputs, pixels=pixels)


@dataclass(frozen=True, kw_only=True)
class OnnxSubject:
    """An ONNX file to time, at the size and with the stages that are inside it."""

    name: str
    data: bytes
    arrays: tuple[NDArray[Any], ...]
    inputs: tuple[Shape, ...]
    includes: Includes

    def compile(self, target: Target) -> Compiled:
        """Prepare for a target, whose runtime must read ONNX."""
        build = getattr(runtime_for(target), "compile_onnx", None)
        if build is None:
            raise Unsupported(
                f"target {target}: runtime '{target.runtime}' cannot run an ONNX file ({self.name}); "
                "use onnxruntime, openvino or tensorrt."
            )
        compiled: Compiled = build(self.data, target, self.arrays)
        return compiled


@dataclass(frozen=True, kw_only=True)
class FilesSubject:
    """A folder with the files of a runtime that has its own format, at the size and with the stages inside."""

    name: str
    folder: Path
    inputs: tuple[Shape, ...]
    includes: Includes

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """The inputs of a run."""
        return example_inputs(self.inputs, pixels=self.includes == "end-to-end")

    def compile(self, target: Target) -> Compiled:
        """Open for a target of that runtime."""
        build = getattr(runtime_for(target), "compile_files", None)
        if build is None:
            raise Unsupported(f"target {target}: runtime '{target.runtime}' cannot run {self.name}.")
        compiled: Compiled = build(self.folder, target, self.arrays)
        return compiled


def benchmark(
    subjects: Sequence[Subject | OnnxSubject | FilesSubject],
    targets: Sequence[Target],
    settings: TimingSettings | None = None,
) -> list[Measurement]:
    """Measure every subject on every target, interleaved; what cannot run is refused before any work."""
    if not subjects or not targets:
        raise UserError("bench: give at least one network and one target.")
    for target in targets:
        runtime_for(target)
    for subject in subjects:
        check_sizes(subject.inputs)
    with ExitStack() as stack:
        entries = [compile_entry(subject, target, stack) for subject in subjects for target in targets]
        return measure_all(entries, settings)


def compile_entry(
    subject: Subject | OnnxSubject | FilesSubject, target: Target, stack: ExitStack
) -> BenchEntry:
    """Compile a subject for a target; it is closed with the stack."""
    compiled = subject.compile(target)
    stack.callback(compiled.close)
    return BenchEntry(
        network=subject.name,
        target=target,
        inputs=subject.inputs,
        compiled=compiled,
        includes=subject.includes,
    )


def read_onnx(file: Path, *, image: tuple[int, int] | None = None, includes: str = "network") -> OnnxSubject:
    """Read an ONNX file. Its stages are fixed, and so is its size unless it is open; asking for others is refused."""
    from segtailor.nets.onnx.confined import check_repeatable, read_onnx_bytes

    what = f"ONNX file {file}"
    data = _at_fixed_size(read_onnx_bytes(file), image, what=what)
    check_repeatable(data, lambda session: noise_for(session, what=what), what=what)
    arrays = input_arrays(data, what=what)
    pixels = len(arrays) == 1 and arrays[0].dtype.kind == "u"
    shapes = []
    for array in arrays:
        if array.ndim != 4 or array.shape[0] != 1:
            raise Unsupported(f"ONNX file {file}: an input has size {array.shape}; only one image is timed.")
        _, *sides = array.shape
        shapes.append(Shape(sides[2], sides[0], sides[1]) if pixels else Shape(*sides))
    inside = _stages_inside(output_shape(data), shapes[0], pixels=pixels)
    if includes not in ("network", inside) or image not in (None, shapes[0][1:]):
        raise Unsupported(
            f"ONNX file {file} holds {inside} at {shapes[0].height}x{shapes[0].width}, which cannot be changed by "
            "timing it. Leave out the size and what to include, or export it again."
        )
    return OnnxSubject(name=file.name, data=data, arrays=arrays, inputs=tuple(shapes), includes=inside)


def _at_fixed_size(data: bytes, image: tuple[int, int] | None, *, what: str) -> bytes:
    """Return a model of one size: its own, or the one asked for if its size is open."""
    from segtailor.nets.onnx.bounds import parse_graph, stated_sizes
    from segtailor.nets.onnx.graph import at_size

    shapes = stated_sizes(parse_graph(data, what=what))
    if len(shapes) != 1 or len(shapes[0]) != 4 or all(shapes[0]):
        return data
    if image is None:
        raise Unsupported(f"{what} takes images of any size; say which one to time, e.g. --image 512x1024.")
    return at_size(data, image)


def check_memory(plan: Plan) -> None:
    """Refuse an image size whose two largest feature maps do not fit into free memory."""
    sizes = sorted(shape.channels * shape.height * shape.width for shape in map(plan.shape, plan.by_name))
    needed = 4 * sum(sizes[-2:])  # a layer's input and output, in single precision
    memory.check_memory(
        needed,
        what=f"image {plan.image.height}x{plan.image.width}: the two largest feature maps together",
        remedy="Choose a smaller image.",
    )


def _stages_inside(output: Sequence[int], source: Shape, *, pixels: bool) -> Includes:
    """Return the stages that a file contains: logits have four dimensions, labels three."""
    if len(output) == 4 and not pixels:
        return "network"
    if pixels:
        return "end-to-end"
    return "network+resize+argmax" if tuple(output[1:]) == source[1:] else "network+argmax"
