"""Where trials run: in this process, in spawned processes on this machine, or on Ray.

Trials and results cross to a worker as JSON text, whatever the executor, so that all give the same results. The
function that judges a trial crosses once, by reference: a worker imports the module that defines it. Whatever goes
wrong in a trial becomes a failed result. This is the only file that imports Ray.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any

from segtailor.core.codec import from_json, to_json
from segtailor.core.errors import Diverged, Unsupported, UserError
from segtailor.core.memory import check_memory
from segtailor.core.ranges import check_whole
from segtailor.core.strategy import Pool, SearchProblem, Trial, TrialResult, Work
from segtailor.strategies.trial_strategy import work_name

END_SECONDS = 2.0  # that a worker gets to end by itself before it is killed
POLL_SECONDS = 1.0  # between checks for trials that take too long
OBJECT_STORE_BYTES = 80 * 2**20  # little more than Ray's minimum: trials and results are short texts
PROBE_PROGRAM = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False)"
MAX_CLUSTER_WORKERS = 10_000
PROCESSES_PER_CORE, MIN_PROCESS_LIMIT = (
    4,
    16,
)  # the most processes on this machine; the limit is never below the latter
WORKER_MEMORY_BYTES = 300 * 2**20  # of a process that has imported torch and computed nothing yet
OUT_OF_MEMORY = r"out of memory|can't allocate memory|cannot allocate memory"  # messages of common libraries


@dataclass(frozen=True, kw_only=True)
class Serial:
    """One trial after the other in this process."""

    @contextmanager
    def open(self, work: Work, device: str) -> Iterator[Pool]:
        """Return a pool; there is nothing to start."""
        yield SerialPool(work, device)


class SerialPool:
    """This process as a pool of one worker."""

    slots = 1

    def __init__(self, work: Work, device: str) -> None:
        self._work, self._device = work, device

    def run(self, trials: Sequence[Trial]) -> Iterator[TrialResult]:
        """Evaluate trials in the order given."""
        for trial in trials:
            yield decode(perform(self._work, encode(trial), self._device))


@dataclass(frozen=True, kw_only=True)
class Processes:
    """Spawned processes on this machine: `workers` of them, by default one per accelerator or core.

    Of several accelerators each worker gets its own in turn. A worker that dies, or takes longer than `timeout` seconds for one trial, is replaced; its trial is repeated
    with the same seed up to `retries` times and then recorded as failed.
    """

    workers: int | None = None
    threads: int = 1
    retries: int = 2
    timeout: float | None = None

    def __post_init__(self) -> None:
        if self.workers is not None:
            most = max(MIN_PROCESS_LIMIT, PROCESSES_PER_CORE * (os.cpu_count() or 1))
            check_whole("workers", self.workers, least=1, most=most, error=SearchProblem)
        if self.threads < 1 or self.retries < 0:
            raise SearchProblem("processes: give at least one thread, and retries of at least 0.")
        if self.timeout is not None and not self.timeout > 0:
            raise SearchProblem(f"timeout: {self.timeout} must be above 0 seconds, or left out.")

    @contextmanager
    def open(self, work: Work, device: str) -> Iterator[Pool]:
        """Start the workers; they end with the context."""
        places = devices_like(device)
        count = self.workers or len(places)
        check_memory(
            count * WORKER_MEMORY_BYTES,
            what=f"starting {count} processes for trials",
            remedy="Choose fewer (--set executor.workers=2).",
        )
        pool = ProcessPool(self, work, [places[index % len(places)] for index in range(count)])
        try:
            yield pool
        finally:
            pool.close()


class ProcessPool:
    """Workers that stay between batches, so that imports and datasets are loaded once."""

    def __init__(self, settings: Processes, work: Work, devices: Sequence[str]) -> None:
        self._settings = settings
        self._work = work
        self._workers = [self._start(device) for device in devices]

    @property
    def slots(self) -> int:
        """How many trials run at once."""
        return len(self._workers)

    def run(self, trials: Sequence[Trial]) -> Iterator[TrialResult]:
        """Evaluate trials, yielding results in order of completion."""
        queue = deque(trials)
        lost: dict[int, int] = {}  # trial id -> workers that it has cost
        try:
            while True:
                for worker in self._workers:
                    if worker.trial is None and queue:
                        worker.give(queue.popleft())
                busy = {worker.pipe: worker for worker in self._workers if worker.trial is not None}
                if not busy:
                    return
                ready = wait(list(busy), timeout=POLL_SECONDS)
                late = [pipe for pipe, worker in busy.items() if pipe not in ready and self._late(worker)]
                for pipe in (*ready, *late):
                    result = self._collect(busy[pipe], lost, queue, late=pipe in late)  # type: ignore[index]
                    if result is not None:
                        yield result
        finally:
            for worker in [worker for worker in self._workers if worker.trial is not None]:
                self._replace(worker)  # the caller stopped early: end what still runs

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.end(END_SECONDS)

    def _collect(
        self, worker: ProcessWorker, lost: dict[int, int], queue: deque[Trial], *, late: bool
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

    def _late(self, worker: ProcessWorker) -> bool:
        timeout = self._settings.timeout
        return timeout is not None and time.monotonic() - worker.since > timeout

    def _start(self, device: str) -> ProcessWorker:
        return ProcessWorker(self._work, device, self._settings.threads)

    def _replace(self, worker: ProcessWorker) -> None:
        worker.end()
        self._workers[self._workers.index(worker)] = self._start(worker.device)


class ProcessWorker:
    """One process with a pipe, and the trial it works on.

    It is spawned, never forked: a fork after a convolution hangs in OpenMP.
    """

    def __init__(self, work: Work, device: str, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.device = device
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=serve, args=(theirs, work_name(work), device, threads), daemon=True
        )
        self.process.start()
        theirs.close()
        with suppress(OSError):
            self.pipe.send(work)
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

    def end(self, seconds: float = 0.0) -> None:
        """Close the pipe, which ends an idle worker; kill it if it still runs after some seconds."""
        self.pipe.close()
        self.process.join(seconds)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()


def serve(pipe: Connection, name: str, device: str, threads: int) -> None:
    """Run as a worker: receive the function called `name`, then answer trials until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the driver, which lets the step finish
    threading.Thread(target=_die_with_driver, daemon=True).start()
    work = _receive_work(pipe, name)
    limit_threads(threads)
    with suppress(EOFError, OSError):
        while True:
            pipe.send_bytes(perform(work, pipe.recv_bytes().decode(), device).encode())


