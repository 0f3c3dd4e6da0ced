"""Compare trial strategies on depth and pose: evolution and controller against random search, with equal trials.

    python -m benchmarks.task_searches --out searches.jsonl                         # 1 core: about 45 minutes
    python -m benchmarks.task_searches --jobs 10 --out searches.jsonl               # 10 cores: about 5 minutes
    python -m benchmarks.task_searches --show results/tasks.jsonl --figures docs/figures    # stored results

Every strategy tries the same number of networks of at most `--budget` multiply-accumulates, each by the same short
training on one half of the synthetic training split, scored on the other half by the task's headline figure. The
tables have the best quality of a search ("judged"), its rise from trial to trial, and scores on `val`, which no search
uses, after training on the whole split with seeds that no trial had: "unseen" with as many steps as a trial, "longer"
with `--longer` times as many, each the mean of `--repeats` trainings; "leaders" is the mean of the ten best networks,
each trained once with as many steps as a trial. With the same seed, evolution starts from the networks that random
search draws first.

The space is `dilated_residual` with wide lists of options, most of which are of little use within the budget: few
random draws are good. Trials are short, so that there can be many; a network is therefore judged by how fast it learns,
with much noise, and most do worse than predictors that ignore the image. Training, space, budget and trials were chosen
with seeds from 100 on; seeds below 100 were not used for it.
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

from segtailor.core.codec import read_json
from segtailor.core.strategy import Trial
from segtailor.data.cache import open_pixels
from segtailor.data.locate import locate
from segtailor.recipes.evaluators import halved_pixels
from segtailor.recipes.search import SearchRecipe
from segtailor.report.charts import Value, chart
from segtailor.runs import Context
from segtailor.spaces.dilated_residual import DilatedResidual
from segtailor.strategies.halves import HalvedPixels
from segtailor.verbs.search import SearchChoices, search, search_recipe

DATA = {
    "segmentation": "synthetic:size=32x64,train=300,val=200",
    "depth": "synthetic:task=depth,size=32x64,train=300,val=200",
    "pose": "synthetic:task=pose,size=48x48,crop=48x48,train=300,val=200",
}
STEPS = {"segmentation": 60, "depth": 60, "pose": 80}  # training steps of a trial: about a second on one core
BUDGETS = {"segmentation": "5MMACs", "depth": "5MMACs", "pose": "3MMACs"}
SPACE = DilatedResidual(
    stems=(2, 4, 8, 12, 16, 24, 32),
    quarters=(2, 4, 8, 12, 16, 24, 32, 48, 64),
    quarter_blocks=(1, 2, 3, 4, 5, 6),
    eighths=(2, 4, 8, 12, 16, 24, 32, 48, 64, 96),
    blocks=(1, 2, 3, 4, 5, 6, 7, 8),
    rhythms=("1", "1-2", "1-2-4", "1-2-4-8", "2-4-8", "4-8-16"),
    decoders=(2, 4, 8, 12, 16, 24, 32, 48, 64, 96),
)
FOR_FEW_TRIALS: dict[str, dict[str, Any]] = {  # settings chosen on planted problems
    "random": {},
    "evolution": {"population": 12, "children": 4, "focus": 1.0},
    "controller": {"batch": 4, "lr": 5e-3, "minibatch": 64},
}
BASELINE = "random"  # the strategy that the others are compared with
LEADERS = 10  # networks of a search that are also scored on unseen data
FIGURES = ("judged", "unseen", "longer", "leaders")
CURVE_POINTS = 8  # of a printed curve


class Piece(NamedTuple):
    """One search."""

    task: str
    strategy: str
    seed: int


def recipe_for(piece: Piece, args: argparse.Namespace) -> SearchRecipe:
    context = Context(cache=args.cache, device="cpu")
    choices = SearchChoices(
        strategy=piece.strategy,
        trials=args.trials,
        budget=args.budget or BUDGETS[piece.task],
        seed=piece.seed,
    )
    recipe = search_recipe("dilated", DATA[piece.task], choices, context=context)
    steps = args.steps or STEPS[piece.task]
    strategy: Any = recipe.strategy
    evaluator: Any = recipe.evaluator
    fit = replace(evaluator.fit, steps=steps, optimiser="adam", lr=args.lr, weight_decay=0.01, ema=None)
    augment = replace(evaluator.augment, scale=(0.9, 1.2), crop=recipe.image)
    return replace(
        recipe,
        space=SPACE,
        evaluator=replace(evaluator, fit=fit, augment=augment),
        strategy=replace(strategy, **FOR_FEW_TRIALS[piece.strategy]),
    )


def unseen(
    recipe: SearchRecipe, networks: Sequence[dict[str, Any]], args: argparse.Namespace, *, times: int = 1
) -> list[float]:
    """Train each network on the whole training split, `times` as long, with new seeds; return scores on `val`."""
    dataset = locate(recipe.data)
    train, val = (open_pixels(dataset, split, args.cache) for split in ("train", "val"))
    data = HalvedPixels(dataset.task, train, val)
    evaluator: Any = recipe.evaluator
    training = replace(evaluator, fit=replace(evaluator.fit, steps=times * (evaluator.fit.steps or 0)))
    scores = []
    for index, network in enumerate(networks):
        trial = Trial(id=0, architecture=network, seed=990_000 + 1000 * index + recipe.seed)
        quality = training.judge(trial, data=data, device=torch.device("cpu")).quality
        scores.append(float("nan") if quality is None else round(quality, 4))
    return scores


def searched(piece: Piece, args: argparse.Namespace) -> dict[str, Any]:
    """Search; return the best network, the qualities of all trials in order, and scores on unseen data."""
    torch.set_num_threads(1)
    start, recipe = time.perf_counter(), recipe_for(piece, args)
    with tempfile.TemporaryDirectory() as folder:
        context = Context(cache=args.cache, device="cpu")
        result: dict[str, Any] = search(recipe, Path(folder) / "run", context=context)
        winner = read_json(Path(str(result["architecture"])), what="architecture")
    trials = sorted(result["trials"], key=lambda trial: trial["id"])
    scores = {
        "unseen": unseen(recipe, [winner] * args.repeats, args),
        "longer": unseen(recipe, [winner] * args.repeats, args, times=args.longer),
        "leaders": unseen(recipe, leaders(trials, winner), args),
    }
    return {
        **piece._asdict(),
        "judged": round(result["quality"], 4),
        **{name: round(statistics.mean(values), 4) for name, values in scores.items()},
        "scores": scores,
        "cost": result["cost"],
        "architecture": winner["architecture"],
        "qualities": [round(trial["result"]["quality"] or 0.0, 4) for trial in trials],
        "seconds": round(time.perf_counter() - start),
    }


def leaders(trials: Sequence[dict[str, Any]], winner: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the networks with the best qualities, as architecture documents."""
    best = sorted(trials, key=lambda trial: trial["result"]["quality"] or 0.0, reverse=True)[:LEADERS]
    return [{**winner, "architecture": trial["architecture"]} for trial in best]


