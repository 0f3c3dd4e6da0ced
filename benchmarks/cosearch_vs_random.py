"""Compare FasterSeg's co-search with random search, and measure whether its teacher helps, on synthetic scenes.

    python -m benchmarks.cosearch_vs_random --device cuda --jobs 3 --steps 300 --ahead 300 --batch 16 --training 1000 \\
        --trial 100 --data synthetic:size=64x128,train=400,val=100 --out runs/cosearch
    python -m benchmarks.cosearch_vs_random --steps 2 --ahead 2 --batch 2 --training 2 --trial 1 --finalists 1 \\
        --seeds 1 --data synthetic:size=64x128,train=8,val=4 --out runs/tiny                                  # CPU

The latency is that of the network at 1024x2048 on an H200, from the shipped table; layers, widths and images are
smaller than in the paper, so that a seed takes minutes. The budget of a co-search is three quarters of the mean latency
of random networks. Random search draws networks with the latency of the found student (within 10 %), divides the same
number of training steps (pretraining and search) among them and keeps the one that is best on the half of the training
split that no network was trained on. Then all are trained from scratch with the same settings: the student, the best
network of random search, the first random draw, the teacher, and the student distilled from the teacher (FasterSeg,
section 3.4; the divergence is averaged over pixels only, which at so few steps weighs more than the paper's average
over pixels and classes). The teacher is trained before its student and may have more steps (`--teacher-training`);
plain and distilled student have the same number. The mIoU is on `val`, which was not used before.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import torch

from benchmarks.comparing import (
    Bench,
    Record,
    add_common_flags,
    at_cost,
    document,
    mean,
    parse_flags,
    records_of,
    seeds_of,
    setting_of,
)
from segtailor.core.cost import Power
from segtailor.core.plan import OpCall, Plan
from segtailor.core.space import parse_architecture
from segtailor.core.strategy import Problem
from segtailor.costs import LatencyTable, shipped_pack
from segtailor.recipes.search import SearchRecipe
from segtailor.spaces.multi_resolution import MultiResolution
from segtailor.spaces.multi_resolution.supernet import MultiResolutionSettings
from segtailor.strategies.gradient_settings import Gradient
from segtailor.systems import fasterseg

PACK = "h200-multi_resolution-fp16"
SPACE = MultiResolution(layers=8, ratios=(4, 8, 12))
BUDGET_SHARE = 0.75  # of the mean latency of random networks; the cheapest network has 0.53
COLUMNS = ("student", "random", "draw", "distilled", "teacher")


@dataclass(frozen=True, kw_only=True)
class PackedLatency:
    """Milliseconds from a table measured with another number of classes, which is substituted in the calls."""

    table: LatencyTable
    classes: int
    unit: ClassVar[str] = "ms"

    def price(self, call: OpCall) -> float:
        """Return the milliseconds of a call."""
        wanted = self.table.pack.classes
        inputs = tuple(
            shape._replace(channels=wanted) if shape.channels == self.classes else shape
            for shape in call.inputs
        )
        channels = wanted if call.channels == self.classes else call.channels
        return self.table.price(replace(call, inputs=inputs, channels=channels))

    def of(self, plan: Plan) -> float:
        """Return the milliseconds of a network."""
        return sum(map(self.price, plan.calls))


def strategy_of(recipe: SearchRecipe, bench: Bench, options: argparse.Namespace) -> Gradient:
    """Return the search with the requested number of steps; on a GPU with the fast supernet and CUDA graphs."""
    setting = bench.setting
    own: Any = recipe.strategy
    path = options.path if options.path != "auto" else "plain" if bench.device.type == "cpu" else "recorded"
    fast = path != "plain"
    first = own.pretraining
    if first is None:
        raise SystemExit("the recipe has no pretraining")
    strategy: Gradient = replace(
        own,
        fit=replace(own.fit, steps=setting.steps, batch=setting.batch, precision=bench.precision),
        augment=replace(own.augment, crop=bench.image),
        pretraining=replace(
            first,
            fit=replace(first.fit, steps=setting.ahead, batch=setting.batch, precision=bench.precision),
            augment=replace(own.augment, crop=bench.image),
        ),
        supernet=MultiResolutionSettings(
            fused=fast, masked=True, matrices=fast, width_gradient=options.width_gradient
        ),
        record=path == "recorded",
        choice=replace(own.choice, images=None),
        judge_every=0,
    )
    return strategy


def latency_problem(bench: Bench, recipe: SearchRecipe, *, seed: int) -> Problem:
    """Return the problem, priced by the shipped table; its limit is a share of the latency of random networks."""
    latency = PackedLatency(table=LatencyTable(pack=shipped_pack(PACK)), classes=bench.task.outputs)
    return bench.problem(recipe, latency, seed=seed, image=fasterseg.PAPER.image, budget=BUDGET_SHARE)


def compare(bench: Bench, record: Record, seed: int, options: argparse.Namespace) -> None:
    """Search, draw and train; every finished stage is recorded at once."""
    recipe = replace(fasterseg.SMALL, space=SPACE)
    found = latency_problem(bench, recipe, seed=seed)
    problem = replace(found, objective=Power(limit=found.limit or 1.0))
    record.once("limit", lambda: problem.limit)

    def search() -> dict[str, Any]:
        result = bench.search(strategy_of(recipe, bench, options), problem)
        student, teacher = result["architecture"], result["roles"]["teacher"]["architecture"]
        costs = [problem.price(parse_architecture(arch)) for arch in (student, teacher)]
        return {
            "student": student, "teacher": teacher, "costs": costs, "quality": result["quality"],
            "warnings": result["warnings"], "trajectory": result["trajectory"],
        }  # fmt: skip

    nets = record.once("search", search)
    random = record.once("random", lambda: drawn(bench, problem, nets["costs"][0], seed=seed))
    student = parse_architecture(nets["student"])
    record.once("miou_student", lambda: bench.trained(student, bench.unseen, seed=seed))

    def distil() -> list[float]:
        teacher, guide = bench.fitted(
            parse_architecture(nets["teacher"]), bench.unseen, seed=seed, steps=options.teacher_training
        )
        return [teacher, bench.fitted(student, bench.unseen, seed=seed, teacher=guide)[0]]

    teacher, distilled = record.once("distillation", distil)
    record.once("miou_teacher", lambda: teacher)
    record.once("miou_distilled", lambda: distilled)
    for name, described in (("random", random["architecture"]), ("draw", random["first"])):
        arch = parse_architecture(described)
        record.once(f"miou_{name}", lambda arch=arch: bench.trained(arch, bench.unseen, seed=seed))
    record.finish()


def take_networks(record: Record, file: Path) -> None:
    """Record the networks of an earlier comparison, whose number of training steps may differ."""
    found, trained = json.loads(file.read_text()), ("training", "teacher_training")
    here, there = (
        {name: value for name, value in known["setting"].items() if name not in trained}
        for known in (record.known, found)
    )
    if here != there:
        raise SystemExit(f"{file} searched with other settings: {there}")
    for name in ("limit", "search", "random"):
        record.once(name, lambda name=name: found[name])


def drawn(bench: Bench, problem: Problem, cost: float, *, seed: int) -> dict[str, Any]:
    """Return the best of random networks of a cost, and the first of them."""
    rng = Random(seed)
    networks = [at_cost(problem, cost, rng) for _ in range(bench.setting.draws)]
    best, scores = bench.best(networks, seed=seed)
    costs = [problem.price(arch) for arch in networks]
    return {"architecture": document(best), "first": document(networks[0]), "tried": scores, "costs": costs}


def table(done: list[dict[str, Any]]) -> str:
    """Return the comparison as Markdown."""
    rows = [
        row
        | {
            "ms": row["search"]["costs"][0],
            "random_ms": sum(row["random"]["costs"]) / len(row["random"]["costs"]),
        }
        for row in done
    ]
    lines = ["| network | latency, ms | val mIoU % |", "|---|---|---|"]
    names = {
        "student": "co-searched student",
        "random": "best of random search at equal latency",
        "draw": "one random network of equal latency",
        "distilled": "the student, distilled from its teacher",
        "teacher": "the teacher",
    }
    for name in COLUMNS if rows else ():
        own = {"random": "random_ms", "draw": "random_ms"}.get(name, "ms")
        latency = "" if name == "teacher" else mean(rows, own, 1)
        lines.append(f"| {names[name]} | {latency} | {mean(rows, f'miou_{name}', 100)} |")
    ahead = sum(row["miou_student"] > row["miou_random"] for row in rows)
    helped = sum(row["miou_distilled"] > row["miou_student"] for row in rows)
    return "\n".join(
        [
            *lines,
            "",
            f"Found ahead of random search in {ahead} of {len(rows)}, distilled ahead of plain in {helped}.",
        ]
    )


def add_supernet_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say how the supernet is trained and computed."""
    parser.add_argument("--ahead", type=int, default=100, help="steps of pretraining")
    parser.add_argument("--width-gradient", default="norms", choices=("score", "norms"))
    parser.add_argument(
        "--path",
        default="auto",
        choices=("auto", "plain", "fast", "recorded"),
        help="implementation of the supernet",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add_common_flags(parser)
    parser.set_defaults(finalists=0)  # the search itself chooses by shared weights
    add_supernet_flags(parser)
    parser.add_argument(
        "--teacher-training", type=int, help="training steps of the teacher, if not --training"
    )
    parser.add_argument("--networks", type=Path, help="folder of an earlier comparison: take its networks")
    options = parse_flags(parser)
    if options.only:
        torch.set_num_threads(options.threads)
        setting = setting_of(options)
        about = asdict(setting) | {"width_gradient": options.width_gradient}
        if options.teacher_training:
            about["teacher_training"] = options.teacher_training
        record = Record(options.out / f"{options.only}.json", about)
        if options.networks:
            take_networks(record, options.networks / f"{options.only}.json")
        compare(Bench(setting, options.cache), record, int(options.only.partition("-")[2]), options)
        return
    print(
        table(list(records_of("benchmarks.cosearch_vs_random", seeds_of(options), options=options).values()))
    )


if __name__ == "__main__":
    main()
