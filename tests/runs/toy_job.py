"""A deterministic job in pure Python, and ways to stop it. Run as a script, it forks and kills."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import segtailor
from segtailor.core.job import Step
from segtailor.runs import Layout, Lines, Policy, execute, read_result, read_steps

RECIPE = {"job": "toy", "train": {"steps": 30, "rates": [0.1, 0.2]}}
SOURCES = str(Path(segtailor.__file__).resolve().parents[1])


class Toy:
    """Mixes a number; every fifth step asks for a checkpoint."""

    def __init__(
        self, total: int = 30, pause: float = 0.0, hook: Callable[[int], None] | None = None
    ) -> None:
        self.total, self.pause, self.hook = total, pause, hook
        self.done, self.state, self.open = 0, 1, False

    def steps(self) -> Iterator[Step]:
        self.open = True
        try:
            while self.done < self.total:
                time.sleep(self.pause)
                self.done += 1
                self.state = (self.state * 6364136223846793005 + self.done) % 2**64
                if self.hook:
                    self.hook(self.done)
                phase = "train" if self.done % 3 else "val"
                metrics = {"loss": self.state / 2**64}
                yield Step(
                    phase=phase,
                    done=self.done,
                    total=self.total,
                    metrics=metrics,
                    checkpoint=self.done % 5 == 0,
                )
        finally:
            self.open = False

    def save(self, folder: Path) -> None:
        if not self.open:
            raise ValueError("saved outside a step")
        if list(folder.iterdir()):
            raise ValueError("the folder is not empty")
        (folder / "state.json").write_text(json.dumps([self.done, self.state]))
        (folder / "more").mkdir()
        (folder / "more" / "weights.bin").write_bytes(self.state.to_bytes(8, "big") * 1000)

    def load(self, folder: Path) -> None:
        self.done, self.state = json.loads((folder / "state.json").read_text())

    def result(self) -> dict[str, Any]:
        return {"state": str(self.state), "done": self.done}


def run(folder: Path, *, pause: float = 0.0) -> dict[str, Any]:
    policy = Policy(tensorboard=False)
    return execute(lambda: Toy(pause=pause), folder, RECIPE, display=Lines(sys.stderr), policy=policy)


def failing_at(step: int, problem: BaseException) -> Callable[[], Toy]:
    def hook(done: int) -> None:
        if done == step:
            raise problem

    return lambda: Toy(hook=hook)


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Let the operating system refuse larger files, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def forked(work: Callable[[], object]) -> int:
    """Start a child that does `work`; return its process id."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            traceback.print_exc()
            os._exit(1)
    return child


def outcome(folder: Path) -> list[Any]:
    """Return what must not depend on kills: result and journaled steps."""
    return [read_result(folder), [(item.number, item.step) for item in read_steps(folder)]]


def killed_at_random(folder: Path, kills: int, seed: int) -> int:
    """Kill sessions at random moments, resuming each time; return how many were killed at work."""
    rng = random.Random(seed)
    journal = Layout(folder).journal
    killed = 0
    for _ in range(kills):
        begin = journal.stat().st_size if journal.exists() else 0
        end = begin + 130 * rng.randrange(8)  # bytes: whatever the load of the machine, a few steps of work
        child = forked(lambda: run(folder, pause=0.015))
        while not journal.exists() or journal.stat().st_size < end:
            time.sleep(0.0005)
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:  # finished before its time had come
                return killed if status == 0 else -1
        time.sleep(rng.uniform(0, 0.005))
        os.kill(child, signal.SIGKILL)
        killed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) < 0
    run(folder)
    return killed


def die_before_access(number: int) -> list[int]:
    """End this process just before its access number `number` to the file system; return the counter."""
    count = [0]

    def access() -> None:
        count[0] += 1
        if count[0] == number:
            os._exit(9)

    def audited(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"):
            access()

    sys.addaudithook(audited)
    for name in ("pwrite", "fsync", "write"):
        original = getattr(os, name)
        setattr(os, name, lambda *arguments, original=original: (access(), original(*arguments))[1])
    return count


def died_everywhere(folder: Path, stride: int) -> list[Any]:
    """Die before each (stride-th) access of a run, resume, and collect the different outcomes."""
    outcomes: list[Any] = []
    number, code = 1, 9
    while code == 9:
        shutil.rmtree(folder, ignore_errors=True)
        child = forked(lambda: (die_before_access(number), run(folder)))  # noqa: B023 - runs at once
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        run(folder)
        if outcome(folder) not in outcomes:
            outcomes.append(outcome(folder))
        number += stride
    print(f"{number} accesses", file=sys.stderr)
    return outcomes


if __name__ == "__main__":
    verb, place, *rest = sys.argv[1:]
    if verb == "run":
        run(Path(place), pause=float(rest[0]))
    elif verb == "kill":
        print(killed_at_random(Path(place), *map(int, rest)))
    elif verb == "everywhere":
        print(len(died_everywhere(Path(place), int(rest[0]))))
