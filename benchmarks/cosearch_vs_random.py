"""Does FasterSeg's co-search find more than chance, and does its teacher help? Small searches on synthetic scenes.

    python benchmarks/cosearch_vs_random.py --device cuda --jobs 3 --steps 300 --ahead 300 --batch 16 --training 1000 \\
        --trial 100 --data synthetic:size=64x128,train=400,val=100 --out runs/cosearch
    python benchmarks/cosearch_vs_random.py --steps 2 --ahead 2 --batch 2 --training 2 --trial 1 --finalists 1 \\
        --seeds 1 --data synthetic:size=64x128,train=8,val=4 --out runs/tiny                                  # CPU

The latency is that of the network at 1024x2048 on an H200, from the shipped table; layers, widths and images are
smaller than the paper's, so that a seed takes minutes. A co-search has a budget of three quarters of an average
network. Random search draws networks of the latency of what it found (within 10 %), divides as many training steps
among them (pretraining and search) and keeps the best by the half of the training split that trained none. Then all are
trained from scratch alike: the student, random search's best, the first of its draws, the teacher, and the student once
more with the teacher's logits (FasterSeg, section 3.4; the divergence is averaged over pixels only, which at so few
steps weighs more than the paper's average over classes, too). A teacher is trained before its student and may be given
more time (`--teacher-training`); plain and distilled student have the same. The mIoU is on `val`, which nothing saw
before.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import torch
from segtailor.recipes.gradient_row import GradientRow

from comparing import Bench, Notes, asked, at_cost, common, document, in_processes, mean, setting_of
from segtailor.core.cost import Power
from segtailor.core.plan import OpCall, Plan
from segtailor.core.space import parse_architecture
from segtailor.core.strategy import Problem
from segtailor.costs import LatencyTable, shipped_pack
from segtailor.spaces.multi_resolution import MultiResolution
from segtailor.spaces.multi_resolution.supernet import MultiResolutionSettings
from segtailor.strategies.gradient_settings import Gradient
from segtailor.systems.fasterseg import PAPER_IMAGE, fasterseg

PACK = "h200-multi_resolution-fp16"
SPACE = MultiResolution(layers=8, ratios=(4, 8, 12))
BUDGET = 0.75  # of the mean latency of random networks; the cheapest there is has 0.53 of it
COLUMNS = ("student", "random", "draw", "distilled", "teacher")


@dataclass(frozen=True, kw_only=True)
class PackedLatency:
    """Milliseconds from a table that was measured with other classes: layers that write classes count as its own."""

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


def strategy_of(row: GradientRow, bench: Bench, options: argparse.Namespace) -> Gradient:
    """Return the recipe's search at the length asked for; on an accelerator by the fast path, a step recorded."""
    own, setting = row.strategy, bench.setting
    path = options.path if options.path != "auto" else "plain" if bench.device.type == "cpu" else "recorded"
    fast = path != "plain"
    first = own.pretraining
    if first is None:
        raise SystemExit("the recipe has no pretraining")
    return replace(
        own,
        fit=replace(own.fit, steps=setting.steps, batch=setting.batch),
        pretraining=replace(first, fit=replace(first.fit, steps=setting.ahead, batch=setting.batch)),
        supernet=MultiResolutionSettings(
            fused=fast, masked=True, matrices=fast, width_gradient=options.width_gradient
        ),
        record=path == "recorded",
        choice=replace(own.choice, images=None),
        judge_every=0,
    )


