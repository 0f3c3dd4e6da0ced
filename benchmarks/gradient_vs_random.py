"""Do the gradient searches find more than chance? Small searches on synthetic scenes, scored on images never seen.

    python benchmarks/gradient_vs_random.py                              # 1 thread: 10 to 15 minutes
    python benchmarks/gradient_vs_random.py --device cuda --steps 300 --training 300 --parts squeezenas
    python benchmarks/gradient_vs_random.py --parts objectives           # MACs against latency (SqueezeNAS, Table 1)
    python benchmarks/gradient_vs_random.py --parts robustness           # other starts (AutoRTNet, Table 4)

Searches see two halves of the training split only. For each seed a search by gradients has a budget of half the cost of
an average network. Random search draws networks of the same cost (within 10 %), divides the same number of training
steps among them and keeps the best by the half that trained none. Then what each found, and the first of the draws, are
trained from scratch the same way on the whole training split; the mIoU is on `val`. Latency is a sum over operators,
each timed on the device by itself: good enough to search with here, no substitute for `segtailor calibrate`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import torch

import segtailor.spaces  # noqa: F401 - registers the families
from segtailor.core.objective import Within
from segtailor.core.plan import OpCall, Plan, Shape
from segtailor.core.sampling import neighbours, sample, sample_picks
from segtailor.core.space import Architecture, architecture_document, parse_architecture
from segtailor.core.strategy import Problem, Trial
from segtailor.costs import Macs
from segtailor.data.augment import Augment
from segtailor.data.cache import open_pixels
from segtailor.data.locate import locate
from segtailor.recipes.autortnet import SMALL_ROBUSTNESS, autortnet, robustness
from segtailor.recipes.gradient_row import GradientRow
from segtailor.recipes.squeezenas import squeezenas
from segtailor.search.evaluators.train import HalvedPixels, TrainEvaluator
from segtailor.search.gradient_settings import Choice
from segtailor.search.halves import FIT, JUDGE, HalvedTrain
from segtailor.training.schedule import Schedule
from segtailor.training.settings import FitSettings

IMAGE = (64, 128)
PARTS = ("squeezenas", "autortnet", "objectives", "robustness")
SYSTEMS = {"squeezenas": squeezenas, "autortnet": autortnet}
BUDGET = 0.5  # of the mean cost of random networks
BAND = 0.1  # how much cheaper than what it is compared with a random network may be
WALKS, TRIES = 200, 400


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How much work to do, and where."""

    data: str
    cache: Path
    device: str
    steps: int
    training: int
    draws: int
    seeds: int
    first_seed: int
    starts: int

    @property
    def all_seeds(self) -> range:
        return range(self.first_seed, self.first_seed + self.seeds)


