"""The logits of a gradient search: one set per role, and the probabilities and weights they give."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Adam

from segtailor.core.space import Decision, Group
from segtailor.core.strategy import SearchProblem
from segtailor.nets.relax import Widths, gumbel_noise, softmax, straight_through
from segtailor.strategies.gradient_settings import Gradient, Role


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
        start = normal_table(
            seed, len(self.names), sum(self._sizes), stream=0, deviation=settings.logits.spread
        )
        self.logits = {
            role: {
                decision.name: nn.Parameter(row.clone().to(device))
                for decision, row in zip(self.decisions, torch.split(rows, self._sizes), strict=True)
            }
            for role, rows in zip(self.names, start, strict=True)
        }
        self._removed = {
            decision.name: torch.zeros(len(decision.options), device=device) for decision in self.decisions
        }
        self.fixed = {role.name: _fixed(role, self.decisions) for role in settings.roles}
        self._never = {role.name: set(role.never) for role in settings.roles}
        # One-hot rows live on the device, so that a recorded step needs no transfer.
        self._rows = {
            decision.name: torch.eye(len(decision.options), device=device) for decision in self.decisions
        }
        how = settings.logits
        self.optimiser = Adam(
            self.parameters(), lr=how.lr, betas=how.betas, weight_decay=how.weight_decay, fused=True
        )

    def parameters(self) -> list[nn.Parameter]:
        """All logits, role by role."""
        return [row for rows in self.logits.values() for row in rows.values()]

    def keep(self, options: Mapping[str, Sequence[int]]) -> None:
        """Give all options except these the probability 0 from now on."""
        for name, left in options.items():
            removed = torch.full_like(self._removed[name], -torch.inf)
            removed[list(left)] = 0
            self._removed[name] = removed

    def probabilities(self, role: str) -> dict[str, Tensor]:
        """Return the distribution of a role, without noise or temperature."""
        rows = {name: softmax(row + self._removed[name]) for name, row in self.logits[role].items()}
        return rows | {name: self._rows[name][option] for name, option in self.fixed[role].items()}

    def to_choose(self, role: str) -> dict[str, Tensor]:
        """Return the distribution without the options that a role never chooses."""
        rows = self.probabilities(role)
        for decision in self.decisions:
            barred = [index for index, option in enumerate(decision.options) if option in self._never[role]]
            if barred and len(barred) < len(decision.options):
                row = rows[decision.name].detach().clone()
                row[barred] = 0
                rows[decision.name] = row / row.sum()
        return rows

    def definite(self, role: str, widths: Widths) -> dict[str, int | None]:
        """Return decisions whose option is known before any draw; None means that it is drawn uniformly."""
        known: dict[str, int | None] = dict(self.fixed[role])
        if widths == "own":
            return known
        named = next(row for row in self.settings.roles if row.name == role).fixed
        for decision in self.decisions:
            if decision.group == "width" and decision.name not in named:
                last = len(decision.options) - 1
                known[decision.name] = {"least": 0, "most": last}.get(widths)
        return known

    def noise(self, *, seed: int, images: int | None) -> Tensor:
        """Draw the noise for all decisions of a pass on the CPU, so that it is the same for every device."""
        generator = torch.Generator().manual_seed(seed)
        rows = 1 if images is None else images
        return gumbel_noise((rows, sum(self._sizes)), generator=generator).to(self.device, non_blocking=True)

    def draw(
        self,
        role: str,
        *,
        noise: Tensor,
        temperature: float | Tensor,
        images: int | None,
        widths: Widths = "own",
        frozen: Collection[Group] = (),
    ) -> dict[str, Tensor]:
        """Return soft weights of a role, with noise if the group uses it; with `images`, one draw for each image.

        Groups that are `frozen` now run one option at a time if their settings say so.
        """
        soft = {}
        definite = self.definite(role, widths)
        for decision, part in zip(self.decisions, torch.split(noise, self._sizes, dim=1), strict=True):
            name = decision.name
            if name in definite:
                option = definite[name]
                soft[name] = straight_through(part[0]) if option is None else self._rows[name][option]
                continue
            row = self.logits[role][name] + self._removed[name]
            learning = self.settings.learning(decision.group)
            if decision.group in frozen and learning.frozen == "uniform":
                chances = softmax((part[0] if images is None else part) + self._removed[name])
                soft[name] = straight_through(chances)
                continue
            if learning.relaxation == "gumbel":
                row = row + (part[0] if images is None else part)
            elif images is not None:
                row = row.expand(images, -1)
            soft[name] = softmax(row, temperature=temperature)
            if learning.hard:
                soft[name] = straight_through(soft[name])
        return soft

    def neutral(self) -> dict[str, Tensor]:
        """Return weights without preference: all options alike, or the last option of ordered decisions."""
        return {
            decision.name: self._rows[decision.name][-1]
            if decision.ordered
            else torch.full_like(self._removed[decision.name], 1 / len(decision.options))
            for decision in self.decisions
        }

    def freeze(self, learning: Collection[Group]) -> None:
        """Drop the gradients of all groups except those `learning`, so that the optimiser skips their logits."""
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


def _fixed(role: Role, decisions: Sequence[Decision]) -> dict[str, int]:
    """Return the option of every decision that a role fixes, by name or else by group."""
    known = {key for decision in decisions for key in (decision.name, decision.group)}
    for key in role.fixed:
        if key not in known:
            raise SearchProblem(
                f"role '{role.name}' fixes '{key}', which is neither decision nor group here."
            )
    options = {}
    for decision in decisions:
        option = role.fixed.get(decision.name, role.fixed.get(decision.group))
        if option is None:
            continue
        count = len(decision.options)
        if not -count <= option < count:
            raise SearchProblem(
                f"role '{role.name}' fixes '{decision.name}' at option {option}; there are {count}, counted from 0."
            )
        options[decision.name] = option % count
    return options


def mixed_seed(*parts: int) -> int:
    """Mix numbers to one seed, so that every step has its own random numbers and no state has to be saved."""
    return int(np.random.SeedSequence(parts).generate_state(1)[0])


def normal_table(seed: int, rows: int, columns: int, *, stream: int, deviation: float) -> Tensor:
    """Draw a table of normally distributed numbers."""
    generator = torch.Generator().manual_seed(mixed_seed(seed, stream))
    return deviation * torch.randn((rows, columns), generator=generator)
