"""Quantise an fp32 ONNX graph to int8 (QDQ form, for ONNX Runtime and OpenVINO); ranges are measured on given inputs.

The quantiser is ONNX Runtime's. The last convolution and all nodes after it stay in fp32, since rounded logits would
change labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from numpy.typing import NDArray

from segtailor.core.errors import Unsupported, UserError
from segtailor.core.quiet import only_errors_of

Feed = Mapping[str, NDArray[Any]]  # values of all inputs by name, for one run

QUANTISED_OPERATORS = ("Conv", "Relu", "Clip", "Add", "Concat", "MaxPool", "AveragePool")


def int8_onnx(data: bytes, feeds: Iterable[Feed], *, what: str = "the ONNX model") -> bytes:
    """Return the int8 form of a serialised fp32 model of fixed size, with activation ranges measured on `feeds`.

    Weights are signed and symmetric per channel, activations unsigned, which x86 kernels multiply fastest. A range goes
    from the mean of the smallest to the mean of the largest values of each feed: one unusual image hardly widens it,
    and memory does not grow with the number of feeds.
    """
    _need_quantiser()
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    source = read_fp32(data, what=what)
    with (
        TemporaryDirectory(prefix="segtailor-int8-") as folder,
        only_errors_of(None),
    ):  # the quantiser advises there
        given, ready, done = (Path(folder) / name for name in ("fp32.onnx", "ready.onnx", "int8.onnx"))
        given.write_bytes(data)  # the quantiser would change a parsed model: move its weights to another file
        quant_pre_process(given, ready, skip_symbolic_shape=True)
        quantization.quantize_static(
            ready,
            done,
            _Reader(feeds, what=what),
            op_types_to_quantize=list(QUANTISED_OPERATORS),
            nodes_to_exclude=last_nodes(read_model(ready.read_bytes(), what=what)),
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            extra_options={"CalibMovingAverage": True},
        )
        return with_metadata_of(read_model(done.read_bytes()), source)


def read_model(data: bytes, *, what: str = "the ONNX model") -> Any:
    """Parse a serialised model; other bytes raise `UserError`."""
    _need_quantiser()
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load_from_string(data)
    except (DecodeError, ValueError) as problem:
        raise UserError(f"{what} cannot be read ({problem}). Export it again.") from None
    if not model.graph.node:
        raise UserError(f"{what} holds no graph. Export it again.")
    return model


def read_fp32(data: bytes, *, what: str = "the ONNX model") -> Any:
    """Parse a serialised model that is not quantised yet."""
    model = read_model(data, what=what)
    if is_quantised(model):
        raise Unsupported(f"{what} is quantised already; give the fp32 file it was made from.")
    return model


def with_metadata_of(model: Any, source: Any) -> bytes:
    """Serialise a model with the metadata (classes, preprocessing) of the model that it was made from."""
    del model.metadata_props[:]
    model.metadata_props.extend(source.metadata_props)
    data: bytes = model.SerializeToString()
    return data


def is_quantised(model: Any) -> bool:
    """Tell whether a parsed model has quantised tensors already."""
    return any(
        node.op_type in ("QuantizeLinear", "DequantizeLinear", "QLinearConv") for node in model.graph.node
    )


def last_nodes(model: Any) -> list[str]:
    """Return the names of the last convolutions (those that give the logits) and of all nodes after them."""
    makers = {output: node for node in model.graph.node for output in node.output}
    waiting = [output.name for output in model.graph.output]
    names: dict[str, None] = {}  # as an ordered set
    while waiting:
        node = makers.get(waiting.pop())
        if node is None or node.name in names:
            continue
        names[node.name] = None
        if node.op_type != "Conv":
            waiting.extend(node.input)
    return list(names)


class _Reader:
    """Gives feeds one by one, with the interface that the quantiser needs."""

    def __init__(self, feeds: Iterable[Feed], *, what: str) -> None:
        self._rest = iter(feeds)
        self._started = False
        self._what = what

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        """Return the next feed, or None after the last."""
        feed = next(self._rest, None)
        if feed is None and not self._started:
            raise UserError(f"{self._what}: there is nothing to measure ranges on; give at least one image.")
        self._started = True
        return None if feed is None else dict(feed)


def _need_quantiser() -> None:
    try:
        import onnx
        import onnxruntime.quantization
    except ImportError as problem:
        raise Unsupported(
            f"int8 needs the package '{problem.name}', which is not installed: `pip install onnx onnxruntime`."
        ) from None
    del onnx, onnxruntime