class Timed:
    """The latency of operators in milliseconds, each measured once at batch 1; additive."""

    unit = "ms"

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.known: dict[OpCall, float] = {}

    def price(self, call: OpCall) -> float:
        if call not in self.known:
            self.known[call] = self._measure(call)
        return self.known[call]

    def of(self, plan: Plan) -> float:
        return sum(map(self.price, plan.calls))

    @torch.inference_mode()
    def _measure(self, call: OpCall) -> float:
        module = call.op.module(call).to(self.device).eval()
        inputs = [torch.randn(1, *shape, device=self.device) for shape in call.inputs]
        seconds = []
        for count in range(12):
            self._wait()
            started = time.perf_counter()
            module(*inputs)
            self._wait()
            if count >= 3:
                seconds.append(time.perf_counter() - started)
        return 1000 * statistics.median(seconds)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Bench:
    """Data and the few things that every comparison does."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        dataset = locate(setting.data)
        halved = HalvedTrain(dataset=dataset)
        self.task, self.halves = dataset.task, halved.halves()
        fit, judge = (open_pixels(halved, half, setting.cache) for half in (FIT, JUDGE))
        train, val = (open_pixels(dataset, split, setting.cache) for split in ("train", "val"))
        self.searched = HalvedPixels(self.task, fit, judge)
        self.unseen = HalvedPixels(self.task, train, val)
        self._found: dict[tuple[str, str, int], tuple[Architecture, dict[str, Any]]] = {}

    def problem(self, row: GradientRow, cost: Any, *, seed: int, budget: bool = True) -> Problem:
        open_end = Problem(
            space=row.space,
            cost=cost,
            objective=Within(limit=float("inf")),
            task=self.task,
            image=Shape(3, *IMAGE),
            data=self.halves,
            device=self.setting.device,
            seed=seed,
            cache=self.setting.cache,
        )
        if not budget:
            return open_end
        rng = Random(0)
        limit = BUDGET * statistics.mean(open_end.price(sample(row.space, rng)) for _ in range(30))
        return replace(open_end, limit=limit, objective=Within(limit=limit))

    def gradient(self, row: GradientRow, problem: Problem) -> tuple[Architecture, dict[str, Any]]:
        """Search by gradients, each search once; return what was chosen and the whole result."""
        key = row.name, problem.cost.unit, problem.seed
        if key not in self._found:
            self._found[key] = self._searched(row, problem)
        return self._found[key]

    def _searched(self, row: GradientRow, problem: Problem) -> tuple[Architecture, dict[str, Any]]:
        strategy = replace(
            row.strategy,
            fit=replace(row.strategy.fit, steps=self.setting.steps, batch=4),
            augment=Augment(crop=IMAGE, scale=(0.75, 1.5)),
            choice=Choice(samples=8, recalibrate=4, images=40),
            marks=10,
            judge_every=0,
        )
        job = strategy.job(problem)
        for _ in job.steps():
            pass
        result: dict[str, Any] = dict(job.result())
        return parse_architecture(result["architecture"]), result

    def random(self, problem: Problem, cost: float, *, seed: int) -> list[Architecture]:
        """Return random networks of that cost, the best first, by a share of the training steps for each."""
        rng = Random(seed)
        draws = [at_cost(problem, cost, rng) for _ in range(self.setting.draws)]
        steps = max(1, self.setting.steps // self.setting.draws)
        scores = [self.trained(arch, self.searched, seed=seed, steps=steps) for arch in draws]
        best = max(range(len(draws)), key=scores.__getitem__)
        return [draws[best], draws[0]]

    def trained(
        self, arch: Architecture, data: HalvedPixels, *, seed: int, steps: int | None = None
    ) -> float:
        """Train from scratch and score."""
        fit = FitSettings(
            steps=steps or self.setting.training,
            batch=8,
            optimiser="adamw",
            lr=0.01,
            weight_decay=0.01,
            schedule=Schedule(kind="cosine"),
            clip=5.0,
        )
        evaluator = TrainEvaluator(augment=Augment(crop=IMAGE, scale=(0.75, 1.5)), fit=fit)
        trial = Trial(id=0, architecture=architecture_document(arch), seed=seed)
        result = evaluator.judge(trial, data=data, device=torch.device(self.setting.device))
        return 0.0 if result.quality is None else result.quality


def at_cost(problem: Problem, cost: float, rng: Random) -> Architecture:
    """Return a random network whose cost is at most `cost` and at least 90 % of it: random steps that come closer."""
    space, middle = problem.space, (1 - BAND / 2) * cost
    for _ in range(WALKS):
        picks = sample_picks(space, rng)
        here = problem.price(space.architecture(picks))
        for _ in range(TRIES):
            if (1 - BAND) * cost <= here <= cost:
                return space.architecture(picks)
            other = rng.choice(list(neighbours(space, picks)))
            there = problem.price(space.architecture(other))
            if abs(there - middle) < abs(here - middle):
                picks, here = other, there
    raise SystemExit(f"no random network costs {(1 - BAND) * cost:.4g} to {cost:.4g} {problem.cost.unit}")


def against_random(bench: Bench, name: str) -> dict[str, Any]:
    """Compare a system with random search at equal cost, seed by seed."""
    rows = []
    for seed in bench.setting.all_seeds:
        row = SYSTEMS[name]("small", budget=True)
        problem = bench.problem(row, Macs(), seed=seed)
        found, result = bench.gradient(row, problem)
        cost = problem.price(found)
        best, some = bench.random(problem, cost, seed=seed)
        scores = [bench.trained(arch, bench.unseen, seed=seed) for arch in (found, best, some)]
        rows.append(
            {
                "seed": seed,
                "limit": problem.limit,
                "cost": cost,
                "random_cost": problem.price(best),
                **dict(zip(("gradient", "random", "draw"), scores, strict=True)),
                "warnings": result["warnings"],
            }
        )
        say(f"{name} seed {seed}: {rows[-1]}")
    return {"rows": rows}


def objectives(bench: Bench) -> dict[str, Any]:
    """Search for MACs and for latency at the same share of an average network's cost; report both of each."""
    timed, rows = Timed(bench.setting.device), []
    for seed in bench.setting.all_seeds:
        for name, cost in (("MACs", Macs()), ("latency", timed)):
            row = squeezenas("small", budget=True)
            problem = bench.problem(row, cost, seed=seed)
            found, _ = bench.gradient(row, problem)
            plan = row.space.plan(found, problem.image, bench.task.outputs)
            score = bench.trained(found, bench.unseen, seed=seed)
            rows.append(
                {"seed": seed, "objective": name, "macs": plan.macs(), "ms": timed.of(plan), "miou": score}
            )
            say(f"objectives: {rows[-1]}")
    return {"rows": rows}


