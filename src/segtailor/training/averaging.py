"""Polyak averaging: an exponential mean of the parameters, and where wanted of the statistics of norms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """`average = decay * average + (1 - decay) * weights` after every step, started from the weights.

    With `warm_up` the decay grows as (1 + n) / (10 + n) until it reaches its value, so that the random start is
    forgotten soon. Statistics of norms are taken as they are, which is how it was published; they are those of the last
    weights, though, not of their mean. With `norms` they are averaged as well, which comes closer.
    """

    def __init__(
        self, network: nn.Module, *, decay: float, warm_up: bool = True, norms: bool = False
    ) -> None:
        self.decay = decay
        self.warm_up = warm_up
        self.updates = 0
        statistics = network.named_buffers() if norms else ()
        measured = {name: value for name, value in statistics if value.is_floating_point()}
        self._live: dict[str, Tensor] = {**dict(network.named_parameters()), **measured}
        self._mean = {name: value.detach().clone() for name, value in self._live.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Take the present weights into the mean."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.warm_up else self.decay
        self.updates += 1
        torch._foreach_lerp_(list(self._mean.values()), list(self._live.values()), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the mean into the network for a while, e.g. to validate it."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state(self) -> dict[str, Tensor]:
        """Return the mean by name."""
        return dict(self._mean)

    def load(self, state: Mapping[str, Tensor], *, updates: int) -> None:
        """Restore what `state` returned."""
        self.updates = updates
        for name, value in self._mean.items():
            value.copy_(state[name])

    @torch.no_grad()
    def _swap(self) -> None:
        for name, live in self._live.items():
            kept = live.detach().clone()
            live.copy_(self._mean[name])
            self._mean[name].copy_(kept)
