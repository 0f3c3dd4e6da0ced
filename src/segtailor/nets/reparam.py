"""Re-parameterised training: richer blocks while training, the plain network afterwards, exactly equal."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from segtailor.core.plan import OpCall, Operator
from segtailor.nets.network import Network, initialise
from segtailor.ops import RepConv


def with_branches(network: Network, *, seed: int) -> Network:
    """Return a network whose `RepConv` blocks have training branches; main kernels are taken over."""
    rich = Network(network.plan.with_operators(_branched), architecture=network.architecture)
    initialise(rich, seed)
    own = rich.state_dict()
    rich.load_state_dict({**own, **network.state_dict()})
    return rich


def plain_form(network: Network) -> Network:
    """Return the plain network with the same function: branches folded, folded biases kept in the norms."""
    plain = Network(network.plan.with_operators(_plain), architecture=network.architecture)
    state = plain.state_dict()
    for name, module in network.nodes.items():
        if _is_branched(network, name):
            state.update(_unfolded(f"nodes.{name}", module))
    kept = {
        key: value
        for key, value in network.state_dict().items()
        if key in state and not _rewritten(network, key)
    }
    plain.load_state_dict({**state, **kept})
    return plain.eval()


def _unfolded(prefix: str, module: nn.Module) -> dict[str, torch.Tensor]:
    """Write a folded block as convolution and norm: unit scale, the bias as shift."""
    conv = module.fold()[0]  # type: ignore[operator]
    bias = conv.bias.detach()
    eps = 1e-5
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


def _rewritten(network: Network, key: str) -> bool:
    return _is_branched(network, key.split(".")[1])


def _branched(call: OpCall) -> Operator:
    return replace(call.op, branches=True) if isinstance(call.op, RepConv) else call.op


def _plain(call: OpCall) -> Operator:
    return replace(call.op, branches=False) if isinstance(call.op, RepConv) else call.op
