"""Memory and work of an untrusted ONNX graph, estimated before anything runs.

A graph is bounded if it consists of ordinary layers only, has no loops or branches, and all its sizes follow from the
size of its input. Then memory and time of one run are known. Other graphs run in a child process (`confined.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segtailor.core.memory import free_memory
from segtailor.nets.onnx.metadata import OnnxProblem

MAX_MACS = 2e12  # of one run: about ten times the largest network of segtailor at 1024x2048
MAPS_SHARE_OF_MEMORY = 0.5  # of the free memory, for all feature maps of a graph together
TRIAL_SIZES = ((256, 512), (512, 1024))  # height and width at which a graph of dynamic size is estimated
MAX_GROWTH = 1.1  # factor by which the cost of a graph of dynamic size may grow faster than its pixels

# Layers whose work follows from the sizes of their inputs and outputs. Graphs with others run in a child process.
LAYERS = frozenset({
    "Abs", "Add", "And", "ArgMax", "ArgMin", "AveragePool", "BatchNormalization", "Cast", "CastLike",
    "Ceil", "Clip", "Concat", "Constant", "ConstantOfShape", "Conv", "ConvTranspose", "DepthToSpace",
    "DequantizeLinear", "Div", "Dropout", "Elu", "Equal", "Erf", "Exp", "Expand", "Flatten", "Floor",
    "Gather", "Gelu", "Gemm", "GlobalAveragePool", "GlobalMaxPool", "Greater", "GreaterOrEqual",
    "GroupNormalization", "HardSigmoid", "HardSwish", "Identity", "InstanceNormalization",
    "LayerNormalization", "LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax", "MatMul", "Max",
    "MaxPool", "Mean", "Min", "Mish", "Mul", "Neg", "Not", "Or", "PRelu", "Pad", "Pow",
    "QuantizeLinear", "Reciprocal", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum",
    "Relu", "Reshape", "Resize", "Round", "Selu", "Shape", "Sigmoid", "Sign", "Slice", "Softmax",
    "Softplus", "SpaceToDepth", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Swish", "Tanh", "Tile",
    "Transpose", "Trilu", "Unsqueeze", "Upsample", "Where",
})  # fmt: skip
RANDOM = frozenset(
    ["Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"]
)
BYTES_PER_NUMBER = 8  # of the largest type: an upper bound for all types
MAX_SIZE_NUMBERS = 64  # of a value that counts as arithmetic on sizes
MAX_FOLDING_ROUNDS = 20  # of arithmetic on sizes: sizes of maps that depend on sizes of other maps
INT32, INT64 = 6, 7  # numbers of the types in ONNX files

Sizes = dict[str, tuple[int, ...]]
ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": lambda one, other: np.fix(one / other),
    "Max": np.maximum,
    "Min": np.minimum,
}


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Bytes of all feature maps of one run, and multiply-accumulates."""

    nbytes: int
    macs: float


