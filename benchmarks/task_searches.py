"""Do trial searches climb the headline figure of other tasks? Evolution and controller against random, at equal trials.

    python benchmarks/task_searches.py --out searches.json                      # 1 core: about 80 minutes
    python benchmarks/task_searches.py --jobs 10 --out searches.json            # 10 cores: about 9 minutes
    python benchmarks/task_searches.py --show searches.json --figures FOLDER    # tables and curves of what was saved

Every strategy judges the same number of networks of at most `--budget` multiply-accumulates, each by the same short
training on one half of the synthetic training split, scored on the other half by the task's headline figure. Told are
the best judged quality, how it rose from trial to trial, and what that network reaches on `val`, which no search sees:
the mean of `--repeats` such trainings on the whole split with seeds that no trial had. With the same seed evolution
starts from the networks that random search draws first.

The space is LPS-Net's with ratios up to 4, as its own expansion has them: a stride of 16 leaves 4x4 values of a picture
of 64x64, so that where to spend the budget (resolution, width, depth) decides what a network can learn. Evolution's
settings were chosen on a planted problem, the training on a few networks and on searches with seeds from 100 on: decay
inside Adam's gradient (`adam`, not `adamw`) taught joints far faster. Seeds below 100 had no part in it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from itertools import accumulate, product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from segtailor.api.searching import search, search_recipe
from segtailor.api.training import Surroundings
from segtailor.core.codec import read_json
from segtailor.core.space import SPACES
from segtailor.core.strategy import Trial
from segtailor.data.cache import open_pixels
from segtailor.data.locate import locate
from segtailor.recipes.choices import SearchChoices
from segtailor.recipes.evaluators import halved_pixels
from segtailor.recipes.parts import Part, part
from segtailor.recipes.searching import SearchRecipe
from segtailor.report.charts import Value, chart
from segtailor.search.evaluators.train import HalvedPixels

DATA = {
    "segmentation": "synthetic:size=48x96,train=400,val=200",
    "depth": "synthetic:task=depth,size=48x96,train=400,val=200",
    "pose": "synthetic:task=pose,size=64x64,crop=64x64,train=400,val=200",
}
SPACE = {
    "depths": (1, 2, 3),
    "width_steps": (1, 2, 3, 4),
    "ratios": ("0", "1/2", "1", "3/2", "2", "3", "4"),
}
SMALLER: dict[str, dict[str, Any]] = {  # what learns from few trials, chosen on planted problems
    "random": {},
    "evolution": {"population": 12, "children": 4, "focus": 1.0},
    "controller": {"batch": 4, "lr": 5e-3, "minibatch": 64},
}
BASE = "random"  # what the others are compared with
POINTS = 8  # of a printed curve


class Piece(NamedTuple):
    """One search."""

    task: str
    strategy: str
    seed: int


def recipe_for(piece: Piece, args: argparse.Namespace) -> SearchRecipe:
    around = Surroundings(cache=args.cache, device="cpu")
    choices = SearchChoices(strategy=piece.strategy, trials=args.trials, budget=args.budget, seed=piece.seed)
    found = search_recipe("lpsnet", DATA[piece.task], choices, surroundings=around)
    fit = replace(
        found.training.fit, steps=args.steps, batch=8, optimiser="adam", lr=args.lr, weight_decay=0.01
    )
    augment = replace(found.training.augment, scale=(0.9, 1.2))
    settings = {**found.strategy.settings, **SMALLER[piece.strategy]}
    return replace(
        found,
        space=part(SPACES, "scalable_path", **SPACE),
        training=replace(found.training, fit=fit, augment=augment, reparameterise=False),
        strategy=Part(kind=piece.strategy, settings=settings),
    )


def unseen(recipe: SearchRecipe, result: dict[str, Any], args: argparse.Namespace) -> list[float]:
    """Train the winner again, with seeds that no trial had, on the whole training split; score it on `val`."""
    dataset = locate(recipe.data)
    train, val = (open_pixels(dataset, split, args.cache) for split in ("train", "val"))
    document = read_json(Path(str(result["architecture"])), what="architecture")
    data = HalvedPixels(dataset.task, train, val)
    scores = []
    for repeat in range(args.repeats):
        trial = Trial(id=0, architecture=document, seed=990_000 + 1000 * repeat + recipe.seed)
        quality = recipe.training.judge(trial, data=data, device=torch.device("cpu")).quality
        scores.append(float("nan") if quality is None else quality)
    return scores


def searched(piece: Piece, args: argparse.Namespace) -> dict[str, Any]:
    """Search; return what was found, all that was judged in order, and how the winner does elsewhere."""
    torch.set_num_threads(1)
    start, recipe = time.perf_counter(), recipe_for(piece, args)
    with tempfile.TemporaryDirectory() as folder:
        around = Surroundings(cache=args.cache, device="cpu")
        result: dict[str, Any] = search(recipe, Path(folder) / "run", surroundings=around)
        scores = unseen(recipe, result, args)
        winner = read_json(Path(str(result["architecture"])), what="architecture")
    trials = sorted(result["trials"], key=lambda trial: trial["id"])
    return {
        **piece._asdict(),
        "trials": len(trials),
        "steps": args.steps,
        "budget": args.budget,
        "judged": result["quality"],
        "unseen": statistics.mean(scores),
        "repeats": scores,
        "cost": result["cost"],
        "architecture": winner["architecture"],
        "qualities": [trial["result"]["quality"] or 0.0 for trial in trials],
        "costs": [trial["result"]["cost"] for trial in trials],
        "seconds": round(time.perf_counter() - start, 1),
    }


def all_searched(pieces: Sequence[Piece], args: argparse.Namespace) -> Iterable[dict[str, Any]]:
    """Search piece by piece, or some at a time in processes of their own; data is rendered once, before."""
    for task in {piece.task for piece in pieces}:
        halved_pixels(DATA[task], str(args.cache))
        for split in ("train", "val"):
            open_pixels(locate(DATA[task]), split, args.cache)
    if args.jobs == 1:
        yield from (searched(piece, args) for piece in pieces)
        return
    with ProcessPoolExecutor(args.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = [pool.submit(searched, piece, args) for piece in pieces]
        yield from (each.result() for each in as_completed(running))


def best_so_far(rows: Sequence[dict[str, Any]]) -> list[float]:
    """Return the mean over rows of the best quality after each trial."""
    curves = [list(accumulate(row["qualities"], max)) for row in rows]
    return [statistics.mean(values) for values in zip(*curves, strict=True)]


def shown(rows: Sequence[dict[str, Any]], *, figures: Path | None) -> str:
    """Write tables of all tasks, and their curves as pictures where a folder is given."""
    parts = []
    order = sorted(rows, key=lambda row: (list(SMALLER).index(row["strategy"]), row["seed"]))
    for task in sorted({row["task"] for row in rows}):
        mine: dict[str, list[dict[str, Any]]] = {}
        for row in order:
            if row["task"] == task:
                mine.setdefault(row["strategy"], []).append(row)
        parts += [_table(task, mine), _curves(mine)]
        if figures is not None:
            figures.mkdir(parents=True, exist_ok=True)
            (figures / f"search-{task}.svg").write_text(_picture(task, mine))
    return "\n\n".join(parts)


def _table(task: str, mine: dict[str, list[dict[str, Any]]]) -> str:
    base = {row["seed"]: row for row in mine.get(BASE, [])}
    lines = [
        "| task | strategy | judged % | unseen % | ahead of random: judged, unseen | M MACs |",
        "|---" * 6 + "|",
    ]
    for strategy, rows in mine.items():
        pairs = [(row, base[row["seed"]]) for row in rows if row["seed"] in base and strategy != BASE]
        ahead = [sum(one[name] > other[name] for one, other in pairs) for name in ("judged", "unseen")]
        told = f"{ahead[0]}, {ahead[1]} of {len(pairs)}" if pairs else ""
        cost = statistics.mean(row["cost"] for row in rows) / 1e6
        columns = [task, strategy, _each(rows, "judged"), _each(rows, "unseen"), told, f"{cost:.1f}"]
        lines.append("| " + " | ".join(columns) + " |")
    return "\n".join(lines)


def _each(rows: Sequence[dict[str, Any]], name: str) -> str:
    values = [100 * row[name] for row in rows]
    return f"{statistics.mean(values):.1f} ({' '.join(f'{value:.1f}' for value in values)})"


def _marks(count: int) -> list[int]:
    """Return after how many trials a curve is told."""
    return sorted({max(1, round(count * step / POINTS)) for step in range(1, POINTS + 1)})


def _curves(mine: dict[str, list[dict[str, Any]]]) -> str:
    marks = _marks(min(len(row["qualities"]) for rows in mine.values() for row in rows))
    lines = ["| best so far, % | " + " | ".join(map(str, marks)) + " |", "|---" * (len(marks) + 1) + "|"]
    for strategy, rows in mine.items():
        curve = best_so_far(rows)
        lines.append(f"| {strategy} | " + " | ".join(f"{100 * curve[mark - 1]:.1f}" for mark in marks) + " |")
    return "\n".join(lines)


def _picture(task: str, mine: dict[str, list[dict[str, Any]]]) -> str:
    values = []
    for strategy, rows in mine.items():
        curve = best_so_far(rows)
        values += [Value(strategy, str(mark), 100 * curve[mark - 1]) for mark in _marks(len(curve))]
    seeds = len(next(iter(mine.values())))
    return chart(
        values,
        title=f"Searching for {task}: best network so far",
        subtitle=f"by trials, mean of {seeds} seeds; headline figure on the half of the training split that judges",
        unit="%",
        lines=True,
    )


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=["depth", "pose"], choices=list(DATA))
    parser.add_argument("--strategies", nargs="+", default=[BASE, "evolution"], choices=list(SMALLER))
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--steps", type=int, default=150, help="of the training of each trial")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=3, help="trainings of a winner on the whole split")
    parser.add_argument("--budget", default="16MMACs")
    parser.add_argument("--jobs", type=int, default=1, help="searches at a time, each with one thread")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "segtailor")
    parser.add_argument("--out", type=Path, help="file for all results, as JSON")
    parser.add_argument("--show", type=Path, help="only tell what such a file holds")
    parser.add_argument("--figures", type=Path, help="folder for curves")
    return parser.parse_args()


def main() -> None:
    args = parsed()
    if args.show:
        print(shown(json.loads(args.show.read_text()), figures=args.figures))
        return
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    rows = []
    for row in all_searched([Piece(*piece) for piece in product(args.tasks, args.strategies, seeds)], args):
        rows.append(row)
        print(
            json.dumps(
                {name: row[name] for name in ("task", "strategy", "seed", "judged", "unseen", "seconds")}
            ),
            flush=True,
        )
        if args.out:
            args.out.write_text(json.dumps(rows, indent=1))
    print(shown(rows, figures=args.figures))


if __name__ == "__main__":
    main()
