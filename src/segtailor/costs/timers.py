"""Timers of single operators, free of launch overhead and layout changes (docs/decisions/0004)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from segtailor.core.plan import OpCall
from segtailor.core.target import Target
from segtailor.costs.pack import Entry
from segtailor.deploy.fold import operator_form
from segtailor.targets.runtime import compile_network, flag
from segtailor.targets.timing import Samples, TimingSettings, stopwatch, time_all

STATISTIC = "fastest of the runs, each kernel by itself where the runtime tells"
MS_PER_SECOND = 1000.0
US_PER_SECOND = 1e6


class Timer(Protocol):
    """Times operator calls on one target."""

    @property
    def method(self) -> str:
        """How operators are timed, for the pack."""

    @property
    def chunk(self) -> int:
        """How many operators to time in turns."""

    def time(self, calls: Sequence[OpCall], *, seconds: float) -> list[Entry]:
        """Time all calls in turns, about `seconds` each."""


@dataclass(frozen=True, kw_only=True)
class ProfileTimer:
    """ONNX Runtime on the CPU: its own profiler, each operator between two light convolutions."""

    threads: int | None
    spin: bool = True
    method: str = "kernel times by the runtime's profiler, each operator between two light convolutions"
    chunk: int = 32

    def time(self, calls: Sequence[OpCall], *, seconds: float) -> list[Entry]:
        """Time all calls in turns."""
        from segtailor.costs.board_runner import time_models
        from segtailor.costs.operator_files import export_operators

        files = export_operators(calls)
        rows = time_models(files, threads=self.threads, seconds=seconds, spin=self.spin)
        return [Entry(**row) for row in rows]


@dataclass(frozen=True, kw_only=True)
class CopiesTimer:
    """Any runtime: the time of many copies of an operator minus that of few, which contains no overhead."""

    target: Target
    few: int = 1
    many: int = 9
    method: str = "difference between 9 copies of an operator and 1, over 8"
    chunk: int = 8

    def time(self, calls: Sequence[OpCall], *, seconds: float) -> list[Entry]:
        """Time all calls in turns."""
        compiled = [
            compile_network(Copies(call, count), self.target, call.inputs)
            for call in calls
            for count in (self.few, self.many)
        ]
        settings = TimingSettings(
            runs=20, seconds=seconds / 4, warm_up_seconds=0.02, warm_up_limit=0.2, device_sample_ms=2.0
        )
        try:
            taken = time_all([stopwatch(one, self.target.device) for one in compiled], settings)
        finally:
            for one in compiled:
                one.close()
        return [
            self._entry(call, *pair)
            for call, pair in zip(calls, zip(taken[::2], taken[1::2], strict=True), strict=True)
        ]

    def _entry(self, call: OpCall, few: Samples, many: Samples) -> Entry:
        us = US_PER_SECOND * (fastest_seconds(many) - fastest_seconds(few)) / (self.many - self.few)
        empty = isinstance(operator_form(call), nn.Identity)
        return Entry(
            us=0.0 if empty else max(0.0, us),
            spread=many.spread,
            runs=min(few.runs, many.runs),
            kernels=0 if empty else 1,
        )


class Copies(nn.Module):
    """Copies of an operator, each with its own weights, on the same inputs."""

    def __init__(self, call: OpCall, count: int) -> None:
        super().__init__()
        operator = operator_form(call)
        self.copies = nn.ModuleList(copy.deepcopy(operator) for _ in range(count))

    def forward(self, *maps: Tensor) -> tuple[Tensor, ...]:
        """Run all copies; every result is an output, so that no runtime can leave one out."""
        return tuple(operator(*maps) for operator in self.copies)


def timer_for(target: Target) -> Timer:
    """Return the timer that suits a target."""
    if target.runtime == "onnxruntime" and target.device == "cpu":
        return ProfileTimer(threads=target.threads, spin=flag(target, "spin", default=True))
    return CopiesTimer(target=target)


def fastest_seconds(samples: Samples) -> float:
    """Return the seconds of an undisturbed run: other programs only ever add time."""
    return min(samples.times)
