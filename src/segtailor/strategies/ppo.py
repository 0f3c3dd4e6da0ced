"""Learning a policy from rewards: PPO over a ring of the last architectures, with a moving baseline."""

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
from segtailor.strategies.policy import ControllerPolicy, ppo_loss
from segtailor.training.optimiser import load_optimiser, optimiser_state
from segtailor.training.state import read_state, write_state


class Experience(NamedTuple):
    """One architecture: its choices, their log-probability when they were drawn, and what it was worth."""

    actions: tuple[int, ...]
    log_prob: float
    reward: float


class PolicyLearner:
    """The policy, its optimiser, the ring of lessons, the baseline and the random state."""

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
        self.lessons: deque[Experience] = deque(maxlen=settings.buffer)
        self.baseline: float | None = None
        self._logits: Sequence[Tensor] | None = None  # of the policy as it is now

    def draw(self) -> tuple[tuple[int, ...], float]:
        """Draw choices; return them with their log-probability."""
        drawn = self.policy.sample(self.rng, known=self._logits)
        self._logits = drawn.logits
        return drawn.actions, drawn.log_prob

    def log_prob(self, actions: Sequence[int]) -> float:
        """Return the log-probability of choices that came from elsewhere."""
        with torch.no_grad():
            return float(self.policy(torch.tensor([list(actions)])).log_prob)

    def undecided(self) -> float:
        """Return the entropy of the policy, after all first options where choices are fed back."""
        with torch.no_grad():
            actions = torch.zeros((1, len(self.policy.order)), dtype=torch.int64)
            return float(self.policy(actions).entropy)

    def learn(self, lesson: Experience) -> None:
        """Move the baseline, keep the lesson, and go over the whole ring in random order.

        The first lesson teaches nothing: its advantage is 0. Unlike the authors' program, rows of the ring that are not
        filled yet are not trained on.
        """
        decay = self.settings.baseline_decay
        before = lesson.reward if self.baseline is None else self.baseline
        self.baseline = decay * before + (1 - decay) * lesson.reward
        self.lessons.append(lesson)
        self._logits = None
        actions = torch.tensor([item.actions for item in self.lessons])
        old = torch.tensor([item.log_prob for item in self.lessons])
        advantages = torch.tensor([item.reward - self.baseline for item in self.lessons])
        for _ in range(self.settings.epochs):
            order = torch.randperm(len(self.lessons), generator=self.rng)
            for rows in torch.split(order, self.settings.minibatch):
                self._step(actions[rows], old[rows], advantages[rows])

    def _step(self, actions: Tensor, old: Tensor, advantages: Tensor) -> None:
        found = self.policy(actions)
        loss = ppo_loss(found.log_prob, old, advantages, clip=self.settings.clip)
        loss = loss - self.settings.entropy * found.entropy.mean()
        self.adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), self.settings.gradient_clip)
        self.adam.step()

    def keep(self, counters: Mapping[str, Json]) -> Callable[[Path], None]:
        """Return a function that writes everything as it is now, with the caller's `counters`."""
        groups = {
            "policy": _copied(self.policy.state_dict()),
            "adam": _copied(optimiser_state(self.adam)),
            "rng": {"state": self.rng.get_state()},
        }
        lessons: list[Json] = [[list(item.actions), item.log_prob, item.reward] for item in self.lessons]
        document = {**counters, "baseline": self.baseline, "lessons": lessons}
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
                self.lessons.append(Experience(tuple(actions), log_prob, reward))
        except (KeyError, IndexError, RuntimeError, ValueError, TypeError) as problem:
            raise RunProblem(
                f"the controller's state in {folder} belongs to another space or other settings ({problem}); "
                "resume with the recipe it was started with."
            ) from None
        return counters


def _copied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in state.items()}
