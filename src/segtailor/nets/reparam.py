"""Re-parameterised training: blocks with extra branches in training, folded exactly into plain blocks after it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from segtailor.core.plan import OpCall, Operator
from segtailor.nets.network import Network, initialise
from segtailor.ops import RepConv


def with_branches(network: Network, *, seed: int) -> Network:
    """Return a network whose `RepConv` blocks have training branches; the weights of the plain blocks are copied."""
    rich = Network(network.plan.with_operators(_branched), architecture=network.architecture)
    initialise(rich, seed)
    rich.load_state_dict({**rich.state_dict(), **network.state_dict()})
    return rich


def plain_form(network: Network) -> Network:
    """Return the plain network that computes the same: branches are folded, their biases become shifts of the norms."""
    plain = Network(network.plan.with_operators(_plain), architecture=network.architecture)
    state = plain.state_dict()
    for name, module in network.nodes.items():
        if _is_branched(network, name):
            state.update(_unfolded(f"nodes.{name}", module))
    unchanged = {
        key: value
        for key, value in network.state_dict().items()
        if key in state and not _is_branched(network, key.split(".")[1])
    }
    plain.load_state_dict({**state, **unchanged})
    return plain.eval()


def _unfolded(prefix: str, module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the state of a folded block as convolution and norm, with unit scale and the bias as shift."""
    conv = module.fold()[0]  # type: ignore[operator]
    bias = conv.bias.detach()
    eps = 1e-5  # of the norm, which adds it to the variance
    return {
        f"{prefix}.conv.weight": conv.weight.detach(),
        f"{prefix}.norm.weight": torch.ones_like(bias),
        f"{prefix}.norm.bias": bias,
        f"{prefix}.norm.running_mean": torch.zeros_like(bias),
        f"{prefix}.norm.running_var": torch.full_like(bias, 1 - eps),
    }


def _is_branched(network: Network, name: str) -> bool:
    op = network.plan.by_name[name].op
    return isinstance(op, RepConv) and op.branches


def _branched(call: OpCall) -> Operator:
    return replace(call.op, branches=True) if isinstance(call.op, RepConv) else call.op


def _plain(call: OpCall) -> Operator:
    return replace(call.op, branches=False) if isinstance(call.op, RepConv) else call.op
