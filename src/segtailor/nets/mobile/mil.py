"""A reference interpreter of Core ML programs: their operators as coremltools documents them, computed by torch.

Core ML itself runs on Apple's systems only. What can be checked elsewhere is the program that was written: that its
operators, constants and sizes compute what the network computes. Kernels of a device may still round differently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from segtailor.core.errors import Unsupported

Inputs: TypeAlias = Mapping[
    str, Any
]  # tensors, lists of tensors, and plain values, by the names of the operator
Operator: TypeAlias = Callable[[Inputs], Tensor]

TYPES = {"fp32": torch.float32, "fp16": torch.float16, "int32": torch.int32, "bool": torch.bool}


class MilProgram:
    """The main function of a program in a package (folder)."""

    def __init__(self, package: Path) -> None:
        from coremltools.converters.mil.frontend.milproto.load import load
        from coremltools.models import MLModel

        model = MLModel(str(package), skip_model_load=True)
        spec = model.get_spec()
        program = load(
            spec, specification_version=spec.specificationVersion, file_weights_dir=model.weights_dir
        )
        self.function: Any = program.functions["main"]
        unknown = sorted(
            {operation.op_type for operation in self.function.operations} - {"const", *OPERATORS}
        )
        if unknown:
            raise Unsupported(f"the interpreter of Core ML programs does not know {', '.join(unknown)}.")

    def run(self, image: NDArray[Any]) -> list[NDArray[Any]]:
        """Compute the outputs for an image."""
        (source,) = self.function.inputs.values()
        values: dict[str, Tensor] = {source.name: torch.from_numpy(image)}

        def given(variable: Any) -> Any:
            if isinstance(variable, tuple | list):
                return [given(each) for each in variable]
            if variable.name in values:
                return values[variable.name]
            return _constant(variable.val)

        with torch.no_grad():
            for operation in self.function.operations:
                if operation.op_type == "const":
                    continue
                inputs = {name: given(value) for name, value in operation.inputs.items() if value is not None}
                (output,) = operation.outputs
                values[output.name] = _typed(OPERATORS[operation.op_type](inputs), operation.op_type, output)
        return [values[output.name].numpy() for output in self.function.outputs]


def _constant(value: Any) -> Any:
    """Return arrays of numbers as tensors, single numbers, flags and words as they are."""
    array = np.asarray(value)
    if array.ndim == 0 or array.dtype.kind not in "fiub":
        return array.item() if array.ndim == 0 else array.tolist()
    return torch.from_numpy(np.array(array))


def _typed(tensor: Tensor, kind: str, output: Any) -> Tensor:
    """Return an output as the type that the program states; a size that it does not state is an error of ours."""
    stated = tuple(output.shape)
    if all(isinstance(side, int) for side in stated) and tuple(tensor.shape) != stated:
        raise Unsupported(
            f"the interpreter of Core ML programs gives {kind} another size than the program states."
        )
    name = output.dtype.__type_info__().name if hasattr(output.dtype, "__type_info__") else ""
    return tensor.to(TYPES.get(name, tensor.dtype))


def _numbers(value: Any) -> list[int]:
    return [int(each) for each in torch.as_tensor(value).flatten().tolist()]


def _single(x: Tensor) -> Tensor:
    """Return half precision as single: results are rounded after each operator, as a reference does."""
    return x.float() if x.dtype == torch.float16 else x


def _around(x: Tensor, inputs: Inputs, kernel: list[int], strides: list[int], fill: float) -> Tensor:
    """Return a map with the border that the operator's `pad_type` asks for."""
    dilations = _numbers(inputs.get("dilations", [1, 1]))
    match inputs["pad_type"]:
        case "valid":
            sides = [0, 0, 0, 0]
        case "custom":
            sides = _numbers(inputs["pad"])
        case "same" | "same_lower" as where:
            sides = []
            for size, side, stride, dilation in zip(x.shape[2:], kernel, strides, dilations, strict=True):
                lacking = max((-(-size // stride) - 1) * stride + dilation * (side - 1) + 1 - size, 0)
                less, more = lacking // 2, lacking - lacking // 2
                sides += [less, more] if where == "same" else [more, less]
        case other:
            raise Unsupported(f"the interpreter of Core ML programs does not know the border '{other}'.")
    top, bottom, left, right = sides
    return functional.pad(x, (left, right, top, bottom), value=fill)


def _conv(inputs: Inputs) -> Tensor:
    x, weight, bias = _single(inputs["x"]), _single(inputs["weight"]), inputs.get("bias")
    strides = _numbers(inputs.get("strides", [1, 1]))
    return functional.conv2d(
        _around(x, inputs, list(weight.shape[2:]), strides, 0.0),
        weight,
        None if bias is None else _single(bias),
        stride=strides,
        dilation=_numbers(inputs.get("dilations", [1, 1])),
        groups=int(inputs.get("groups", 1)),
    )


def _max_pool(inputs: Inputs) -> Tensor:
    kernel, strides = _numbers(inputs["kernel_sizes"]), _numbers(inputs["strides"])
    around = _around(_single(inputs["x"]), inputs, kernel, strides, -torch.inf)
    return functional.max_pool2d(around, kernel, strides, ceil_mode=bool(inputs.get("ceil_mode", False)))


def _avg_pool(inputs: Inputs) -> Tensor:
    kernel, strides = _numbers(inputs["kernel_sizes"]), _numbers(inputs["strides"])
    x, ceil = _single(inputs["x"]), bool(inputs.get("ceil_mode", False))
    mean = functional.avg_pool2d(_around(x, inputs, kernel, strides, 0.0), kernel, strides, ceil_mode=ceil)
    if not inputs.get("exclude_padding_from_average", False):
        return mean
    inside = _around(torch.ones_like(x), inputs, kernel, strides, 0.0)
    return mean / functional.avg_pool2d(inside, kernel, strides, ceil_mode=ceil)


def _upsample_bilinear(inputs: Inputs) -> Tensor:
    scales = (float(inputs["scale_factor_height"]), float(inputs["scale_factor_width"]))
    x, align = _single(inputs["x"]), bool(inputs["align_corners"])
    return functional.interpolate(
        x, scale_factor=scales, mode="bilinear", align_corners=align, recompute_scale_factor=False
    )


def _resize_bilinear(inputs: Inputs) -> Tensor:
    mode = inputs["sampling_mode"]
    if mode not in ("STRICT_ALIGN_CORNERS", "ALIGN_CORNERS", "UNALIGN_CORNERS"):
        raise Unsupported(f"the interpreter of Core ML programs does not know the resize '{mode}'.")
    size = (int(inputs["target_size_height"]), int(inputs["target_size_width"]))
    align = mode != "UNALIGN_CORNERS"
    return functional.interpolate(_single(inputs["x"]), size, mode="bilinear", align_corners=align)


def _batch_norm(inputs: Inputs) -> Tensor:
    x, mean, variance = (_single(inputs[name]) for name in ("x", "mean", "variance"))
    gamma, beta = inputs.get("gamma"), inputs.get("beta")
    return functional.batch_norm(
        x,
        mean,
        variance,
        None if gamma is None else _single(gamma),
        None if beta is None else _single(beta),
        eps=float(inputs.get("epsilon", 1e-5)),
    )


def _slice(inputs: Inputs) -> Tensor:
    x, begin, end = inputs["x"], _numbers(inputs["begin"]), _numbers(inputs["end"])
    none = [0] * len(begin)
    stride = _numbers(inputs.get("stride", [1] * len(begin)))
    free = {name: _numbers(inputs.get(name, none)) for name in ("begin_mask", "end_mask", "squeeze_mask")}
    index = [
        begin[axis]
        if free["squeeze_mask"][axis]
        else slice(
            None if free["begin_mask"][axis] else begin[axis],
            None if free["end_mask"][axis] else end[axis],
            stride[axis],
        )
        for axis in range(len(begin))
    ]
    part: Tensor = x[tuple(index)]
    return part


def _matmul(inputs: Inputs) -> Tensor:
    x, y = (_single(torch.as_tensor(inputs[name])) for name in ("x", "y"))
    x = x.mT if inputs.get("transpose_x", False) else x
    return x @ (y.mT if inputs.get("transpose_y", False) else y)


def _two(compute: Callable[[Any, Any], Tensor]) -> Operator:
    """Return an operator of `x` and `y`, either of which may be a number."""
    return lambda inputs: compute(*(torch.as_tensor(inputs[name]) for name in ("x", "y")))


def _reduced(compute: Callable[..., Tensor]) -> Operator:
    """Return an operator over `axes`."""

    def reduce(inputs: Inputs) -> Tensor:
        x = _single(inputs["x"])
        axes = _numbers(inputs["axes"]) if "axes" in inputs else list(range(x.ndim))
        return compute(x, dim=axes, keepdim=bool(inputs.get("keep_dims", False)))

    return reduce


OPERATORS: Mapping[str, Operator] = {
    "add": _two(torch.add),
    "sub": _two(torch.sub),
    "mul": _two(torch.mul),
    "real_div": _two(torch.div),
    "maximum": _two(torch.maximum),
    "minimum": _two(torch.minimum),
    "less": _two(torch.lt),
    "exp": lambda inputs: inputs["x"].exp(),
    "inverse": lambda inputs: 1 / (inputs["x"] + float(inputs.get("epsilon", 0))),
    "relu": lambda inputs: inputs["x"].relu(),
    "relu6": lambda inputs: inputs["x"].clamp(0, 6),
    "sigmoid": lambda inputs: inputs["x"].sigmoid(),
    "softmax": lambda inputs: inputs["x"].softmax(int(inputs["axis"])),
    "sigmoid_hard": lambda inputs: (inputs["x"] * inputs["alpha"] + inputs["beta"]).clamp(0, 1),
    "thresholded_relu": lambda inputs: torch.where(inputs["x"] >= inputs["alpha"], inputs["x"], 0.0),
    "clip": lambda inputs: inputs["x"].clamp(inputs["alpha"], inputs["beta"]),
    "cast": lambda inputs: inputs["x"].to(TYPES.get(inputs["dtype"], inputs["x"].dtype)),
    "conv": _conv,
    "max_pool": _max_pool,
    "avg_pool": _avg_pool,
    "batch_norm": _batch_norm,
    "matmul": _matmul,
    "upsample_bilinear": _upsample_bilinear,
    "resize_bilinear": _resize_bilinear,
    "upsample_nearest_neighbor": lambda inputs: functional.interpolate(
        inputs["x"],
        scale_factor=(float(inputs["scale_factor_height"]), float(inputs["scale_factor_width"])),
        mode="nearest",
    ),
    "reduce_mean": _reduced(torch.mean),
    "reduce_sum": _reduced(torch.sum),
    "reduce_max": _reduced(torch.amax),
    "reduce_argmax": lambda inputs: inputs["x"].argmax(
        int(inputs["axis"]), keepdim=bool(inputs.get("keep_dims", False))
    ),
    "concat": lambda inputs: torch.cat(inputs["values"], int(inputs["axis"])),
    "tile": lambda inputs: inputs["x"].repeat(_numbers(inputs["reps"])),
    "expand_dims": lambda inputs: inputs["x"].reshape(
        _with_ones(inputs["x"].shape, _numbers(inputs["axes"]))
    ),
    "squeeze": lambda inputs: inputs["x"].squeeze(tuple(_numbers(inputs["axes"]))),
    "reshape": lambda inputs: inputs["x"].reshape(_numbers(inputs["shape"])),
    "transpose": lambda inputs: inputs["x"].permute(_numbers(inputs["perm"])),
    "identity": lambda inputs: inputs["x"],
    "slice_by_index": _slice,
}


def _with_ones(shape: torch.Size, axes: list[int]) -> list[int]:
    """Return a shape with sides of one at the axes of the result."""
    sides, rank = list(shape), len(shape) + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        sides.insert(axis, 1)
    return sides
