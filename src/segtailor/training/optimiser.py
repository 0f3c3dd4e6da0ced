"""Optimisers: parameter groups, and their state as plain named tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from segtailor.training.settings import FitSettings


def make_optimiser(network: nn.Module, settings: FitSettings) -> Optimizer:
    """Build a fused optimiser: one kernel for all parameters, which can skip an update without asking the host."""
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    decayed = [parameter for parameter in trained if parameter.ndim > 1 or settings.decay_norms]
    spared = [parameter for parameter in trained if parameter.ndim <= 1 and not settings.decay_norms]
    groups = [
        {"params": decayed, "weight_decay": settings.weight_decay},
        {"params": spared, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if settings.optimiser == "sgd":
        sgd = SGD(groups, lr=settings.lr, momentum=settings.momentum, fused=True)
        if settings.momentum:
            for parameter in trained:  # zeros, or a skipped first step would leave the buffers uninitialised
                sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return sgd
    return AdamW(groups, lr=settings.lr, fused=True)


def set_rate(optimiser: Optimizer, rate: float) -> None:
    """Set the learning rate of every group."""
    for group in optimiser.param_groups:
        group["lr"] = rate


def update(optimiser: Optimizer, *, skip: Tensor) -> None:
    """Step, unless the one-element float tensor `skip` is 1: decided on the device, nothing is waited for.

    Fused optimisers read this attribute; it is the mechanism of torch's own gradient scaler.
    """
    optimiser.found_inf = skip  # type: ignore[attr-defined]
    optimiser.step()


def optimiser_state(optimiser: Optimizer) -> dict[str, Tensor]:
    """Return the state as `<parameter number>.<name>` tensors."""
    return {
        f"{number}.{name}": value
        for number, parameter in enumerate(_parameters(optimiser))
        for name, value in optimiser.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def load_optimiser(optimiser: Optimizer, state: Mapping[str, Tensor]) -> None:
    """Restore what `optimiser_state` returned."""
    parameters = _parameters(optimiser)
    optimiser.state.clear()
    for key, value in state.items():
        number, name = key.split(".", 1)
        parameter = parameters[int(number)]
        kept = value.to(parameter.device)
        if kept.shape == parameter.shape:  # fused kernels want the memory format of the parameter
            kept = torch.empty_like(parameter).copy_(kept)
        optimiser.state[parameter][name] = kept


def _parameters(optimiser: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimiser.param_groups for parameter in group["params"]]