def parse_graph(data: bytes, *, what: str) -> Any:
    """Parse a serialised model; weights in other files must be in its folder or below."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load_model_from_string(data)
    except (DecodeError, ValueError) as problem:
        line = str(problem).strip().split("\n")[0][:200]
        raise OnnxProblem(f"{what} cannot be loaded ({line}). Export it again.") from None
    for tensor in _tensors(model.graph):
        for entry in tensor.external_data:
            if entry.key == "location" and not _is_beside(entry.value):
                raise OnnxProblem(
                    f"{what} keeps weights in {entry.value[:100]!r}, which is not below its own folder; nothing there "
                    "was read. Export it again, with weights inside."
                )
    return model


def why_unbounded(model: Any, *, free: int | None = None) -> str | None:
    """Return why a graph may not run in this process (its cost is unknown or too large), or None where it may."""
    reason = has_branches(model) or _unusual_operator(model)
    if reason is not None:
        return reason
    input_sizes = [_input_size(model, size) for size in TRIAL_SIZES]
    estimates = [_estimate(model, size) for size in dict.fromkeys(input_sizes)]
    known = [estimate for estimate in estimates if estimate is not None]
    if len(known) < len(estimates):
        return "has sizes that are not known beforehand"
    small, large = known[0], known[-1]
    growth = math.prod(TRIAL_SIZES[1]) / math.prod(TRIAL_SIZES[0]) * MAX_GROWTH
    if large.nbytes > small.nbytes * growth or large.macs > small.macs * growth:
        return "grows faster than its image"
    if large.nbytes > MAPS_SHARE_OF_MEMORY * (free_memory() if free is None else free):
        return f"makes {large.nbytes / 2**30:.1f} GiB of feature maps"
    if large.macs > MAX_MACS:
        return f"computes {large.macs:.1e} products for an image"
    return None


def has_branches(model: Any) -> str | None:
    """Return which loop or branch a graph has, or None; with one its time cannot be known."""
    for node in (*model.graph.node, *(node for function in model.functions for node in function.node)):
        if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            return f"has {node.op_type} (a graph inside the graph)"
    return None


def is_random(model: Any) -> bool:
    """Tell whether a graph draws random numbers, so that two runs may differ."""
    nodes = (*model.graph.node, *(node for function in model.functions for node in function.node))
    return any(node.op_type in RANDOM for node in nodes)


def _unusual_operator(model: Any) -> str | None:
    if model.functions:
        return "has functions of its own"
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx") or node.op_type not in LAYERS:
            return f"has the operator '{node.op_type[:60]}'"
    return None


def stated_sizes(model: Any) -> tuple[tuple[int, ...], ...]:
    """Return the sizes of the inputs as the file states them; a dynamic side is 0."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return tuple(
        tuple(max(0, dim.dim_value) for dim in value.type.tensor_type.shape.dim)
        for value in model.graph.input
        if value.name not in weights
    )


def _input_size(model: Any, size: tuple[int, int]) -> tuple[tuple[int, ...], ...]:
    """Return the sizes of all inputs; dynamic height and width become those of `size`, other dynamic sides 1."""
    input_sizes = []
    for sides in stated_sizes(model):
        first = 1 if sides and sides[-1] == 3 else 2
        image_sides = {first: size[0], first + 1: size[1]}
        input_sizes.append(tuple(side or image_sides.get(axis, 1) for axis, side in enumerate(sides)))
    return tuple(input_sizes)


def _estimate(model: Any, inputs: Sequence[tuple[int, ...]]) -> Estimate | None:
    """Add up all layers at given sizes of the inputs; None where a size is not known."""
    graph, sizes = _sized(model, inputs)
    nbytes, macs = 0, 0.0
    for node in graph.node:
        if not all(name in sizes for name in (*node.output, *node.input) if name):
            return None
        produced = sum(math.prod(sizes[name]) for name in node.output if name)
        nbytes += BYTES_PER_NUMBER * produced
        macs += _work(node, sizes, produced)
    return Estimate(nbytes=nbytes, macs=macs)


def _sized(model: Any, inputs: Sequence[tuple[int, ...]]) -> tuple[Any, Sizes]:
    """Return the graph at given sizes of its inputs, and the size of every value that can be inferred.

    What the file states about sizes inside is not trusted. A graph of dynamic size computes sizes with small integers.
    This arithmetic is done here and replaced by its results: the shape inference of `onnx` supports little of it.
    """
    copy = type(model)()
    copy.CopyFrom(model)
    del copy.graph.value_info[:]
    for value in copy.graph.output:
        value.type.tensor_type.ClearField("shape")
    weights = {tensor.name for tensor in copy.graph.initializer}
    sources = [value for value in copy.graph.input if value.name not in weights]
    for value, size in zip(sources, inputs, strict=True):
        for dim, side in zip(value.type.tensor_type.shape.dim, size, strict=True):
            dim.Clear()
            dim.dim_value = side
    sizes = _inferred(copy)
    for _ in range(MAX_FOLDING_ROUNDS):
        if not sizes or not _fold(copy.graph, sizes):
            break
        sizes = _inferred(copy)
    return copy.graph, sizes


