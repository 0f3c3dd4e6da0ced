"""Sets of logits on one supernet: from logits to probabilities and to the weights that drive it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Adam

from segtailor.core.space import Decision, Group
from segtailor.nets.relax import gumbel_noise, softmax
from segtailor.search.gradient_settings import Gradient


class Roles:
    """The logits of every role and decision, which options are left, and the optimiser that moves them."""

    def __init__(
        self, settings: Gradient, decisions: Sequence[Decision], *, seed: int, device: torch.device
    ) -> None:
        self.settings = settings
        self.decisions = tuple(decisions)
        self.device = device
        self.names = tuple(role.name for role in settings.roles)
        self._sizes = [len(decision.options) for decision in self.decisions]
        start = random(seed, len(self.names), sum(self._sizes), stream=0, deviation=settings.logits.spread)
        self.logits = {
            role: {
                decision.name: nn.Parameter(row.clone().to(device))
                for decision, row in zip(self.decisions, torch.split(rows, self._sizes), strict=True)
            }
            for role, rows in zip(self.names, start, strict=True)
        }
        self._gone = {
            decision.name: torch.zeros(len(decision.options), device=device) for decision in self.decisions
        }
        how = settings.logits
        self.optimiser = Adam(
            self.parameters(), lr=how.lr, betas=how.betas, weight_decay=how.weight_decay, fused=True
        )

    def parameters(self) -> list[nn.Parameter]:
        """All logits, role by role."""
        return [row for rows in self.logits.values() for row in rows.values()]

    def keep(self, options: Mapping[str, Sequence[int]]) -> None:
        """Give all other options the probability 0 from now on."""
        for name, left in options.items():
            gone = torch.full_like(self._gone[name], -torch.inf)
            gone[list(left)] = 0
            self._gone[name] = gone

    def probabilities(self, role: str) -> dict[str, Tensor]:
        """Return the distribution of a role, without noise and temperature."""
        return {name: softmax(row + self._gone[name]) for name, row in self.logits[role].items()}

    def draw(self, role: str, *, temperature: float, seed: int, images: int | None) -> dict[str, Tensor]:
        """Relax the logits of a role, with fresh noise where its group wants it; `images` draws for each image."""
        rows = 1 if images is None else images
        generator = torch.Generator().manual_seed(seed)
        # One transfer for all decisions; the noise is that of the CPU, so every device searches alike.
        noise = gumbel_noise((rows, sum(self._sizes)), generator=generator).to(self.device, non_blocking=True)
        soft = {}
        for decision, part in zip(self.decisions, torch.split(noise, self._sizes, dim=1), strict=True):
            row = self.logits[role][decision.name] + self._gone[decision.name]
            if self.settings.learning(decision.group).relaxation == "gumbel":
                row = row + (part[0] if images is None else part)
            elif images is not None:
                row = row.expand(images, -1)
            soft[decision.name] = softmax(row, temperature=temperature)
        return soft

    def freeze(self, learning: Collection[Group]) -> None:
        """Drop the gradients of all groups but some, so that the optimiser leaves their logits alone."""
        for rows in self.logits.values():
            for decision in self.decisions:
                if decision.group not in learning:
                    rows[decision.name].grad = None

    def state(self) -> dict[str, Tensor]:
        """Return the logits by `<role>.<decision>`."""
        return {f"{role}.{name}": row for role, rows in self.logits.items() for name, row in rows.items()}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for key, row in self.state().items():
            row.copy_(state[key])


def mixed_seed(*parts: int) -> int:
    """Mix numbers to one seed, so that every step has random numbers of its own and none needs saving."""
    return int(np.random.SeedSequence(parts).generate_state(1)[0])


def random(seed: int, rows: int, columns: int, *, stream: int, deviation: float) -> Tensor:
    """Draw a table of normal numbers."""
    generator = torch.Generator().manual_seed(mixed_seed(seed, stream))
    return deviation * torch.randn((rows, columns), generator=generator)
