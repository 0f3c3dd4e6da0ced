"""Measure the speed-up of two workers over one on CPU-bound trials: python -m benchmarks.trial_speedup [--ray].

Each trial trains a small convolution for a fixed number of steps on one thread. The start of workers is timed
separately: it happens once per search. If trials got much less processor time than wall time, other programs used the
cores: the figures are then not valid, and the benchmark says so.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import psutil
import torch

from segtailor.core.cost import Within
from segtailor.core.plan import Plan, Shape
from segtailor.core.strategy import Evaluator, Executor, Problem, Trial, TrialResult
from segtailor.core.task import Task
from segtailor.spaces.scalable_path import ScalablePath
from segtailor.strategies import Processes, RandomSearch, Ray, Serial

GOAL = 1.6  # speed-up
MIN_CPU_SHARE = 0.9  # processor time per wall time of a trial on one thread


@dataclass(frozen=True, kw_only=True)
class Macs:
    unit: str = "MACs"

    def of(self, plan: Plan) -> float:
        return plan.macs()


def burn(trial: Trial, device: str) -> TrialResult:
    """Use one thread for about a second and a half."""
    torch.set_num_threads(1)
    torch.manual_seed(trial.seed)
    started, used = time.perf_counter(), time.process_time()
    layer = torch.nn.Conv2d(32, 32, 3, padding=1).to(device)
    image = torch.randn(4, 32, 64, 64, device=device)
    for _ in range(int(trial.evaluator["steps"])):
        layer(image).square().mean().backward()
    share = (time.process_time() - used) / (time.perf_counter() - started)
    return trial.done(float(layer.weight.grad.abs().mean()), share=share)


def timed(executor: Executor, trials: int, steps: int) -> tuple[float, float, float]:
    """Return the seconds until all workers have finished a trial, the seconds of the rest, and the CPU share."""
    problem = Problem(
        space=ScalablePath(),
        cost=Macs(),
        objective=Within(limit=float("inf")),
        task=Task(classes=("a", "b")),
        image=Shape(3, 64, 128),
        evaluator=Evaluator(work=burn, settings={"steps": steps}),
        executor=executor,
    )
    job = RandomSearch(trials=trials).job(problem)
    started = time.perf_counter()
    moments = [time.perf_counter() - started for _ in job.steps()][1:]
    warm = 2  # both workers have finished a trial
    records = job.result()["trials"][warm:]
    share = sum(item["result"]["metrics"]["share"] for item in records) / len(records)
    return moments[warm - 1], moments[-1] - moments[warm - 1], share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ray", action="store_true", help="also measure Ray")
    parser.add_argument("--trials", type=int, default=14)
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    print(f"{psutil.cpu_count()} cores, load {psutil.getloadavg()[0]:.1f}")
    executors: dict[str, Executor] = {"serial": Serial(), "processes": Processes(workers=2)}
    if options.ray:
        executors["ray"] = Ray(workers=2)
    base = 0.0
    for name, executor in executors.items():
        start, seconds, share = timed(executor, options.trials, options.steps)
        base = base or seconds
        verdict = "" if name == "serial" else f"  speed-up {base / seconds:.2f} (goal {GOAL})"
        print(f"{name:10} first trials {start:5.1f} s, {options.trials - 2} trials {seconds:5.1f} s{verdict}")
        if share < MIN_CPU_SHARE:
            print(
                f"{'':10} not valid: trials got {share:.0%} of a core each; something else is using this machine"
            )


if __name__ == "__main__":
    main()