def other_starts(bench: Bench) -> dict[str, Any]:
    """Search from the first depths and seeds of Table 4 in miniature; report where the depths end."""
    rows = []
    for start, row in zip(SMALL_ROBUSTNESS, robustness("small", image=IMAGE), strict=True):
        if len(rows) == bench.setting.starts:
            break
        problem = bench.problem(row, Macs(), seed=row.seed, budget=False)
        found, result = bench.gradient(row, problem)
        last = result["trajectory"][-1]["roles"]["student"]
        expected = [last[f"expected_depth{stage}"] for stage in (1, 2, 3)]
        depths = [stage.depth for stage in found.stages]
        score = bench.trained(found, bench.unseen, seed=row.seed)
        rows.append(
            {"start": list(start.depths), "seed": start.seed, "depths": depths, "expected": expected,
             "macs": problem.price(found), "miou": score}
        )  # fmt: skip
        say(f"robustness: {rows[-1]}")
    return {"rows": rows}


def tables(results: dict[str, Any]) -> str:
    """Write everything as markdown."""
    lines: list[str] = []
    systems = [name for name in SYSTEMS if name in results]
    if systems:
        lines += [
            "| system | cost, M MACs | gradient mIoU % | random search | random draw | gradient ahead |",
            "|---|---|---|---|---|---|",
        ]
        for name in systems:
            rows = results[name]["rows"]
            ahead = sum(row["gradient"] > row["random"] for row in rows)
            cells = [
                _mean(rows, "cost", 1e-6),
                *(_mean(rows, key, 100) for key in ("gradient", "random", "draw")),
            ]
            lines.append(f"| {name} | {' | '.join(cells)} | {ahead} of {len(rows)} |")
        lines.append("")
    if "objectives" in results:
        lines += ["| searched for | M MACs | ms | mIoU % |", "|---|---|---|---|"]
        for name in ("MACs", "latency"):
            rows = [row for row in results["objectives"]["rows"] if row["objective"] == name]
            lines.append(
                f"| {name} | {_mean(rows, 'macs', 1e-6)} | {_mean(rows, 'ms', 1)} | {_mean(rows, 'miou', 100)} |"
            )
        lines.append("")
    if "robustness" in results:
        lines += [
            "| first depths | seed | depths found | expected depths | M MACs | mIoU % |",
            "|---|---|---|---|---|---|",
        ]
        for row in results["robustness"]["rows"]:
            expected = ", ".join(f"{value:.2f}" for value in row["expected"])
            lines.append(
                f"| {row['start']} | {row['seed']} | {row['depths']} | {expected} | {row['macs'] / 1e6:.2f} | "
                f"{100 * row['miou']:.1f} |"
            )
    return "\n".join(lines)


def _mean(rows: list[dict[str, Any]], key: str, scale: float) -> str:
    values = [scale * row[key] for row in rows]
    each = " ".join(f"{value:.1f}" if scale == 100 else f"{value:.2f}" for value in values)
    return f"**{statistics.mean(values):.2f}** ({each})"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="joined by commas")
    parser.add_argument("--data", default="synthetic:size=64x128,train=160,val=40")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=150, help="of a search; random search divides as many")
    parser.add_argument(
        "--training", type=int, default=100, help="steps from scratch of every network compared"
    )
    parser.add_argument("--draws", type=int, default=4, help="networks of a random search")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--starts", type=int, default=4, help="rows of the robustness table")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "segtailor")
    parser.add_argument("--out", type=Path, default=Path("gradient_vs_random.json"))
    return parser.parse_args()


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    parts = options.parts.split(",")
    if set(parts) - set(PARTS):
        raise SystemExit(f"unknown part; choose among {', '.join(PARTS)}")
    names = ("data", "cache", "device", "steps", "training", "draws", "seeds", "first_seed", "starts")
    bench = Bench(Setting(**{name: getattr(options, name) for name in names}))
    results: dict[str, Any] = {}
    work = {"objectives": objectives, "robustness": other_starts}
    for part in parts:
        started = time.perf_counter()
        results[part] = against_random(bench, part) if part in SYSTEMS else work[part](bench)
        results[part]["seconds"] = time.perf_counter() - started
        facts = {name: str(getattr(options, name)) for name in names if name != "cache"}
        options.out.write_text(
            json.dumps({"setting": facts, "torch": torch.__version__, "results": results}, indent=2)
        )
    print(tables(results))


if __name__ == "__main__":
    main()
