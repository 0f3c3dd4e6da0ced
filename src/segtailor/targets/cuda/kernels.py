"""Kernels that can run a fused operator on a CUDA device; the fastest is chosen by timing all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from segtailor.targets.cuda.fuse import Fused, FusedConvolution

Kernel = Callable[..., Tensor]
CALLS_PER_RECORDING = 20  # one call may be shorter than the resolution of the clock


def candidates(op: Fused, inputs: Sequence[Tensor | None]) -> Iterator[Kernel]:
    """Yield the kernels that could run an operator, PyTorch's own first."""
    yield op
    image = inputs[0]
    if image is None or image.dtype == torch.float32:
        return
    if isinstance(op, FusedConvolution):
        if op.relu:
            yield _cudnn(op)
        if _is_point(op, inputs):
            yield _point(op)
    if find_spec("triton") is not None:
        from segtailor.targets.cuda.triton_kernels import triton_candidates

        yield from triton_candidates(op, inputs)


class Chooser:
    """Picks the fastest kernel for an operator at given shapes, and remembers it for equal calls.

    A choice depends on shapes and not on weights, so one chooser serves many networks.
    """

    def __init__(self) -> None:
        self._chosen: dict[object, Kernel] = {}

    def choose(self, op: Fused, inputs: Sequence[Tensor | None]) -> Kernel:
        """Return the fastest kernel that gives the right result."""
        key = (op, tuple(_form(part) for part in inputs))
        if key not in self._chosen:
            self._chosen[key] = fastest(list(candidates(op, inputs)), inputs)
        return self._chosen[key]


@cache
def chooser() -> Chooser:
    """Return the one chooser of this process; cuDNN, too, remembers its choices per process."""
    return Chooser()


def _form(part: Tensor | None) -> object:
    return None if part is None else (tuple(part.shape), part.stride(), part.dtype, part.device)


def fastest(kernels: Sequence[Kernel], inputs: Sequence[Tensor | None]) -> Kernel:
    """Time each kernel in a separate CUDA graph; the first is the reference that the others must equal."""
    if len(kernels) == 1:
        return kernels[0]
    expected = kernels[0](*inputs)
    if not bool(torch.isfinite(expected).all()):
        # With random weights, values may overflow in deep layers; then no result would equal the reference.
        inputs = [None if part is None else torch.rand_like(part) for part in inputs]
        expected = kernels[0](*inputs)
    times: list[tuple[float, int]] = []
    for number, kernel in enumerate(kernels):
        try:
            if _agrees(kernel(*inputs), expected):
                times.append((milliseconds(kernel, inputs), number))
        except _failures():  # the library has no such kernel, or the device does not support it
            continue
    return kernels[min(times)[1]]


@cache
def _failures() -> tuple[type[Exception], ...]:
    """Return the exceptions that a kernel may raise; Triton has its own."""
    if find_spec("triton") is None:
        return (RuntimeError,)
    from triton.errors import TritonError

    return (RuntimeError, TritonError)


def _agrees(result: Tensor, expected: Tensor) -> bool:
    if result.shape != expected.shape:
        return False
    scale = float(expected.abs().max().float())
    worst = float((result.float() - expected.float()).abs().max())
    return worst <= 1e-2 * scale + 1e-6


def milliseconds(kernel: Kernel, inputs: Sequence[Tensor | None]) -> float:
    """Return the time of one call in a recorded graph, where launching it costs nothing."""
    device: Any = inputs[0].device  # type: ignore[union-attr]
    side: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(3):
            kernel(*inputs)
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS_PER_RECORDING):
            kernel(*inputs)
    times: list[float] = []
    for _ in range(5):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize(device)
        times.append(start.elapsed_time(end) / CALLS_PER_RECORDING)
    return sorted(times)[1]


def _cudnn(op: FusedConvolution) -> Kernel:
    """Convolution, bias, sum and ReLU in one kernel of cuDNN."""
    shape = (op.stride, op.padding, op.dilation, op.groups)

    def run(image: Tensor, weight: Tensor, bias: Tensor | None, *other: Tensor) -> Tensor:
        if op.adds:
            return torch.cudnn_convolution_add_relu(image, weight, other[0], 1.0, bias, *shape)
        return torch.cudnn_convolution_relu(image, weight, bias, *shape)

    return run


def _is_point(op: FusedConvolution, inputs: Sequence[Tensor | None]) -> bool:
    image, weight, bias = inputs[:3]
    plain = op.groups == 1 and op.stride == (1, 1) and op.padding == (0, 0)
    if not plain or image is None or weight is None or bias is None:
        return False
    return weight.shape[2:] == (1, 1) and image.is_contiguous(memory_format=torch.channels_last)


def _point(op: FusedConvolution) -> Kernel:
    """A 1x1 convolution as one matrix product with bias, and ReLU where nothing is added before it."""

    def run(image: Tensor, weight: Tensor, bias: Tensor, *other: Tensor) -> Tensor:
        count, channels, height, width = image.shape
        rows = image.permute(0, 2, 3, 1).reshape(-1, channels)
        matrix = weight.flatten(1).t()
        if op.relu and not op.adds:
            out = torch._addmm_activation(bias, rows, matrix)
        else:
            out = torch.addmm(bias, rows, matrix)
        out = out.view(count, height, width, -1).permute(0, 3, 1, 2)
        if op.adds:
            out = out + other[0]
            out = functional.relu(out) if op.relu else out
        return out

    return run
