"""The update of the weights: optimisers, steps that are skipped because they are not finite, averaged weights.

Nothing here waits for the device, except `NonFiniteGuard.tally`. States are plain named tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from segtailor.training.settings import EncoderSettings, FitSettings

FIRST_LOSS_SCALE = 2.0**14  # of fp16
STEPS_TO_DOUBLE_SCALE = 2000  # finite steps in a row after which the loss scale doubles


def make_optimiser(
    network: nn.Module, settings: FitSettings, carried: Collection[str] = frozenset()
) -> Optimizer:
    """Build a fused optimiser: one kernel for all parameters, which can skip an update without asking the host.

    `carried` names the parameters that came from a start, whose rate is `settings.carried_lr` times the rate.
    """
    trained, _ = split_parameters(network, settings)
    slower: set[int] = set()
    if settings.carried_lr != 1.0:
        slower = {id(parameter) for name, parameter in network.named_parameters() if name in carried}
    return _make(
        trained, settings, betas=settings.betas, eps=settings.eps, decay_norms=settings.decay_norms,
        slower=slower, slower_factor=settings.carried_lr,
    )  # fmt: skip


def make_encoder_optimiser(network: nn.Module, settings: FitSettings) -> Optimizer | None:
    """Build the optimiser of the encoder if the settings have a separate one."""
    _, trained = split_parameters(network, settings)
    if settings.encoder is None or not trained:
        return None
    optimiser = _make(trained, settings.encoder, decay_norms=settings.decay_norms)
    for group in optimiser.param_groups:
        group["factor"] = settings.encoder.lr / settings.lr
    return optimiser


def split_parameters(
    network: nn.Module, settings: FitSettings
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the parameters that are trained: those of the main optimiser, and those of the encoder's."""
    groups: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
    start = None if settings.encoder is None else f"nodes.{settings.encoder.start}"
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            groups[start is not None and name.startswith(start)].append(parameter)
    return groups


def _make(
    trained: list[nn.Parameter],
    settings: FitSettings | EncoderSettings,
    *,
    decay_norms: bool,
    slower: Collection[int] = frozenset(),
    slower_factor: float = 1.0,
    **adam: Any,
) -> Optimizer:
    """Build an optimiser with a group per rate and weight decay; `slower` are the ids of parameters with a factor."""
    groups: list[dict[str, Any]] = []
    for is_slower in (False, True):
        part = [parameter for parameter in trained if (id(parameter) in slower) == is_slower]
        factor = {"factor": slower_factor} if is_slower else {}
        decayed = [parameter for parameter in part if parameter.ndim > 1 or decay_norms]
        undecayed = [parameter for parameter in part if parameter.ndim <= 1 and not decay_norms]
        groups.append({"params": decayed, "weight_decay": settings.weight_decay, **factor})
        groups.append({"params": undecayed, "weight_decay": 0.0, **factor})
    groups = [group for group in groups if group["params"]]
    if settings.optimiser == "sgd":
        sgd = SGD(groups, lr=settings.lr, momentum=settings.momentum, fused=True)
        if settings.momentum:
            for parameter in trained:  # zeros, because a skipped first step would leave buffers uninitialised
                sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return sgd
    kind: type[Adam] = {"adam": Adam, "adamw": AdamW}[settings.optimiser]
    return kind(groups, lr=settings.lr, fused=True, **adam)


def set_rate(optimiser: Optimizer, rate: float) -> None:
    """Set the learning rate of every group; that of an encoder or of carried weights is multiplied by its factor."""
    for group in optimiser.param_groups:
        group["lr"] = rate * group.get("factor", 1.0)


