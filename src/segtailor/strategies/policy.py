"""A recurrent policy over decisions: one step of an LSTM per decision, one linear head each (auxiliary cells).

As published, the LSTM reads its own last output and never what was chosen, so that decisions are independent of one
another; `feedback` adds an embedding of the last choice, which makes the policy autoregressive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from segtailor.core.space import Decision

SPREAD = 0.1  # fresh weights are uniform within this


class Scored(NamedTuple):
    """Log-probability and entropy of whole sequences of choices, (n,) each."""

    log_prob: Tensor
    entropy: Tensor


class PolicyDraw(NamedTuple):
    """A sequence of choices, its log-probability, and the logits it was drawn from."""

    actions: tuple[int, ...]
    log_prob: float
    logits: Sequence[Tensor]


class ControllerPolicy(nn.Module):
    """A distribution over sequences of choices; every parameter starts uniform in [-0.1, 0.1].

    `warmup` steps without a decision come first (one per encoder tap in the paper). Decisions of group `op` with equal
    options share a head, as published.
    """

    def __init__(
        self,
        decisions: Sequence[Decision],
        *,
        hidden: int = 100,
        layers: int = 2,
        warmup: int = 4,
        feedback: bool = False,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.order, sizes = assign_heads(decisions)
        self.warmup = warmup
        self.start = nn.Parameter(torch.empty(1, 1, hidden))
        self.rnn = nn.LSTM(hidden, hidden, layers)
        self.heads = nn.ModuleList(nn.Linear(hidden, size) for size in sizes)
        self.choices = nn.ModuleList(nn.Embedding(size, hidden) for size in sizes if feedback)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.uniform_(-SPREAD, SPREAD, generator=generator)

    @torch.no_grad()
    def sample(self, generator: torch.Generator, *, known: Sequence[Tensor] | None = None) -> PolicyDraw:
        """Draw one sequence of choices; `known` logits of an earlier draw save the walk where choices are not read."""
        chosen: list[Tensor] = []

        def choose(_: int, scores: Tensor) -> Tensor:
            chosen.append(torch.multinomial(scores.softmax(-1), 1, generator=generator)[:, 0])
            return chosen[-1]

        if known is None or self.choices:
            known = self._walk(1, choose)
        else:
            for place, scores in enumerate(known):
                choose(place, scores)
        logs = [
            float(scores.log_softmax(-1)[0, choice]) for scores, choice in zip(known, chosen, strict=True)
        ]
        return PolicyDraw(tuple(int(choice) for choice in chosen), sum(logs), known)

    def forward(self, actions: Tensor) -> Scored:
        """Score sequences of choices, (n, decisions) integers."""
        count = len(actions)
        scores = self.logits(actions)
        log_prob, entropy = torch.zeros(count), torch.zeros(count)
        for place, row in enumerate(scores):
            logs = row.log_softmax(-1)
            log_prob = log_prob + logs.expand(count, -1).gather(1, actions[:, place : place + 1])[:, 0]
            entropy = entropy - (logs.exp() * logs).sum(-1)
        return Scored(log_prob, entropy)

    def logits(self, actions: Tensor) -> list[Tensor]:
        """Return the logits of every decision: (n, options), or (1, options) where choices are not fed back."""
        return self._walk(len(actions) if self.choices else 1, lambda place, _: actions[:, place])

    def _walk(self, count: int, choose: Callable[[int, Tensor], Tensor]) -> list[Tensor]:
        output, state = self.start.expand(1, count, -1), None
        for _ in range(self.warmup):
            output, state = self.rnn(output, state)
        found = []
        for place, head in enumerate(self.order):
            output, state = self.rnn(output, state)
            scores = self.heads[head](output[0])
            found.append(scores)
            choice = choose(place, scores)
            if self.choices:
                output = output + self.choices[head](choice)[None]
        return found


def assign_heads(decisions: Sequence[Decision]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the head of each decision, and how many options each head has."""
    order: list[int] = []
    sizes: list[int] = []
    known: dict[str, int] = {}
    for decision in decisions:
        key = str(decision.options) if decision.group == "op" else f"own {decision.name}"
        if key not in known:
            known[key] = len(sizes)
            sizes.append(len(decision.options))
        order.append(known[key])
    return tuple(order), tuple(sizes)


def ppo_loss(log_prob: Tensor, old: Tensor, advantage: Tensor, *, clip: float) -> Tensor:
    """Return the clipped surrogate of PPO (Schulman et al. 2017) on probabilities of whole sequences, all (n,)."""
    ratio = (log_prob - old).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()
