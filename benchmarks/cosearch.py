"""One step of FasterSeg's search, for `search_throughput.py`: pretraining, or the co-search of student and teacher.

The step is that of the search itself (`SupernetEngine`). A co-search step updates logits on one batch and weights on
another, each by four passes (teacher, student, largest and smallest widths) whose losses on five outputs are added; a
pretraining step updates weights by four passes (largest, smallest, two random widths). Images are counted once per
step, as in the reference program.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch

from segtailor.core.cost import Power
from segtailor.core.plan import Shape
from segtailor.core.strategy import Problem
from segtailor.core.task import Task
from segtailor.costs import LatencyTable, shipped_pack
from segtailor.data.batches import Batch
from segtailor.nets.network import initialise
from segtailor.spaces.multi_resolution import MultiResolution
from segtailor.spaces.multi_resolution.supernet import MultiResolutionSettings
from segtailor.strategies.gradient_settings import Gradient, Pass
from segtailor.strategies.supernet_engine import SupernetEngine
from segtailor.systems import fasterseg
from segtailor.training import device as devices

CLASSES = 19
PACK = "fasterseg-1080ti"  # whose latency the paper searches for
Kind = Literal["cosearch", "pretrain"]


class CoSearch:
    """A supernet with both roles, and steps on random pixels."""

    def __init__(
        self,
        kind: Kind,
        words: frozenset[str],
        *,
        image: Shape,
        batch: int,
        device: torch.device,
        layers: int,
    ) -> None:
        self.kind, self.device = kind, device
        settings = search_settings(words, kind, batch=batch)
        if "default" in words:
            batch = settings.fit.batch
            image = Shape(3, *settings.augment.crop) if settings.augment else image
        space = MultiResolution(layers=layers)
        problem = Problem(
            space=space,
            cost=LatencyTable(pack=shipped_pack(PACK)),
            objective=Power(limit=8.3),
            task=Task(classes=tuple(f"class{number}" for number in range(CLASSES))),
            image=Shape(3, 1024, 2048),
        )
        supernet = space.supernet(problem.image, CLASSES, settings=settings.supernet)
        initialise(supernet, seed=0)
        devices.place(supernet, device, channels_last=settings.fit.channels_last).train()
        self.engine = SupernetEngine(supernet, settings, problem, device=device)
        generator = torch.Generator().manual_seed(1)
        size = (batch, *image[1:])
        pixels = torch.randn((batch, *image), generator=generator).to(device)
        labels = torch.randint(CLASSES, size, generator=generator, dtype=torch.uint8).to(device)
        self.batch = Batch(pixels, labels)
        self.number = 0

    def step(self) -> None:
        """Run one step of the search."""
        self.number += 1
        if self.kind == "pretrain":
            names = self.engine.roles.names
            role = names[self.number % len(names)]
            turns = [Pass(role=role, widths=widths) for widths in ("most", "least", "random", "random")]
            self._update(rate=0.02, turns=turns)
            return
        self.engine.step(
            self.batch,
            number=2 * self.number + 1,
            temperature=1.0,
            rate=None,
            learning={"op", "path", "width"},
        )
        self._update(rate=0.01, turns=None)

    def loss(self) -> float:
        """Return the mean loss since the last call; waits for the device."""
        return self.engine.report().loss

    def _update(self, *, rate: float, turns: list[Pass] | None) -> None:
        self.engine.step(
            self.batch, number=2 * self.number, temperature=1.0, rate=rate, learning=set(), turns=turns
        )


def search_settings(words: frozenset[str], kind: Kind, *, batch: int) -> Gradient:
    """Return the paper's search with the named optimisations, or with those of its recipe (`default`)."""
    strategy = fasterseg.PAPER_STRATEGY
    first = strategy.pretraining
    if "default" in words and kind == "pretrain" and first is not None:
        strategy = replace(strategy, fit=first.fit, augment=first.augment)
    if "default" in words:
        return replace(strategy, pretraining=None)
    graph = "graph" in words
    masked = "masked" in words or graph
    return replace(
        strategy,
        supernet=MultiResolutionSettings(
            fused="fused" in words,
            masked=masked,
            width_gradient="norms" if masked else "score",
            matrices="gemm" in words,
            compiled="compile" in words,
            mix_inputs="mix" in words,
        ),
        fit=replace(
            strategy.fit,
            batch=batch,
            precision="bf16" if "bf16" in words else "fp32",
            channels_last="last" in words,
        ),
        record=graph,
        pretraining=None,
    )
