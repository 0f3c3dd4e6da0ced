"""What one operator call makes a device do: kernels, arithmetic by kind of convolution, values moved.

The deployed form of the operator runs once on tensors without values, and every function that it calls is counted.
That works for any operator, also for blocks of several convolutions, and needs no description of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from segtailor.core.plan import OpCall
from segtailor.deploy.fold import operator_form

MILLION = 1e6
CONVOLUTION = "convolution"
RESIZE = "upsample"
# Functions that runtimes run within the kernel before or after, or that move nothing.
FREE = ("relu", "hardtanh", "hardswish", "sigmoid", "clamp", "expand", "view", "slice", "split", "permute")
UNCOUNTED = (
    "empty",
    "detach",
    "alias",
    "clone",
    "new_zeros",
    "unsqueeze",
    "squeeze",
    "select",
    "constant_pad",
)


@dataclass(frozen=True, kw_only=True)
class Work:
    """Counts of work, or the price of each: multiply-accumulates (MACs) and values in millions.

    `moved` values are read and written by convolutions, `resized` ones written by resizes, `joined` ones written by
    everything else: sums, concatenations, products, pooling.
    """

    kernels: float = 0.0
    dense: float = 0.0
    pointwise: float = 0.0
    depthwise: float = 0.0
    moved: float = 0.0
    resized: float = 0.0
    joined: float = 0.0

    def numbers(self) -> tuple[float, ...]:
        """Return the values in the order of the fields."""
        return tuple(getattr(self, item.name) for item in fields(self))

    def times(self, prices: Work) -> float:
        """Return the sum over all kinds of work times its price."""
        return sum(one * price for one, price in zip(self.numbers(), prices.numbers(), strict=True))


def total(parts: Sequence[Work]) -> Work:
    """Return the sum of all parts."""
    columns = zip(*(part.numbers() for part in parts), strict=True)
    names = [item.name for item in fields(Work)]
    return Work(**dict(zip(names, map(sum, columns), strict=True)))


@lru_cache(maxsize=2**16)
def work_of(call: OpCall) -> Work:
    """Count the work of one call in its deployed form; the first time takes about ten milliseconds."""
    with torch.device("meta"), torch.no_grad():
        module = operator_form(call)
        inputs = [torch.empty(1, *shape) for shape in call.inputs]
        recorder = _Recorder()
        with recorder:
            module(*inputs)
    return total([Work(), *recorder.parts])


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the work of each function that is called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.parts: list[Work] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the function and count it."""
        result = func(*args, **(kwargs or {}))
        name = str(func).removeprefix("aten.").partition(".")[0]
        if not any(part in name for part in (*FREE, *UNCOUNTED)):
            self.parts.append(_work(name, args, result))
        return result


def _work(name: str, args: tuple[Any, ...], result: Any) -> Work:
    outputs = sum(leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)) / MILLION
    if name == CONVOLUTION:
        image, weight, groups = args[0], args[1], args[8]
        macs = outputs * math.prod(weight.shape[1:])
        kind = "depthwise" if groups > 1 else "pointwise" if math.prod(weight.shape[2:]) == 1 else "dense"
        return Work(kernels=1, moved=image.numel() / MILLION + outputs, **{kind: macs})
    if RESIZE in name:
        return Work(kernels=1, resized=outputs)
    inputs = sum(leaf.numel() for leaf in tree_leaves(args) if isinstance(leaf, Tensor)) / MILLION
    return Work(kernels=1, joined=max(inputs, outputs))
