"""Trials on Ray: a cluster that runs already, or workers started on this machine. The only file that imports Ray."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from segtailor.core.errors import Unsupported
from segtailor.core.strategy import Pool, SearchProblem, Trial, TrialResult
from segtailor.strategies.worker import decode, encode, limit_threads, perform

OBJECT_STORE = 80 * 2**20  # bytes, little more than Ray's minimum: trials and results are short texts
PROBE = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False)"


@dataclass(frozen=True, kw_only=True)
class Ray:
    """Ray tasks, `workers` at once, each with its share of `cpus` and `gpus`.

    `address` is `host:port` of a running cluster; without it Ray is started here. A worker or node that is lost
    costs a repetition with the same seed, up to `retries`, then the trial is recorded as failed. `wait` bounds the
    seconds until the cluster answers.
    """

    address: str | None = None
    workers: int = 2
    cpus: float = 1.0
    gpus: float = 0.0
    device: str = "cpu"
    retries: int = 2
    wait: float = 60.0

    def __post_init__(self) -> None:
        if self.workers < 1 or self.cpus <= 0 or self.gpus < 0 or self.retries < 0 or self.wait <= 0:
            raise SearchProblem(
                "ray: give workers of at least 1, cpus and wait above 0, gpus and retries of at least 0."
            )

    @contextmanager
    def open(self, work: str) -> Iterator[Pool]:
        """Connect to the cluster or start one; what was started here ends with the context."""
        ray = _imported()
        mine = not ray.is_initialized()
        if mine:
            self._connect(ray)
        try:
            self._check_room(ray)
            yield RayPool(self, work)
        finally:
            if mine:
                ray.shutdown()

    def _check_room(self, ray: Any) -> None:
        """Refuse what the cluster can never run: Ray would wait for it without end."""
        there = ray.cluster_resources()
        for name, wanted in (("CPU", self.cpus), ("GPU", self.gpus)):
            if wanted > there.get(name, 0.0):
                raise SearchProblem(
                    f"ray: a trial wants {wanted:g} {name}, the whole cluster has {there.get(name, 0.0):g}; ask for "
                    "less per trial, or add a node."
                )

    def _connect(self, ray: Any) -> None:
        if self.address is None:
            cores, devices = max(1, round(self.workers * self.cpus)), self.workers * self.gpus
            ray.init(
                address="local",  # without it Ray joins any cluster that was ever started on this machine
                num_cpus=cores,
                num_gpus=devices or None,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="error",
                object_store_memory=OBJECT_STORE,
            )
            return
        _answer(self.address, self.wait)
        try:
            ray.init(address=self.address, log_to_driver=False, logging_level="error")
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as problem:
            raise _unreachable(self.address, str(problem)) from problem


class RayPool:
    """Tasks on a connected cluster, never more than `workers` at once."""

    def __init__(self, settings: Ray, work: str) -> None:
        self._settings = settings
        self._work = work
        remote = _imported().remote(
            num_cpus=settings.cpus, num_gpus=settings.gpus, max_retries=0, scheduling_strategy="SPREAD"
        )
        self._task: Any = remote(_task)

    @property
    def slots(self) -> int:
        """How many trials run at once."""
        return self._settings.workers

    def run(self, trials: Sequence[Trial]) -> Iterator[TrialResult]:
        """Evaluate trials, yielding results in order of completion."""
        ray = _imported()
        queue = deque((trial, 0) for trial in trials)  # with the number of workers it has cost
        running: dict[Any, tuple[Trial, int]] = {}
        try:
            while queue or running:
                while queue and len(running) < self.slots:
                    trial, losses = queue.popleft()
                    running[self._submit(trial)] = (trial, losses)
                ready, _ = ray.wait(list(running), num_returns=1)
                trial, losses = running.pop(ready[0])
                try:
                    yield decode(ray.get(ready[0]))
                except ray.exceptions.RayError as problem:
                    if losses < self._settings.retries:
                        queue.appendleft((trial, losses + 1))
                        continue
                    yield trial.failed(f"lost its worker {losses + 1} times: {_last_line(problem)}")
        finally:
            for task in running:  # left early: nobody waits for what still runs
                ray.cancel(task, force=True)

    def _submit(self, trial: Trial) -> Any:
        return self._task.remote(self._work, encode(trial), self._settings.device, self._settings.cpus)


def _task(work: str, message: str, device: str, cpus: float) -> str:
    limit_threads(max(1, int(cpus)))
    return perform(work, message, device)


def _imported() -> Any:
    try:
        import ray
    except ImportError:
        raise Unsupported(
            "the executor 'ray' needs Ray, which is not installed; run: pip install 'segtailor[ray]', or use the "
            "executor 'processes'."
        ) from None
    return ray


def _answer(address: str, wait: float) -> None:
    """Raise unless a cluster answers in time. Asked in a process of its own: `ray.init` cannot be told to give up."""
    if not re.fullmatch(r"auto|(ray://)?[^:/]+:\d{1,5}", address):
        raise SearchProblem(
            f"Ray address '{address}' is not host:port; write for example 10.0.0.5:6379, or leave it out."
        )
    try:
        asked = subprocess.run(
            [sys.executable, "-c", PROBE, address], capture_output=True, text=True, timeout=wait, check=False
        )
    except subprocess.TimeoutExpired:
        raise _unreachable(address, f"waited {wait:g} s") from None
    if "AuthenticationError" in asked.stderr:
        raise SearchProblem(
            f"the Ray cluster at {address} refuses this machine: its authentication token is missing or wrong. Ask who "
            "runs the cluster for the token, and set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN before starting."
        )
    if asked.returncode != 0:
        raise _unreachable(address, (asked.stderr.strip().splitlines() or [""])[-1])


def _unreachable(address: str, why: str) -> SearchProblem:
    return SearchProblem(
        f"no Ray cluster answers at {address} ({why}). Start it there "
        "with 'ray start --head', correct the address, or leave it out to start Ray on this machine."
    )


def _last_line(problem: Exception) -> str:
    """Return what went wrong: the errors of Ray begin with where."""
    return f"{type(problem).__name__}: {(str(problem).strip().splitlines() or [''])[-1].strip()}"[:300]
