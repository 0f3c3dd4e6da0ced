"""Optimisers: parameter groups, and their state as plain named tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from segtailor.training.settings import EncoderSettings, FitSettings


def make_optimiser(network: nn.Module, settings: FitSettings) -> Optimizer:
    """Build a fused optimiser: one kernel for all parameters, which can skip an update without asking the host."""
    trained, _ = divided(network, settings)
    return _make(trained, settings, betas=settings.betas, eps=settings.eps, decay_norms=settings.decay_norms)


def make_encoder_optimiser(network: nn.Module, settings: FitSettings) -> Optimizer | None:
    """Build the optimiser of the encoder where the settings give it one of its own."""
    _, trained = divided(network, settings)
    if settings.encoder is None or not trained:
        return None
    optimiser = _make(trained, settings.encoder, decay_norms=settings.decay_norms)
    for group in optimiser.param_groups:
        group["factor"] = settings.encoder.lr / settings.lr
    return optimiser


def divided(network: nn.Module, settings: FitSettings) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the parameters that are trained: those of the main optimiser, and those of the encoder's."""
    sides: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
    start = None if settings.encoder is None else f"nodes.{settings.encoder.start}"
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            sides[start is not None and name.startswith(start)].append(parameter)
    return sides


def _make(
    trained: list[nn.Parameter], settings: FitSettings | EncoderSettings, *, decay_norms: bool, **adam: Any
) -> Optimizer:
    decayed = [parameter for parameter in trained if parameter.ndim > 1 or decay_norms]
    spared = [parameter for parameter in trained if parameter.ndim <= 1 and not decay_norms]
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
    kind: type[Adam] = {"adam": Adam, "adamw": AdamW}[settings.optimiser]
    return kind(groups, lr=settings.lr, fused=True, **adam)


def set_rate(optimiser: Optimizer, rate: float) -> None:
    """Set the learning rate of every group; an encoder's is the same times its factor."""
    for group in optimiser.param_groups:
        group["lr"] = rate * group.get("factor", 1.0)


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
