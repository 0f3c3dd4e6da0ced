"""The policy of the strategy `controller`: an LSTM that draws architectures, and PPO that trains it on rewards.

The LSTM makes one step per decision, with a linear head each (auxiliary cells). As published, it reads its own last
output and never the choice itself, so that decisions are independent of each other; `feedback` adds an embedding of
the last choice, which makes the policy autoregressive. PPO goes over a ring buffer of the last architectures, with a
moving average of rewards as baseline.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from segtailor.core.codec import Json
from segtailor.core.errors import RunProblem
from segtailor.core.space import Decision
from segtailor.strategies.controller import Controller
from segtailor.training.optimiser import load_optimiser, optimiser_state
from segtailor.training.state import read_state, write_state

INITIAL_RANGE = 0.1  # weights start uniform in -0.1 to 0.1


class Experience(NamedTuple):
    """One architecture: its choices, their log-probability when they were drawn, and its reward."""

    actions: tuple[int, ...]
    log_prob: float
    reward: float


class PolicyLearner:
    """The policy with its optimiser, the ring buffer of experiences, the baseline and the random state."""

    def __init__(self, settings: Controller, decisions: Sequence[Decision], seed: int) -> None:
        self.settings = settings
        self.rng = torch.Generator().manual_seed(seed)
        self.policy = ControllerPolicy(
            decisions,
            hidden=settings.hidden,
            layers=settings.layers,
            warmup=settings.warmup,
            feedback=settings.feedback,
            generator=self.rng,
        )
        self.adam = torch.optim.Adam(self.policy.parameters(), lr=settings.lr, fused=True)
        self.experiences: deque[Experience] = deque(maxlen=settings.buffer)
        self.baseline: float | None = None
        self._logits: Sequence[Tensor] | None = None  # of the current policy; none after an update

    def draw(self) -> tuple[tuple[int, ...], float]:
        """Draw choices; return them with their log-probability."""
        drawn = self.policy.sample(self.rng, known=self._logits)
        self._logits = drawn.logits
        return drawn.actions, drawn.log_prob

    def log_prob(self, actions: Sequence[int]) -> float:
        """Return the log-probability of choices that the policy did not draw."""
        with torch.no_grad():
            return float(self.policy(torch.tensor([list(actions)])).log_prob)

    def entropy(self) -> float:
        """Return the entropy of the policy; with feedback, that after choosing the first option everywhere."""
        with torch.no_grad():
            actions = torch.zeros((1, len(self.policy.order)), dtype=torch.int64)
            return float(self.policy(actions).entropy)

    def learn(self, experience: Experience) -> None:
        """Update the baseline, add the experience, and train on the whole buffer in random order.

        The first experience changes nothing: its advantage is 0. Unlike in the authors' program, rows of the buffer
        that are not filled yet are not trained on.
        """
        decay = self.settings.baseline_decay
        before = experience.reward if self.baseline is None else self.baseline
        self.baseline = decay * before + (1 - decay) * experience.reward
        self.experiences.append(experience)
        self._logits = None
        actions = torch.tensor([item.actions for item in self.experiences])
        old = torch.tensor([item.log_prob for item in self.experiences])
        advantages = torch.tensor([item.reward - self.baseline for item in self.experiences])
        for _ in range(self.settings.epochs):
            order = torch.randperm(len(self.experiences), generator=self.rng)
            for rows in torch.split(order, self.settings.minibatch):
                self._step(actions[rows], old[rows], advantages[rows])

    def _step(self, actions: Tensor, old: Tensor, advantages: Tensor) -> None:
        scored = self.policy(actions)
        loss = ppo_loss(scored.log_prob, old, advantages, clip=self.settings.clip)
        loss = loss - self.settings.entropy * scored.entropy.mean()
        self.adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), self.settings.gradient_clip)
        self.adam.step()

    def keep(self, counters: Mapping[str, Json]) -> Callable[[Path], None]:
        """Return a function that writes the state as it is now, together with the caller's `counters`."""
        groups = {
            "policy": _copied(self.policy.state_dict()),
            "adam": _copied(optimiser_state(self.adam)),
            "rng": {"state": self.rng.get_state()},
        }
        experiences: list[Json] = [
            [list(item.actions), item.log_prob, item.reward] for item in self.experiences
        ]
        document = {**counters, "baseline": self.baseline, "lessons": experiences}
        return lambda folder: write_state(folder, groups, document)

    def restore(self, folder: Path) -> dict[str, Any]:
        """Read what `keep` wrote; return the caller's counters."""
        groups, counters = read_state(folder)
        self._logits = None
        try:
            self.policy.load_state_dict(groups["policy"])
            load_optimiser(self.adam, groups.get("adam", {}))
            self.rng.set_state(groups["rng"]["state"])
            self.baseline = counters["baseline"]
            for actions, log_prob, reward in counters["lessons"]:
                self.experiences.append(Experience(tuple(actions), log_prob, reward))
        except (KeyError, IndexError, RuntimeError, ValueError, TypeError) as problem:
            raise RunProblem(
                f"the controller's state in {folder} belongs to another space or other settings ({problem}); "
                "resume with the recipe it was started with."
            ) from None
        return counters


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
    """A distribution over sequences of choices.

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
                parameter.uniform_(-INITIAL_RANGE, INITIAL_RANGE, generator=generator)

    @torch.no_grad()
    def sample(self, generator: torch.Generator, *, known: Sequence[Tensor] | None = None) -> PolicyDraw:
        """Draw one sequence of choices; `known` logits of an earlier draw save computing them, without feedback."""
        chosen: list[Tensor] = []

        def choose(_: int, scores: Tensor) -> Tensor:
            chosen.append(torch.multinomial(scores.softmax(-1), 1, generator=generator)[:, 0])
            return chosen[-1]

        if known is None or self.choices:
            known = self._unroll(1, choose)
        else:
            for position, scores in enumerate(known):
                choose(position, scores)
        logs = [
            float(scores.log_softmax(-1)[0, choice]) for scores, choice in zip(known, chosen, strict=True)
        ]
        return PolicyDraw(tuple(int(choice) for choice in chosen), sum(logs), known)

    def forward(self, actions: Tensor) -> Scored:
        """Score sequences of choices, (n, decisions) integers."""
        count = len(actions)
        scores = self.logits(actions)
        log_prob, entropy = torch.zeros(count), torch.zeros(count)
        for position, row in enumerate(scores):
            logs = row.log_softmax(-1)
            log_prob = log_prob + logs.expand(count, -1).gather(1, actions[:, position : position + 1])[:, 0]
            entropy = entropy - (logs.exp() * logs).sum(-1)
        return Scored(log_prob, entropy)

    def logits(self, actions: Tensor) -> list[Tensor]:
        """Return the logits of every decision: (n, options), or (1, options) where choices are not fed back."""
        return self._unroll(len(actions) if self.choices else 1, lambda position, _: actions[:, position])

    def _unroll(self, count: int, choose: Callable[[int, Tensor], Tensor]) -> list[Tensor]:
        output, state = self.start.expand(1, count, -1), None
        for _ in range(self.warmup):
            output, state = self.rnn(output, state)
        logits = []
        for position, head in enumerate(self.order):
            output, state = self.rnn(output, state)
            scores = self.heads[head](output[0])
            logits.append(scores)
            choice = choose(position, scores)
            if self.choices:
                output = output + self.choices[head](choice)[None]
        return logits


def assign_heads(decisions: Sequence[Decision]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the head of each decision, and the number of options of each head."""
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


def _copied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in state.items()}