def _inferred(model: Any) -> Sizes:
    import onnx

    try:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True, strict_mode=True).graph
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return {}
    sizes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            sizes[value.name] = tuple(dim.dim_value for dim in tensor.shape.dim)
    return sizes


def _fold(graph: Any, sizes: Sizes) -> bool:
    """Replace arithmetic on sizes by its results; tell whether anything was replaced."""
    import onnx

    known: dict[str, NDArray[Any]] = {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if math.prod(tensor.dims) <= MAX_SIZE_NUMBERS
        and tensor.data_type in (INT32, INT64)
        and not tensor.external_data
    }
    left = []
    for node in graph.node:
        value = _value(node, known, sizes)
        if value is None:
            left.append(node)
            continue
        known[node.output[0]] = value
        graph.initializer.append(onnx.numpy_helper.from_array(value, node.output[0]))
    replaced = len(left) < len(graph.node)
    if replaced:
        copies = [type(node).FromString(node.SerializeToString()) for node in left]
        del graph.node[:]
        graph.node.extend(copies)
    return replaced


def _value(node: Any, known: Mapping[str, NDArray[Any]], sizes: Sizes) -> NDArray[Any] | None:
    """Return the result of a node that computes a few integers from known ones; None for all other nodes."""
    if len(node.output) != 1:
        return None
    options = {entry.name: entry for entry in node.attribute}
    if node.op_type == "Shape" and node.input[0] in sizes:
        start = options["start"].i if "start" in options else None
        end = options["end"].i if "end" in options else None
        return np.array(sizes[node.input[0]][start:end], dtype=np.int64)
    if not node.input or not all(name in known for name in node.input):
        return None
    first, *others = (known[name] for name in node.input)
    try:
        if node.op_type in ARITHMETIC and len(others) == 1:
            return np.asarray(ARITHMETIC[node.op_type](first, others[0]), dtype=first.dtype)
        if node.op_type == "Concat" and all(part.ndim == 1 for part in (first, *others)):
            return np.concatenate([first, *others])
        if node.op_type == "Gather" and first.ndim == 1:
            return np.asarray(first[others[0]])
        if node.op_type in ("Squeeze", "Reshape", "Unsqueeze") and first.size == 1:
            ranks = {"Squeeze": 0, "Unsqueeze": first.ndim + 1, "Reshape": others[0].size if others else 0}
            return first.reshape((1,) * ranks[node.op_type])
        if node.op_type == "Cast" and options["to"].i in (INT32, INT64):
            return first.astype(np.int32 if options["to"].i == INT32 else np.int64)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None  # cannot be computed: the cost of the graph stays unknown
    return None


def _work(node: Any, sizes: Mapping[str, tuple[int, ...]], produced: int) -> float:
    """Return the multiply-accumulates of a node that writes `produced` numbers, or at least how many it reads."""
    read = [sizes[name] for name in node.input if name]
    if node.op_type == "Conv" and len(read) > 1 and read[1]:
        return produced * math.prod(read[1]) / max(1, read[1][0])
    if node.op_type == "ConvTranspose" and len(read) > 1 and read[1]:
        return math.prod(read[0]) * math.prod(read[1]) / max(1, read[1][0])
    if node.op_type in ("MatMul", "Gemm"):
        return produced * float(max((side for sides in read[:2] for side in sides), default=1))
    if node.op_type in ("AveragePool", "MaxPool"):
        kernel = next((entry.ints for entry in node.attribute if entry.name == "kernel_shape"), ())
        return produced * float(math.prod(kernel))
    return float(max(produced, *(math.prod(sides) for sides in read), 1))


def _tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("g"):
                yield from _tensors(attribute.g)
            for inner in attribute.graphs:
                yield from _tensors(inner)


def _is_beside(location: str) -> bool:
    """Tell whether a relative path stays in the folder of the model."""
    pure = PurePosixPath(location.replace("\\", "/"))
    return not pure.is_absolute() and not PureWindowsPath(location).drive and ".." not in pure.parts