def _receive_work(pipe: Connection, name: str) -> Work:
    """Receive a function, which imports its module; if that fails, every trial reports it."""
    try:
        work: Work = pipe.recv()
    except Exception as error:  # noqa: BLE001 importing a module may raise anything
        reason = str(error)

        def work(trial: Trial, device: str) -> TrialResult:  # noqa: ARG001
            raise UserError(f"workers cannot import '{name}' ({reason}); install its package where they run.")

    return work


def _die_with_driver() -> None:
    """End this process when the driver was killed: its trial is issued again, and must not compete for the device."""
    driver = multiprocessing.parent_process()
    if driver is not None:
        driver.join()
        os._exit(1)


@dataclass(frozen=True, kw_only=True)
class Ray:
    """Ray tasks, `workers` at once (by default one per accelerator or core here), each with `cpus` and `gpus`.

    `address` is `host:port` of a running cluster; without it Ray is started here. A trial that loses its worker or
    node is repeated with the same seed up to `retries` times and then recorded as failed. `wait` bounds the seconds
    until the cluster answers.
    """

    address: str | None = None
    workers: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    retries: int = 2
    wait: float = 60.0

    def __post_init__(self) -> None:
        if self.workers is not None:
            check_whole("workers", self.workers, least=1, most=MAX_CLUSTER_WORKERS, error=SearchProblem)
        if self.cpus <= 0 or self.gpus < 0 or self.retries < 0 or self.wait <= 0:
            raise SearchProblem("ray: give cpus and wait above 0, gpus and retries of at least 0.")

    @contextmanager
    def open(self, work: Work, device: str) -> Iterator[Pool]:
        """Connect to the cluster or start one; what was started here ends with the context."""
        ray = _import_ray()
        count = self.workers or len(devices_like(device))
        started_here = not ray.is_initialized()
        if started_here:
            self._connect(ray, count)
        try:
            self._check_room(ray)
            yield RayPool(self, work, device=device, slots=count)
        finally:
            if started_here:
                ray.shutdown()

    def _check_room(self, ray: Any) -> None:
        """Refuse a trial that is larger than the cluster: Ray would wait forever for room."""
        there = ray.cluster_resources()
        for name, wanted in (("CPU", self.cpus), ("GPU", self.gpus)):
            if wanted > there.get(name, 0.0):
                raise SearchProblem(
                    f"ray: a trial wants {wanted:g} {name}, the whole cluster has {there.get(name, 0.0):g}; ask for "
                    "less per trial, or add a node."
                )

    def _connect(self, ray: Any, workers: int) -> None:
        if self.address is None:
            cores, devices = max(1, round(workers * self.cpus)), workers * self.gpus
            ray.init(
                address="local",  # without it Ray joins any cluster that was ever started on this machine
                num_cpus=cores,
                num_gpus=devices or None,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="error",
                object_store_memory=OBJECT_STORE_BYTES,
            )
            return
        _check_answers(self.address, self.wait)
        try:
            ray.init(address=self.address, log_to_driver=False, logging_level="error")
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as problem:
            raise _unreachable(self.address, str(problem)) from problem