def compared(bench: Bench, notes: Notes, seed: int, options: argparse.Namespace) -> None:
    """Search, draw and train; every stage is noted as soon as it is done."""
    row = fasterseg("small", space=SPACE)
    latency = PackedLatency(table=LatencyTable(pack=shipped_pack(PACK)), classes=bench.task.outputs)
    found = bench.problem(row, latency, seed=seed, image=PAPER_IMAGE, budget=BUDGET)
    problem = replace(found, objective=Power(limit=found.limit or 1.0))
    notes.once("limit", lambda: problem.limit)

    def search() -> dict[str, Any]:
        result = bench.search(strategy_of(row, bench, options), problem)
        student, teacher = result["architecture"], result["roles"]["teacher"]["architecture"]
        costs = [problem.price(parse_architecture(arch)) for arch in (student, teacher)]
        return {
            "student": student, "teacher": teacher, "costs": costs, "quality": result["quality"],
            "warnings": result["warnings"], "trajectory": result["trajectory"],
        }  # fmt: skip

    nets = notes.once("search", search)
    random = notes.once("random", lambda: drawn(bench, problem, nets["costs"][0], seed=seed))
    student = parse_architecture(nets["student"])
    notes.once("miou_student", lambda: bench.trained(student, bench.unseen, seed=seed))

    def distil() -> list[float]:
        teacher, guide = bench.fitted(
            parse_architecture(nets["teacher"]), bench.unseen, seed=seed, steps=options.teacher_training
        )
        return [teacher, bench.fitted(student, bench.unseen, seed=seed, teacher=guide)[0]]

    teacher, distilled = notes.once("distillation", distil)
    notes.once("miou_teacher", lambda: teacher)
    notes.once("miou_distilled", lambda: distilled)
    for name, described in (("random", random["architecture"]), ("draw", random["first"])):
        arch = parse_architecture(described)
        notes.once(f"miou_{name}", lambda arch=arch: bench.trained(arch, bench.unseen, seed=seed))
    notes.end()


def take_networks(notes: Notes, file: Path) -> None:
    """Note the networks that an earlier comparison found; it may differ in how long networks are trained."""
    found, trained = json.loads(file.read_text()), ("training", "teacher_training")
    here, there = (
        {name: value for name, value in known["setting"].items() if name not in trained}
        for known in (notes.known, found)
    )
    if here != there:
        raise SystemExit(f"{file} searched with other settings: {there}")
    for name in ("limit", "search", "random"):
        notes.once(name, lambda name=name: found[name])


def drawn(bench: Bench, problem: Problem, cost: float, *, seed: int) -> dict[str, Any]:
    """Return the best of random networks of a cost, and the first of them."""
    rng = Random(seed)
    networks = [at_cost(problem, cost, rng) for _ in range(bench.setting.draws)]
    best, scores = bench.best(networks, seed=seed)
    costs = [problem.price(arch) for arch in networks]
    return {"architecture": document(best), "first": document(networks[0]), "tried": scores, "costs": costs}


def table(done: list[dict[str, Any]]) -> str:
    """Write the comparison as markdown."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    common(parser)
    parser.set_defaults(finalists=0)  # the supernet judges its own few alternatives
    parser.add_argument("--ahead", type=int, default=100, help="steps of pretraining")
    parser.add_argument("--teacher-training", type=int, help="steps of the teacher's, unless those of all")
    parser.add_argument("--networks", type=Path, help="folder of an earlier comparison: take what it found")
    parser.add_argument("--width-gradient", default="norms", choices=("score", "norms"))
    parser.add_argument(
        "--path", default="auto", choices=("auto", "plain", "fast", "recorded"), help="of the supernet"
    )
    options = asked(parser)
    pieces = [f"seed-{seed}" for seed in range(options.first_seed, options.first_seed + options.seeds)]
    if options.only:
        torch.set_num_threads(options.threads)
        setting = setting_of(options)
        about = asdict(setting) | {"width_gradient": options.width_gradient}
        if options.teacher_training:
            about["teacher_training"] = options.teacher_training
        notes = Notes(options.out / f"{options.only}.json", about)
        if options.networks:
            take_networks(notes, options.networks / f"{options.only}.json")
        compared(Bench(setting, options.cache), notes, int(options.only.partition("-")[2]), options)
        return
    print(table(list(in_processes(__file__, pieces, options=options).values())))


if __name__ == "__main__":
    main()
