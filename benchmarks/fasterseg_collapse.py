"""FasterSeg's collapse (Figure 4) at matched latency: decoupled latency terms against one common term, and none.

    python -m benchmarks.fasterseg_collapse --data 'camvid:PATH?fold=0001TP' --image 352x480 --device cuda --jobs 3 \\
        --steps 600 --ahead 600 --batch 16 --training 2000 --repeats 2 --out runs/collapse               # a GPU
    python -m benchmarks.fasterseg_collapse --steps 2 --ahead 2 --batch 2 --training 2 --seeds 1 --searches 2 \\
        --data synthetic:size=64x128,train=8,val=4 --out runs/tiny                                       # CPU
    python -m benchmarks.fasterseg_collapse ... --dry-run           # searches, trainings and steps

With the same weight the two terms press differently, so that a smaller network may only mean a stronger term. Here, for
each seed and term, the weight is bisected (by its logarithm, between the two `--weights`, with at most `--searches`
searches) until the network found has the wanted latency within `--tolerance`: that of the network at 1024x2048 on an
H200, from the shipped table; wanted is `--latency`, by default three quarters of the mean of random networks. Then the
networks are compared at equal latency: the cells that are left and their widths, what the distribution leaves (as in
Figure 4), and the mIoU on `val` after the same training from scratch, `--repeats` times; with `?fold=DRIVE` that is the
drive left out. A term that does not reach the latency is not trained: the table says so, and what came closest. The
search without a term has the latency that it has; it shows what is given up.

Space and search are those of `cosearch_vs_random.py`, without a teacher. What is recorded in `--out` is not repeated.
"""

from __future__ import annotations

import argparse
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.budgets import precision
from benchmarks.comparing import (
    Bench,
    Record,
    add_flags,
    add_repeat_flags,
    parse_flags,
    records_of,
    scores_of,
    seeds_of,
    setting_of,
    spread,
    training_seeds,
)
from benchmarks.cosearch_vs_random import SPACE, add_supernet_flags, latency_problem, strategy_of
from benchmarks.fasterseg_studies import latency_terms, left_of
from segtailor.core.codec import fingerprint
from segtailor.core.cost import Power
from segtailor.core.space import parse_architecture
from segtailor.core.strategy import Problem
from segtailor.spaces.multi_resolution import MultiResolutionArchitecture
from segtailor.strategies.gradient_settings import Gradient
from segtailor.systems import fasterseg

DECOUPLED, COMMON, NONE = "decoupled terms", "one common term", "no term"
KINDS = {DECOUPLED: "decoupled", COMMON: "plain", NONE: "plain"}  # as `latency_terms` calls them


def figures(arch: MultiResolutionArchitecture) -> dict[str, float]:
    """Return how many cells a network has, those of both branches counted once, and their mean ratio of channels."""
    first, *others = arch.branches
    cells = [*first, *(cell for branch in others for cell in branch[arch.shared :])]
    return {"cells": len(cells), "ratio": fmean(cell.ratio for cell in cells)}


def weighed(kind: str, weight: float) -> Gradient:
    """Return the search with a latency term of a weight that nothing changes."""
    strategy = latency_terms()[KINDS[kind]]
    return replace(strategy, cost=replace(strategy.cost, weight=weight, window=None))


def searched(
    bench: Bench,
    problem: Problem,
    kind: str,
    weight: float,
    options: argparse.Namespace,
    *,
    pretrained: Path,
) -> dict[str, Any]:
    """Search once; return the network, its latency, and what is left of the largest one."""
    recipe = replace(fasterseg.SMALL, space=SPACE, strategy=weighed(kind, weight))
    result = bench.search(strategy_of(recipe, bench, options), problem, pretrained=pretrained)
    arch = parse_architecture(result["architecture"])
    if not isinstance(arch, MultiResolutionArchitecture):
        raise SystemExit("the search found a network of another family")
    last = result["trajectory"][-1]["roles"]["student"]
    return {
        "weight": weight,
        "architecture": result["architecture"],
        "latency": problem.price(arch),
        "quality": result["quality"],
        **figures(arch),
        **left_of(last["probabilities"], SPACE.ratios),
        "warnings": result["warnings"],
    }


def off(row: Mapping[str, Any], latency: float) -> float:
    """Return by what share a network misses a latency."""
    return float(abs(row["latency"] / latency - 1))


def matched(
    find: Callable[[int, float], dict[str, Any]],
    latency: float,
    *,
    weights: Sequence[float],
    searches: int,
    tolerance: float,
) -> list[dict[str, Any]]:
    """Search with weights that halve the range, until a network has the latency; return all that were found.

    A larger weight gives a faster network, by and large: a search that answers otherwise misleads the next ones, so
    their number is bounded.
    """
    low, high = weights
    tried: list[dict[str, Any]] = []
    while len(tried) < searches and not any(off(row, latency) <= tolerance for row in tried):
        weight = math.sqrt(low * high)
        tried.append(find(len(tried), weight))
        low, high = (weight, high) if tried[-1]["latency"] > latency else (low, weight)
    return tried