class RayPool:
    """Tasks on a connected cluster, never more than `slots` at once."""

    def __init__(self, settings: Ray, work: Work, *, device: str, slots: int) -> None:
        self.slots = slots
        self._settings = settings
        self._work = work
        self._device = device
        remote = _import_ray().remote(
            num_cpus=settings.cpus, num_gpus=settings.gpus, max_retries=0, scheduling_strategy="SPREAD"
        )
        self._task: Any = remote(_perform_on_ray)

    def run(self, trials: Sequence[Trial]) -> Iterator[TrialResult]:
        """Evaluate trials, yielding results in order of completion."""
        ray = _import_ray()
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
            for task in running:  # the caller stopped early: end what still runs
                ray.cancel(task, force=True)

    def _submit(self, trial: Trial) -> Any:
        return self._task.remote(self._work, encode(trial), self._device, self._settings.cpus)


def _perform_on_ray(work: Work, message: str, device: str, cpus: float) -> str:
    limit_threads(max(1, int(cpus)))
    return perform(work, message, device)


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise Unsupported(
            "the executor 'ray' needs Ray, which is not installed; run: pip install 'segtailor[ray]', or use the "
            "executor 'processes'."
        ) from None
    return ray


def _check_answers(address: str, seconds: float) -> None:
    """Raise unless a cluster answers in time. Tried in a process of its own: `ray.init` has no time limit."""
    if not re.fullmatch(r"auto|(ray://)?[^:/]+:\d{1,5}", address):
        raise SearchProblem(
            f"Ray address '{address}' is not host:port; write for example 10.0.0.5:6379, or leave it out."
        )
    try:
        probe = subprocess.run(
            [sys.executable, "-c", PROBE_PROGRAM, address],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _unreachable(address, f"waited {seconds:g} s") from None
    if "AuthenticationError" in probe.stderr:
        raise SearchProblem(
            f"the Ray cluster at {address} refuses this machine: its authentication token is missing or wrong. Ask who "
            "runs the cluster for the token, and set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN before starting."
        )
    if probe.returncode != 0:
        raise _unreachable(address, (probe.stderr.strip().splitlines() or [""])[-1])


def _unreachable(address: str, why: str) -> SearchProblem:
    return SearchProblem(
        f"no Ray cluster answers at {address} ({why}). Start it there "
        "with 'ray start --head', correct the address, or leave it out to start Ray on this machine."
    )


def _last_line(problem: Exception) -> str:
    """Return what went wrong: errors of Ray start with a traceback and end with the reason."""
    return f"{type(problem).__name__}: {(str(problem).strip().splitlines() or [''])[-1].strip()}"[:300]


def devices_like(device: str) -> list[str]:
    """Name the devices of a kind: every accelerator, or the processor once per core."""
    kind = device.partition(":")[0]
    if kind == "cpu":
        return [device] * (os.cpu_count() or 1)
    import torch

    return [f"{kind}:{index}" for index in range(max(1, torch.accelerator.device_count()))]


def perform(work: Work, message: str, device: str) -> str:
    """Evaluate the trial of a message with the function `work`; return the result as a message."""
    started = time.perf_counter()
    trial = from_json(Trial, json.loads(message), what="trial")
    try:
        result = work(trial, device)
    except Exception as problem:  # noqa: BLE001 a failed trial is a result, not a crash
        result = trial.failed(_describe(problem), passing=_may_pass(problem))
    return json.dumps(to_json(replace(result, id=trial.id, seconds=time.perf_counter() - started)))


def encode(trial: Trial) -> str:
    """Write a trial as a message."""
    return json.dumps(to_json(trial))


def decode(message: str) -> TrialResult:
    """Read the answer to a message."""
    return from_json(TrialResult, json.loads(message), what="trial result")


def limit_threads(threads: int) -> None:
    """Let torch, where it was imported, use few threads: processes that share cores slow each other down otherwise."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)


def _describe(problem: Exception) -> str:
    text = " ".join(str(problem).split())[:500]
    return text if isinstance(problem, UserError) else f"{type(problem).__name__}: {text}"


def _may_pass(problem: Exception) -> bool:
    """Tell whether another try may go well: memory that others held, arithmetic that differs from run to run."""
    memory = "OutOfMemory" in type(problem).__name__ or re.search(OUT_OF_MEMORY, str(problem), re.IGNORECASE)
    return isinstance(problem, MemoryError | Diverged) or bool(memory)
