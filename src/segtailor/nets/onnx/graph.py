"""Write a torch module as an ONNX graph, and open sessions that run graphs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from segtailor.core.errors import Unsupported, UserError
from segtailor.core.quiet import only_errors_of
from segtailor.core.text import first_line

OPSET = 18


def onnx_bytes(
    module: nn.Module,
    inputs: Sequence[Tensor],
    *,
    names: Sequence[str],
    output: str | Sequence[str],
    dynamic: tuple[dict[int, Any], ...] | None = None,
) -> bytes:
    """Return the serialised ONNX model of a module at the sizes and types of `inputs`, weights included.

    `output` is its name, or their names. `dynamic` says for each input which sides are dynamic; none by default.
    """
    _need_exporter()
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            module,
            tuple(inputs),
            dynamo=True,
            external_data=False,
            verbose=False,
            opset_version=OPSET,
            input_names=list(names),
            output_names=[output] if isinstance(output, str) else list(output),
            dynamic_shapes=dynamic,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export gave no program")
    data: bytes = program.model_proto.SerializeToString()
    return data


def onnx_session(
    model: bytes | Path,
    *,
    threads: int = 1,
    spin: bool = True,
    providers: Sequence[Any] = ("CPUExecutionProvider",),
    what: str = "the ONNX model",
) -> Any:
    """Open an ONNX Runtime session; a file that is missing or damaged raises `UserError`."""
    runtime = _onnxruntime()
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors only
    options.inter_op_num_threads = 1
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin else "0")
    if isinstance(model, Path):
        what = f"ONNX file {model}"
        if not model.is_file():
            raise UserError(f"{what} does not exist; check the path.")
    source = model if isinstance(model, bytes) else str(model)
    try:
        return runtime.InferenceSession(source, options, providers=list(providers))
    except onnx_errors() as problem:
        raise UserError(f"{what} cannot be loaded ({first_line(problem)}). Export it again.") from None


def at_size(model: bytes, image: tuple[int, int]) -> bytes:
    """Return a serialised model whose dynamic sides are fixed to one image of (height, width)."""
    import onnx

    proto = onnx.load_model_from_string(model)
    tensor = proto.graph.input[0].type.tensor_type
    first = 1 if tensor.elem_type == onnx.TensorProto.UINT8 else 2
    for axis, side in ((0, 1), (first, image[0]), (first + 1, image[1])):
        if not tensor.shape.dim[axis].HasField("dim_value"):
            tensor.shape.dim[axis].dim_value = side
    for value in (*proto.graph.output, *proto.graph.value_info):  # these follow from the input
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                dim.Clear()
    data: bytes = proto.SerializeToString()
    return data


def onnx_errors() -> tuple[type[Exception], ...]:
    """Return the errors of ONNX Runtime, which have no common base class."""
    names = ("Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NoModel", "NotImplemented")
    state = _onnxruntime().capi.onnxruntime_pybind11_state
    return tuple(getattr(state, name) for name in (*names, "NoSuchFile", "RuntimeException"))


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise Unsupported(
            "ONNX files are run by the package onnxruntime, which is not installed: `pip install onnxruntime`."
        ) from None
    return onnxruntime


def _need_exporter() -> None:
    try:
        import onnx
        import onnxscript
    except ImportError as problem:
        raise Unsupported(
            f"ONNX needs the package '{problem.name}', which is not installed: `pip install onnx onnxscript`."
        ) from None
    del onnx, onnxscript


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the exporter's notes on packages that we do not use, and its deprecation warnings about itself."""
    with only_errors_of("torch.onnx"), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield
