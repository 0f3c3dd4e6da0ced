"""Spawned processes on this machine, one per device slot. Only text crosses the pipes.

Workers are spawned, never forked: a fork after a convolution hangs in OpenMP.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from segtailor.core.strategy import Pool, SearchProblem, Trial, TrialResult
from segtailor.strategies.worker import decode, encode, limit_threads, perform, resolve

GRACE = 2.0  # seconds that a worker gets to end before it is killed
POLL = 1.0  # seconds between looks at the clock


@dataclass(frozen=True, kw_only=True)
class Processes:
    """One spawned process per entry of `devices` (name a device twice for two at once).

    A worker that dies, or takes longer than `timeout` seconds for one trial, is replaced; its trial is repeated
    with the same seed up to `retries` times and then recorded as failed.
    """

    devices: tuple[str, ...] = ("cpu", "cpu")
    threads: int = 1
    retries: int = 2
    timeout: float | None = None

    def __post_init__(self) -> None:
        if not self.devices or self.threads < 1 or self.retries < 0:
            raise SearchProblem(
                "processes: give at least one device and one thread, and retries of at least 0."
            )
        if self.timeout is not None and not self.timeout > 0:
            raise SearchProblem(f"timeout: {self.timeout} must be above 0 seconds, or left out.")

    @contextmanager
    def open(self, work: str) -> Iterator[Pool]:
        """Start the workers; they end with the context."""
        pool = ProcessPool(self, work)
        try:
            yield pool
        finally:
            pool.close()


class Worker:
    """One process with a pipe, and the trial it works on."""

    def __init__(self, work: str, device: str, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.device = device
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, work, device, threads), daemon=True)
        self.process.start()
        theirs.close()
        self.trial: Trial | None = None
        self.since = 0.0

    def give(self, trial: Trial) -> None:
        """Send a trial; a worker that is already dead is noticed when its answer is read."""
        self.trial, self.since = trial, time.monotonic()
        with suppress(OSError):
            self.pipe.send_bytes(encode(trial).encode())

    def answer(self) -> TrialResult | None:
        """Return the result, or none when the worker died."""
        try:
            return decode(self.pipe.recv_bytes().decode())
        except (EOFError, OSError):
            return None

    def end(self, grace: float = 0.0) -> None:
        """Close the pipe, which ends an idle worker, and kill one that goes on."""
        self.pipe.close()
        self.process.join(grace)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()


class ProcessPool:
    """Workers that stay between batches, so that imports and datasets are loaded once."""

    def __init__(self, settings: Processes, work: str) -> None:
        self._settings = settings
        self._work = work
        self._workers = [self._start(device) for device in settings.devices]

    @property
    def slots(self) -> int:
        """How many trials run at once."""
        return len(self._workers)

    def run(self, trials: Sequence[Trial]) -> Iterator[TrialResult]:
        """Evaluate trials, yielding results in order of completion."""
        queue = deque(trials)
        lost: dict[int, int] = {}
        try:
            while True:
                for worker in self._workers:
                    if worker.trial is None and queue:
                        worker.give(queue.popleft())
                busy = {worker.pipe: worker for worker in self._workers if worker.trial is not None}
                if not busy:
                    return
                ready = wait(list(busy), timeout=POLL)
                late = [pipe for pipe, worker in busy.items() if pipe not in ready and self._late(worker)]
                for pipe in (*ready, *late):
                    result = self._collect(busy[pipe], lost, queue, late=pipe in late)  # type: ignore[index]
                    if result is not None:
                        yield result
        finally:
            for worker in [worker for worker in self._workers if worker.trial is not None]:
                self._replace(worker)  # left early: nobody waits for what still runs

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.end(GRACE)

    def _collect(
        self, worker: Worker, lost: dict[int, int], queue: deque[Trial], *, late: bool
    ) -> TrialResult | None:
        trial = worker.trial
        if trial is None:
            return None
        result = None if late else worker.answer()
        if result is not None:
            worker.trial = None
            return result
        seconds = time.monotonic() - worker.since
        self._replace(worker)
        lost[trial.id] = lost.get(trial.id, 0) + 1
        if lost[trial.id] <= self._settings.retries:
            queue.appendleft(trial)
            return None
        why = f"took longer than {self._settings.timeout:g} s" if late else "killed its worker"
        reason = f"{why} {lost[trial.id]} times; it may need more memory than there is"
        return TrialResult(id=trial.id, status="failed", seconds=seconds, reason=reason)

    def _late(self, worker: Worker) -> bool:
        timeout = self._settings.timeout
        return timeout is not None and time.monotonic() - worker.since > timeout

    def _start(self, device: str) -> Worker:
        return Worker(self._work, device, self._settings.threads)

    def _replace(self, worker: Worker) -> None:
        worker.end()
        self._workers[self._workers.index(worker)] = self._start(worker.device)


def serve(pipe: Connection, work: str, device: str, threads: int) -> None:
    """Answer trials until the pipe closes: the life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the driver, which lets the step finish
    threading.Thread(target=_die_with_driver, daemon=True).start()
    with suppress(Exception):
        resolve(work)  # imports early; a failure is reported with the first trial
        limit_threads(threads)
    with suppress(EOFError, OSError):
        while True:
            pipe.send_bytes(perform(work, pipe.recv_bytes().decode(), device).encode())


def _die_with_driver() -> None:
    """End this process when the driver was killed: its trial is issued again, and must not compete for the device."""
    driver = multiprocessing.parent_process()
    if driver is not None:
        driver.join()
        os._exit(1)