def all_searched(pieces: Sequence[Piece], args: argparse.Namespace) -> Iterable[dict[str, Any]]:
    """Run searches one by one, or several at a time in processes; the data is rendered once, before them."""
    for task in {piece.task for piece in pieces}:
        halved_pixels(DATA[task], str(args.cache), judging=0.5)
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
    """Return the tables of all tasks; write their curves as SVG files if a folder is given."""
    parts = []
    order = sorted(rows, key=lambda row: (list(FOR_FEW_TRIALS).index(row["strategy"]), row["seed"]))
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
    base = {row["seed"]: row for row in mine.get(BASELINE, [])}
    lines = [
        f"| task | strategy | {' % | '.join(FIGURES)} % | ahead of random: {', '.join(FIGURES)} |",
        "|---" * (len(FIGURES) + 3) + "|",
    ]
    for strategy, rows in mine.items():
        pairs = [(row, base[row["seed"]]) for row in rows if row["seed"] in base and strategy != BASELINE]
        ahead = [str(sum(one[name] > other[name] for one, other in pairs)) for name in FIGURES]
        told = f"{', '.join(ahead)} of {len(pairs)}" if pairs else ""
        columns = [task, strategy, *(_each(rows, name) for name in FIGURES), told]
        lines.append("| " + " | ".join(columns) + " |")
    return "\n".join(lines)


def _each(rows: Sequence[dict[str, Any]], name: str) -> str:
    values = [100 * row[name] for row in rows]
    return f"{statistics.mean(values):.1f} ({' '.join(f'{value:.1f}' for value in values)})"


def _marks(count: int) -> list[int]:
    """Return the numbers of trials at which a curve is printed."""
    return sorted({max(1, round(count * step / CURVE_POINTS)) for step in range(1, CURVE_POINTS + 1)})


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


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Read a file of JSON records, one per line."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=["depth", "pose"], choices=list(DATA))
    parser.add_argument(
        "--strategies", nargs="+", default=[BASELINE, "evolution"], choices=list(FOR_FEW_TRIALS)
    )
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--steps", type=int, help="training steps of a trial; by default those of the task")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=5, help="trainings of a winner on the whole split")
    parser.add_argument(
        "--longer", type=int, default=4, help="times the steps of a trial, for its last figure"
    )
    parser.add_argument("--budget", help="largest cost of a network; by default that of the task")
    parser.add_argument("--jobs", type=int, default=1, help="searches at a time, each with one thread")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "segtailor")
    parser.add_argument("--out", type=Path, help="file for all results: one JSON record per line")
    parser.add_argument("--show", type=Path, help="only print the tables of such a file")
    parser.add_argument("--figures", type=Path, help="folder for curves")
    return parser.parse_args()


def main() -> None:
    args = parsed()
    if args.show:
        print(shown(read_lines(args.show), figures=args.figures))
        return
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    pieces = [
        Piece(task, strategy, seed) for seed, task, strategy in product(seeds, args.tasks, args.strategies)
    ]
    rows = []
    for row in all_searched(pieces, args):
        rows.append(row)
        print(json.dumps({name: row[name] for name in (*Piece._fields, *FIGURES, "seconds")}), flush=True)
        if args.out:
            args.out.write_text("".join(json.dumps(each) + "\n" for each in rows))
    print(shown(rows, figures=args.figures))


if __name__ == "__main__":
    main()