def compare(bench: Bench, record: Record, seed: int, options: argparse.Namespace) -> None:
    """Match both terms, search without one, and train what is comparable; every stage is recorded at once."""
    recipe = replace(fasterseg.SMALL, space=SPACE)
    limited = latency_problem(bench, recipe, seed=seed)
    latency = record.once("latency", lambda: options.latency or limited.limit)
    # A limit would change the networks found until they meet it: here the weight alone decides.
    problem = replace(limited, limit=None, objective=Power(limit=latency))
    # No term takes part in pretraining, so that all searches of a seed begin with the same weights.
    pretrained = options.out / f"{record.path.stem}-pretrained-{fingerprint(record.known['setting'])}"

    def find(kind: str, number: int, weight: float) -> dict[str, Any]:
        work = partial(searched, bench, problem, kind, weight, options, pretrained=pretrained)
        found: dict[str, Any] = record.once(f"{kind}_{number}", work)
        return found

    chosen = {NONE: find(NONE, 0, 0.0)}
    for kind in (DECOUPLED, COMMON):
        tried = matched(
            partial(find, kind),
            latency,
            weights=options.weights,
            searches=options.searches,
            tolerance=options.tolerance,
        )
        chosen[kind] = min(tried, key=lambda row: off(row, latency))
    for kind, row in chosen.items():
        fits = off(row, latency) <= options.tolerance
        record.once(kind, partial(dict, row, matched=fits))
        if not fits and kind != NONE:
            continue
        arch = parse_architecture(row["architecture"])
        for number, training_seed in enumerate(training_seeds(seed, options.repeats)):
            work = partial(bench.trained, arch, bench.unseen, seed=training_seed)
            record.once(f"miou_{kind}_{number}", work)
    record.finish()
    shutil.rmtree(pretrained, ignore_errors=True)


def table(done: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a line for each seed and term, the means over seeds in which both terms match, and what does not."""
    lines = [
        "| seed | latency term | weight | latency, ms | wanted | searches | cells | mean ratio | expected ratio | "
        "skips % | work left % | mIoU % |",
        "|---" * 12 + "|",
    ]
    for piece, row in done.items():
        for kind in KINDS:
            found = row[kind]
            figures = [f"{found[key]:.3g}" for key in ("cells", "ratio", "expected_width")]
            shares = [f"{100 * found[key]:.0f}" for key in ("skip_share", "work_left")]
            trained = scores_of(row, kind)
            quality = f"{fmean(trained):.1f}" if trained else "not comparable"
            head = [piece.partition("-")[2], kind, f"{found['weight']:.3g}", f"{found['latency']:.3g}"]
            searches = sum(key.startswith(f"{kind}_") for key in row)
            wanted = "-" if kind == NONE else f"{row['latency']:.3g}" + (", missed" * (not found["matched"]))
            head += [wanted, str(searches)]
            lines.append(f"| {' | '.join([*head, *figures, *shares, quality])} |")
    return "\n".join([*lines, "", *verdict(done)])


def verdict(done: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what the seeds say in which both terms have the same latency, and which have not."""
    pairs = [row for row in done.values() if row[DECOUPLED]["matched"] and row[COMMON]["matched"]]
    told = [f"Both terms reached the latency in {len(pairs)} of {len(done)} seeds."]
    if pairs:
        both = {kind: [fmean(scores_of(row, kind)) for row in pairs] for kind in (DECOUPLED, COMMON)}
        told += [
            f"{kind}: mIoU {spread(both[kind])}, {fmean(row[kind]['cells'] for row in pairs):.3g} cells, mean ratio "
            f"{fmean(row[kind]['ratio'] for row in pairs):.3g}, {fmean(row[kind]['latency'] for row in pairs):.3g} ms."
            for kind in both
        ]
        ahead = sum(one > other for one, other in zip(both[DECOUPLED], both[COMMON], strict=True))
        told.append(f"Decoupled terms ahead in {ahead} of {len(pairs)}.")
    for piece, row in done.items():
        for kind in (DECOUPLED, COMMON):
            if not row[kind]["matched"]:
                told.append(
                    f"{piece}: {kind} did not reach {row['latency']:.3g} ms; the closest network has "
                    f"{row[kind]['latency']:.3g} ms (weight {row[kind]['weight']:.3g}), so nothing is compared."
                )
    return told


def estimate(options: argparse.Namespace) -> str:
    """Return in words how many searches and trainings there will be at most."""
    searches, trainings = 2 * options.searches + 1, len(KINDS) * options.repeats
    each = options.ahead + searches * options.steps + trainings * options.training
    return (
        f"For each of {options.seeds} seeds {options.ahead} steps of pretraining, 3 to {searches} searches of "
        f"{options.steps} steps and {options.repeats} to {trainings} trainings of {options.training} steps, of "
        f"{options.batch} images: at most {options.seeds * each:,} steps in all."
    )


def parser_of() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_flags(parser)
    add_supernet_flags(parser)
    add_repeat_flags(parser)
    parser.add_argument("--latency", type=float, help="wanted, in ms")
    parser.add_argument(
        "--tolerance", type=float, default=0.05, help="share by which the latency may be missed"
    )
    parser.add_argument("--searches", type=int, default=6, help="at most, for each term and seed")
    parser.add_argument(
        "--weights",
        type=float,
        nargs=2,
        default=(0.003, 30.0),
        metavar=("LOW", "HIGH"),
        help="of a latency term",
    )
    return parser


def run_piece(piece: str, options: argparse.Namespace) -> None:
    """Carry out the comparison of one seed."""
    torch.set_num_threads(options.threads)
    setting = setting_of(options)
    about = {name: getattr(options, name) for name in ("latency", "tolerance", "searches", "width_gradient")}
    about["weights"] = list(options.weights)  # as in the file
    record = Record(options.out / f"{piece}.json", asdict(setting) | about)
    bench = Bench(setting, options.cache, precision=precision(setting.device))
    compare(bench, record, int(piece.partition("-")[2]), options)


def main() -> None:
    """Run what is missing and print the table."""
    options = parse_flags(parser_of())
    if options.only:
        run_piece(options.only, options)
        return
    if options.dry_run:
        print(estimate(options))
        return
    print(table(records_of("benchmarks.fasterseg_collapse", seeds_of(options), options=options)))


if __name__ == "__main__":
    main()
