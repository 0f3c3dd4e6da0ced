"""Auxiliary cells, appendix B: published decoders against random ones of equal cost, on depth and pose.

    python -m benchmarks.task_cells depth --data nyudv2:PATH --image 480x640 --steps 3000 --device cuda --out runs/depth
    python -m benchmarks.task_cells pose --data mpii:PATH --image 256x256 --steps 3000 --device cuda --out runs/pose
    python -m benchmarks.task_cells depth --data synthetic:task=depth,size=32x64,train=8,val=4 --image 32x64 \\
        --steps 2 --batch 4 --networks arch0 --random 1 --seeds 1 --start none --out runs/tiny                  # CPU

Each published decoder has `--random` rivals: random connections and operations on the same encoder with as many
multiply-accumulates (within 10 %). All are trained with the paper's settings for the task (`auxcells-depth`,
`auxcells-pose`, small scale) for the same number of steps, without auxiliary outputs. Called again, the program skips
finished trainings.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import mean, stdev
from typing import Any

import torch

from benchmarks.comparing import Record, document, in_processes
from segtailor.core.plan import Shape
from segtailor.core.ranges import parse_size
from segtailor.core.variation import sample
from segtailor.data.locate import locate
from segtailor.runs import Context
from segtailor.spaces.decoder_cell import DecoderCell, DecoderCellArchitecture
from segtailor.spaces.networks import plan_of, resolve
from segtailor.verbs.train import published_training, train

PUBLISHED = ("arch0", "arch1", "arch2")
COST_TOLERANCE = 0.1  # how far the cost of a rival may lie from that of the published network
MAX_DRAWS = 5000
FIGURE = {"depth": "delta1", "pose": "pose_quality"}  # the headline figure of a task


def rivals(arch: DecoderCellArchitecture, image: Shape, outputs: int, *, count: int) -> list[Any]:
    """Draw networks with the encoder and form of `arch` at its cost."""
    space = DecoderCell(encoder=arch.encoder, channels=arch.channels, repeats=arch.repeats)
    wanted, rng, found = plan_of(arch, image, outputs).macs(), Random(0), []
    for _ in range(MAX_DRAWS):
        if len(found) == count:
            return found
        drawn = sample(space, rng)
        if abs(plan_of(drawn, image, outputs).macs() / wanted - 1) <= COST_TOLERANCE:
            found.append(drawn)
    raise SystemExit(f"{MAX_DRAWS} draws gave {len(found)} of {count} networks of equal cost")


def entrants(options: argparse.Namespace) -> dict[str, Any]:
    """Return what is trained, by name."""
    task, image = locate(options.data).task, Shape(3, *parse_size(options.image))
    found: dict[str, Any] = {}
    for name in options.networks:
        arch: Any = resolve(f"auxcells-{name}")
        drawn = rivals(arch, image, task.outputs, count=options.random)
        networks = {name: arch, **{f"{name}-random{number}": one for number, one in enumerate(drawn)}}
        found |= {f"{label}-{seed}": one for seed in range(options.seeds) for label, one in networks.items()}
    return found


def run_one(name: str, options: argparse.Namespace) -> None:
    """Train one network and record its figures."""
    torch.set_num_threads(options.threads)
    arch = entrants(options)[name]
    setting = {key: str(getattr(options, key)) for key in ("task", "data", "steps", "batch", "start")}
    record = Record(options.out / f"{name}.json", {**setting, "architecture": document(arch)})
    context = Context(cache=options.cache, device=options.device)

    def row() -> dict[str, Any]:
        recipe = published_training(
            f"auxcells-{options.task}", arch, options.data, start=options.start, context=context
        )
        (stage,) = recipe.stages
        seed = int(name.rpartition("-")[2])
        fit = replace(stage.fit, steps=options.steps, batch=options.batch, seed=seed)
        recipe = replace(recipe, stages=(replace(stage, fit=fit),))
        found: Any = train(recipe, options.out / "runs" / name, check=False, context=context)
        return {key: value for key, value in found.items() if isinstance(value, float)}

    record.once("trained", row)
    record.finish()


def table(rows: dict[str, dict[str, Any]], options: argparse.Namespace) -> str:
    """Return the mean of the headline figure over seeds, and of random networks over all of them."""
    figure = FIGURE[options.task]
    lines = [f"| network | {figure} | random networks of its cost |", "|---|---|---|"]
    for name in options.networks:
        own = [row["trained"][figure] for key, row in rows.items() if key.rpartition("-")[0] == name]
        others = [row["trained"][figure] for key, row in rows.items() if key.startswith(f"{name}-random")]
        lines.append(f"| {name} | {_spread(own)} | {_spread(others)} |")
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    if not values:
        return "-"
    return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f} ({len(values)})" if len(values) > 1 else "")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=list(FIGURE))
    parser.add_argument("--data", required=True)
    parser.add_argument("--image", required=True, help="HEIGHTxWIDTH at which costs are compared")
    parser.add_argument("--networks", nargs="+", default=PUBLISHED, choices=PUBLISHED)
    parser.add_argument("--random", type=int, default=3, help="rivals of each published network")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--start", default="auto", help="weights of the encoder")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "segtailor")
    parser.add_argument("--out", type=Path, required=True, help="folder with one JSON file for each training")
    parser.add_argument("--only", help="run only this training, in this process")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.only:
        run_one(options.only, options)
        return
    print(table(in_processes("benchmarks.task_cells", list(entrants(options)), options=options), options))


if __name__ == "__main__":
    main()
