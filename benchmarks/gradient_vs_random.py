"""Compare gradient searches with random search: small searches on synthetic scenes, scored on unseen images.

    python -m benchmarks.gradient_vs_random --out runs/versus                           # one core: 15 minutes
    python -m benchmarks.gradient_vs_random --device cuda --jobs 6 --steps 800 --batch 16 --training 800 --trial 100 \\
        --data synthetic:size=64x128,train=400,val=100 --parts squeezenas,autortnet --out runs/versus
    python -m benchmarks.gradient_vs_random --parts objectives --out runs/versus        # SqueezeNAS, Table 1
    python -m benchmarks.gradient_vs_random --parts robustness --out runs/versus        # AutoRTNet, Table 4

For each seed, a gradient search has a budget of half the mean cost of random networks. Its best samples by shared
weights get a short training on one half of the training split, and the other half decides between them. Random search
draws networks of the same cost (within 10 %), tries them in the same way and uses as many steps in total. Then the
network that each chose, and the first random draw, are trained from scratch with the same settings on the whole split;
the mIoU is on `val`. Steps are counted, not seconds: a supernet step takes longer than a network step (both times are
recorded), so `--step-worth 13` gives random search as much compute. `--data 'camvid:PATH?fold=0001TP' --image 360x480`
compares on real images, a drive left out. Latency is a sum over operators, each timed alone on the device: accurate
enough for this comparison, no substitute for `segtailor calibrate`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import asdict, replace
from random import Random
from typing import Any

import torch

from benchmarks.autortnet_robustness import SMALL_STARTS, other_start
from benchmarks.comparing import (
    Bench,
    Record,
    add_common_flags,
    at_cost,
    document,
    finalists,
    mean,
    parse_flags,
    records_of,
    setting_of,
)
from segtailor.core.plan import OpCall, Plan
from segtailor.core.space import parse_architecture
from segtailor.core.statistics import spearman
from segtailor.costs import Macs
from segtailor.recipes.search import SearchRecipe
from segtailor.strategies.gradient_settings import Choice, Gradient
from segtailor.systems import autortnet, squeezenas
from segtailor.verbs.search import towards_budget

PARTS = ("squeezenas", "autortnet", "objectives", "robustness")
SYSTEMS = {"squeezenas": squeezenas.SMALL, "autortnet": autortnet.SMALL}
SAMPLES = 40  # networks judged by shared weights; about half of them are within the budget


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


def with_budget(recipe: SearchRecipe) -> SearchRecipe:
    """Return a search whose cost weight follows the budget."""
    return replace(recipe, strategy=towards_budget(recipe.strategy))


def strategy_of(recipe: SearchRecipe, bench: Bench) -> Gradient:
    """Return the search of a recipe with the requested number of steps, and with samples to choose from.

    A longer search has a lower learning rate of logits, so that logits move as far in total.
    """
    setting = bench.setting
    own: Any = recipe.strategy
    slower = min(1.0, (own.fit.steps or setting.steps) / setting.steps)
    strategy: Gradient = replace(
        own,
        fit=replace(own.fit, steps=setting.steps, batch=setting.batch),
        augment=replace(own.augment, crop=bench.image),
        logits=replace(own.logits, lr=own.logits.lr * slower),
        supernet=replace(own.supernet, fused=bench.device.type != "cpu"),
        choice=Choice(samples=SAMPLES, recalibrate=8),
        marks=10,
        judge_every=0,
    )
    return strategy


def against_random(bench: Bench, record: Record, name: str, seed: int) -> None:
    """Compare a system with random search at equal cost."""
    recipe = with_budget(SYSTEMS[name])
    problem = bench.problem(recipe, Macs(), seed=seed)
    record.once("limit", lambda: problem.limit)
    result = record.once("search", lambda: bench.search(strategy_of(recipe, bench), problem))

    def choose() -> dict[str, Any]:
        tried, shared = finalists(result, limit=problem.limit, count=bench.setting.finalists)
        best, scores = bench.best(tried, seed=seed)
        agree = spearman(shared, scores) if len(scores) > 2 else None
        return {
            "architecture": document(best), "cost": problem.price(best), "tried": scores, "shared": shared,
            "rank_correlation": agree,
        }  # fmt: skip

    found = record.once("gradient", choose)

    def draw() -> dict[str, Any]:
        rng = Random(seed)
        drawn = [at_cost(problem, found["cost"], rng) for _ in range(bench.setting.draws)]
        best, scores = bench.best(drawn, seed=seed)
        return {
            "architecture": document(best), "cost": problem.price(best), "tried": scores,
            "first": document(drawn[0]),
        }  # fmt: skip

    random = record.once("random", draw)
    nets = {"found": found["architecture"], "best": random["architecture"], "draw": random["first"]}
    for key, described in nets.items():
        arch = parse_architecture(described)
        record.once(f"miou_{key}", lambda arch=arch: bench.trained(arch, bench.unseen, seed=seed))


def objectives(bench: Bench, record: Record, seed: int) -> None:
    """Search for MACs and for latency at the same share of the mean cost; record MACs and latency of each result."""
    timed = Timed(bench.setting.device)
    for name, cost in (("MACs", Macs()), ("latency", timed)):
        recipe = with_budget(squeezenas.SMALL)
        problem = bench.problem(recipe, cost, seed=seed)

        def found(recipe: SearchRecipe = recipe, problem: Any = problem) -> dict[str, Any]:
            arch = parse_architecture(bench.search(strategy_of(recipe, bench), problem)["architecture"])
            plan = recipe.space.plan(arch, problem.image, bench.task.outputs)
            score = bench.trained(arch, bench.unseen, seed=seed)
            return {"macs": plan.macs(), "ms": timed.of(plan), "miou": score, "architecture": document(arch)}

        record.once(name, found)


def from_other_start(bench: Bench, record: Record, number: int) -> None:
    """Search from the first depths and the seed of a row of Table 4; record the final depths."""
    start, recipe = SMALL_STARTS[number], other_start(autortnet.SMALL, "small", row=number)
    problem = bench.problem(recipe, Macs(), seed=recipe.seed, budget=0.0)
    result = record.once("search", lambda: bench.search(strategy_of(recipe, bench), problem))
    arch: Any = parse_architecture(result["architecture"])
    last = result["trajectory"][-1]["roles"]["student"]
    facts = {
        "start": list(start.depths),
        "seed": start.seed,
        "depths": [stage.depth for stage in arch.stages],
        "expected": [last[f"expected_depth{stage}"] for stage in (1, 2, 3)],
        "macs": problem.price(arch),
    }
    record.once("row", lambda: {**facts, "miou": bench.trained(arch, bench.unseen, seed=recipe.seed)})


def pieces_of(options: argparse.Namespace) -> list[str]:
    """Return the names of all pieces: a part and a seed, or a row of the robustness table."""
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    return [
        f"{part}-{number}"
        for part in options.parts.split(",")
        for number in (range(options.starts) if part == "robustness" else seeds)
    ]


def run_piece(piece: str, options: argparse.Namespace) -> None:
    """Run one piece."""
    torch.set_num_threads(options.threads)
    setting = setting_of(options)
    bench = Bench(setting, options.cache)
    record = Record(options.out / f"{piece}.json", asdict(setting))
    part, _, number = piece.rpartition("-")
    if part in SYSTEMS:
        against_random(bench, record, part, int(number))
    else:
        {"objectives": objectives, "robustness": from_other_start}[part](bench, record, int(number))
    record.finish()


def tables(done: dict[str, dict[str, Any]]) -> str:
    """Return all tables as Markdown."""
    lines: list[str] = []
    systems = [name for name in SYSTEMS if any(piece.startswith(name) for piece in done)]
    if systems:
        lines += [
            "| system | cost, M MACs | gradient mIoU % | random search | random draw | gradient ahead | ranks agree |",
            "|---|---|---|---|---|---|---|",
        ]
        for name in systems:
            rows = [
                row | {"cost": row["gradient"]["cost"]}
                for piece, row in done.items()
                if piece.startswith(name)
            ]
            ahead = sum(row["miou_found"] > row["miou_best"] for row in rows)
            cells = [
                mean(rows, "cost", 1e-6),
                *(mean(rows, f"miou_{key}", 100) for key in ("found", "best", "draw")),
            ]
            lines.append(f"| {name} | {' | '.join(cells)} | {ahead} of {len(rows)} | {agreement(rows)} |")
        lines.append("")
    pairs = [row for piece, row in done.items() if piece.startswith("objectives")]
    if pairs:
        lines += ["| searched for | M MACs | ms | mIoU % |", "|---|---|---|---|"]
        for name in ("MACs", "latency"):
            rows = [row[name] for row in pairs]
            lines.append(
                f"| {name} | {mean(rows, 'macs', 1e-6)} | {mean(rows, 'ms', 1)} | {mean(rows, 'miou', 100)} |"
            )
        lines.append("")
    starts = [row["row"] for piece, row in done.items() if piece.startswith("robustness")]
    if starts:
        lines += [
            "| first depths | seed | depths found | expected depths | M MACs | mIoU % |",
            "|---|---|---|---|---|---|",
        ]
        for row in starts:
            expected = ", ".join(f"{value:.2f}" for value in row["expected"])
            lines.append(
                f"| {row['start']} | {row['seed']} | {row['depths']} | {expected} | {row['macs'] / 1e6:.2f} | "
                f"{100 * row['miou']:.1f} |"
            )
    return "\n".join(lines)


def agreement(rows: list[dict[str, Any]]) -> str:
    """Return the rank correlation (Spearman) of shared weights and short trainings over finalists, seed by seed."""
    correlations = [row["gradient"]["rank_correlation"] for row in rows]
    return " ".join("-" if value is None else f"{value:.2f}" for value in correlations)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--starts", type=int, default=4, help="rows of the robustness table")
    add_common_flags(parser, PARTS)
    options = parse_flags(parser, PARTS)
    if options.only:
        run_piece(options.only, options)
        return
    print(tables(records_of("benchmarks.gradient_vs_random", pieces_of(options), options=options)))


if __name__ == "__main__":
    main()
