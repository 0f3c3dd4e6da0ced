"""What an operator must satisfy: its arithmetic equals the module that it builds."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from segtailor.core.plan import OpCall, Shape


def check_operator(call: OpCall) -> None:
    """Check shape, multiply-accumulates, parameters and inference form of a call against its built module."""
    module = call.op.module(call).eval()
    inputs = [torch.randn(1, *shape) for shape in call.inputs]
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        output = module(*inputs)
    expect("output shape", call, Shape(*output.shape[1:]), call.output())
    expect("training parameters", call, count_params(module), call.train_params())
    folded = module.fold() if hasattr(module, "fold") else module
    expect("inference parameters", call, count_params(folded), call.params())
    if folded is module:
        expect("multiply-accumulates", call, counter.get_total_flops() // 2, call.macs())
    if not bool(torch.isfinite(output).all()):
        raise AssertionError(f"{call}: the output is not finite")


def count_params(module: nn.Module) -> int:
    """Count learnable values of a built module, frozen ones included."""
    return sum(parameter.numel() for parameter in module.parameters())


def expect(what: str, where: object, got: object, wanted: object) -> None:
    """Raise unless both agree."""
    if got != wanted:
        raise AssertionError(f"{what} of {where}: the module has {got}, the definition says {wanted}")
