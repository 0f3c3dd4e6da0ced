"""Do trial searches climb the headline figure of other tasks? Evolution and controller against random, at equal trials.

    python benchmarks/task_searches.py                                  # depth, 1 thread: about 10 minutes
    python benchmarks/task_searches.py --tasks depth pose --seeds 3 --trials 32

Every strategy judges the same number of networks of at most `--budget` multiply-accumulates, each by the same short
training on one half of the synthetic training split, scored on the other half by the task's headline figure. Told are
the best judged quality, and what that network reaches on `val`, which no search sees, after the same short training
with another seed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from segtailor.api.searching import search, search_recipe
from segtailor.api.training import Surroundings
from segtailor.core.codec import read_json
from segtailor.core.strategy import Trial
from segtailor.data.cache import open_pixels
from segtailor.data.locate import locate
from segtailor.recipes.choices import SearchChoices
from segtailor.recipes.parts import Part
from segtailor.recipes.searching import SearchRecipe
from segtailor.search.evaluators.train import HalvedPixels

DATA = {
    "segmentation": "synthetic:size=48x96,train=240,val=60",
    "depth": "synthetic:task=depth,size=48x96,train=240,val=60",
    "pose": "synthetic:task=pose,size=64x64,crop=64x64,train=240,val=60",
}
SMALLER: dict[str, dict[str, Any]] = {  # what learns from few trials
    "random": {},
    "evolution": {"population": 8},
    "controller": {"batch": 4, "lr": 5e-3, "minibatch": 64},
}


def recipe_for(task: str, strategy: str, args: argparse.Namespace, seed: int) -> SearchRecipe:
    around = Surroundings(cache=args.cache, device="cpu")
    choices = SearchChoices(strategy=strategy, trials=args.trials, budget=args.budget, seed=seed)
    found = search_recipe("lpsnet", DATA[task], choices, surroundings=around)
    fit = replace(found.training.fit, steps=args.steps, batch=8)
    augment = replace(found.training.augment, scale=(0.9, 1.2))
    settings = {**found.strategy.settings, **SMALLER[strategy]}
    return replace(
        found,
        training=replace(found.training, fit=fit, augment=augment, reparameterise=False),
        strategy=Part(kind=strategy, settings=settings),
    )


def unseen(recipe: SearchRecipe, result: dict[str, Any], args: argparse.Namespace) -> float:
    """Train the winner again, with a seed that no trial had, on the whole training split; score it on `val`."""
    dataset = locate(recipe.data)
    train, val = (open_pixels(dataset, split, args.cache) for split in ("train", "val"))
    document = read_json(Path(str(result["architecture"])), what="architecture")
    trial = Trial(id=0, architecture=document, seed=990_000 + recipe.seed)
    data = HalvedPixels(dataset.task, train, val)
    quality = recipe.training.judge(trial, data=data, device=torch.device("cpu")).quality
    return float("nan") if quality is None else quality


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=["depth"], choices=list(DATA))
    parser.add_argument("--strategies", nargs="+", default=list(SMALLER), choices=list(SMALLER))
    parser.add_argument("--trials", type=int, default=48)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--budget", default="20MMACs")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "segtailor")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for task in args.tasks:
        for strategy in args.strategies:
            for seed in range(args.seeds):
                start, recipe = time.perf_counter(), recipe_for(task, strategy, args, seed)
                with tempfile.TemporaryDirectory() as folder:
                    around = Surroundings(cache=args.cache, device="cpu")
                    result = search(recipe, Path(folder) / "run", surroundings=around)
                    row = {"task": task, "strategy": strategy, "seed": seed, "judged": result["quality"],
                           "unseen": unseen(recipe, result, args), "seconds": time.perf_counter() - start}  # fmt: skip
                rows.append(row)
                print(json.dumps(row), flush=True)
    for task in args.tasks:
        for strategy in args.strategies:
            mine = [row for row in rows if (row["task"], row["strategy"]) == (task, strategy)]
            judged, seen = (
                statistics.mean(float(row[name]) for row in mine) for name in ("judged", "unseen")
            )
            print(f"{task:13} {strategy:11} judged {judged:.3f}  unseen {seen:.3f}  ({len(mine)} seeds)")
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