def update(optimiser: Optimizer, *, skip: Tensor) -> None:
    """Do a step, unless the one-element float tensor `skip` is 1. The device decides, so the host need not wait.

    Fused optimisers read the attribute `found_inf`; torch's own gradient scaler works in the same way.
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
        restored = value.to(parameter.device)
        if restored.shape == parameter.shape:  # fused kernels need the memory format of the parameter
            restored = torch.empty_like(parameter).copy_(restored)
        optimiser.state[parameter][name] = restored


def _parameters(optimiser: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimiser.param_groups for parameter in group["params"]]


class Tally(NamedTuple):
    """Skipped steps in all, and the longest row of them since the last tally."""

    skipped: int
    row: int


class NonFiniteGuard:
    """Skips the steps of one network whose loss or gradients are not finite, and counts them.

    A skipped step changes nothing: the optimiser does not update, and the statistics of norms, which the forward pass
    has already changed, are restored. With `scaled` (fp16) the guard also adapts the loss scale.
    """

    def __init__(self, network: nn.Module, device: torch.device, *, scaled: bool) -> None:
        self.scaled = scaled
        self._statistics = [buffer for buffer in network.buffers() if buffer.is_floating_point()]
        self._before = torch.zeros(0, device=device)
        self.scale = torch.full((), FIRST_LOSS_SCALE if scaled else 1.0, device=device)
        self._good = torch.zeros((), device=device)
        self._skipped = torch.zeros((), device=device)
        self._row = torch.zeros((), device=device)
        self._longest = torch.zeros((), device=device)

    def open(self) -> None:
        """Keep a copy of the statistics before the forward pass."""
        if self._statistics:
            self._before = _flattened(self._statistics)

    def rewind(self) -> None:
        """Restore the statistics, e.g. after a forward pass that ran out of memory."""
        self._write(self._before)

    def unscale(self, gradients: Sequence[Tensor]) -> None:
        """Divide the gradients by the loss scale."""
        if self.scaled:
            torch._foreach_mul_(list(gradients), self.scale.reciprocal())

    def close(self, bad: Tensor) -> Tensor:
        """Count the step, restore the statistics if it is bad, and return the flag for the optimiser to skip it."""
        if self._statistics:
            self._write(torch.where(bad, self._before, _flattened(self._statistics)))
        flag = bad.float()
        self._skipped += flag
        self._row.copy_((self._row + 1) * flag)  # in place, as a recorded step must
        self._longest.copy_(torch.maximum(self._longest, self._row))
        if self.scaled:
            self._good.copy_((self._good + 1) * (1 - flag))
            grown = torch.where(self._good >= STEPS_TO_DOUBLE_SCALE, self.scale * 2, self.scale)
            self.scale.copy_(torch.where(bad, self.scale / 2, grown))
            self._good.copy_(torch.where(self._good >= STEPS_TO_DOUBLE_SCALE, 0.0, self._good))
        return flag

    def tally(self) -> Tally:
        """Return how many steps were skipped; this waits for the device."""
        skipped, row = torch.stack([self._skipped, self._longest]).tolist()
        self._longest.copy_(self._row)
        return Tally(int(skipped), int(row))

    def state(self) -> dict[str, Tensor]:
        """Return the counters as named tensors."""
        return {"scale": self.scale, "good": self._good, "skipped": self._skipped, "row": self._row}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        device = self.scale.device
        self.scale.copy_(state["scale"].to(device))  # in place: a recorded step reads it there
        self._good.copy_(state["good"].to(device))
        self._skipped, self._row = state["skipped"].to(device).clone(), state["row"].to(device).clone()
        self._longest = self._row.clone()

    @torch.no_grad()
    def _write(self, flat: Tensor) -> None:
        if self._statistics:
            pieces = torch.split(flat, [buffer.numel() for buffer in self._statistics])
            views = [piece.view_as(buffer) for piece, buffer in zip(pieces, self._statistics, strict=True)]
            torch._foreach_copy_(self._statistics, views)


def _flattened(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


class Average:
    """Polyak averaging: `average = decay * average + (1 - decay) * weights` after every step.

    With `warm_up` the decay grows as (1 + n) / (10 + n) up to its value, so that random initial weights lose their
    influence early. The statistics of norms are not averaged, as published, so they belong to the last weights and not
    to the average. With `norms` they are averaged as well, which is closer to the statistics of the average.
    """

    def __init__(
        self, network: nn.Module, *, decay: float, warm_up: bool = True, norms: bool = False
    ) -> None:
        self.decay = decay
        self.warm_up = warm_up
        self.updates = 0
        statistics = network.named_buffers() if norms else ()
        averaged = {name: value for name, value in statistics if value.is_floating_point()}
        self._live: dict[str, Tensor] = {**dict(network.named_parameters()), **averaged}
        self._mean = {name: value.detach().clone() for name, value in self._live.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Add the current weights to the average."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.warm_up else self.decay
        self.updates += 1
        torch._foreach_lerp_(list(self._mean.values()), list(self._live.values()), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Use the averaged weights inside the block, e.g. to validate them."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state(self) -> dict[str, Tensor]:
        """Return the averaged weights by name."""
        return dict(self._mean)

    def load(self, state: Mapping[str, Tensor], *, updates: int) -> None:
        """Restore what `state` returned."""
        self.updates = updates
        for name, value in self._mean.items():
            value.copy_(state[name])

    @torch.no_grad()
    def _swap(self) -> None:
        for name, live in self._live.items():
            current = live.detach().clone()
            live.copy_(self._mean[name])
            self._mean[name].copy_(current)
