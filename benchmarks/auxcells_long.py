"""Longer trainings of decoders that a search found: Figures 4 and 5 of the auxiliary-cells paper.

    segtailor search auxcells --scale paper --data voc:PATH --start WEIGHTS --out RUN
    python -m benchmarks.auxcells_long auxiliary --search RUN --data voc:PATH --start WEIGHTS --device cuda --out LONG
    python -m benchmarks.auxcells_long ranking --search RUN --data voc:PATH --start WEIGHTS --device cuda --out LONG
    python -m benchmarks.auxcells_long auxiliary --search RUN --scale small --data synthetic --start none --out LONG

`auxiliary` trains the ten best networks of a search with auxiliary cells, with plain auxiliary classifiers and with
none (Figure 4). `ranking` trains ten networks with low, ten with medium and ten with high rewards, drawn from those
that the search tried, and correlates their ranks (Figure 5). Every training has 20 epochs on the augmented training
list of VOC and 30 on VOC's own; other data is seen for all 50. There is no averaging and no distillation. Rates, crops,
batch and the coefficients of auxiliary outputs are those of the first two stages of the final training, the form of a
network is that of the search: the paper names none of these. `--scale small` trains 2 + 3 epochs of at most three
networks. Called again, the program skips finished trainings.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch

from benchmarks.comparing import Record, document, in_processes
from segtailor.core.errors import UserError
from segtailor.core.space import parse_architecture
from segtailor.core.statistics import spearman
from segtailor.data.locate import locate, with_option
from segtailor.recipes.train import StagedTrainRecipe
from segtailor.runs import Context
from segtailor.runs.layout import read_result
from segtailor.spaces.decoder_cell.architecture import AUXILIARIES, DecoderCellArchitecture
from segtailor.systems.system import Scale, layout_of
from segtailor.verbs.train import published_training, train

BEST = 10  # networks of Figure 4
PER_BIN = 10  # networks of Figure 5 with low, medium and high rewards each
REWARD_BOUNDS = (0.4, 0.6)  # low is below the first, high above the second
LONG_EPOCHS = (20, 30)  # on the augmented list, then on VOC's own
SMALL_EPOCHS, SMALL_NETWORKS = (2, 3), 3
BINS = ("low", "medium", "high")


class Tried(NamedTuple):
    """A network that the search tried, with its reward after the first stage and the last one that it reached."""

    architecture: DecoderCellArchitecture
    first: float
    reward: float
    finished: bool


def tried(run: Path) -> list[Tried]:
    """Return the networks of a finished search, those of the controller where it had contenders."""
    result: Any = read_result(run)
    if result is None:
        raise UserError(f"{run} has no result; finish the search first (segtailor resume {run}).")
    found = []
    for row in result["trials"]:
        judged = row["result"]
        if judged["status"] not in ("done", "stopped") or row["origin"].get("contender") == "random":
            continue
        arch = parse_architecture({**result["architecture"], "architecture": row["architecture"]})
        if not isinstance(arch, DecoderCellArchitecture):
            raise UserError(f"{run} searched no decoders; give a run of `segtailor search auxcells`.")
        first = judged["metrics"].get("stage1", judged["quality"])
        found.append(Tried(arch, first, judged["quality"], judged["status"] == "done"))
    return found


def best_of(found: Sequence[Tried], count: int) -> list[Tried]:
    """Return the networks with the highest rewards; those that the search stopped early are not among them."""
    return sorted((one for one in found if one.finished), key=lambda one: -one.reward)[:count]


def by_reward(
    found: Sequence[Tried], *, count: int, bounds: tuple[float, float], seed: int
) -> dict[str, list[Tried]]:
    """Draw networks with low, medium and high rewards, at most `count` of each."""
    low, high = bounds
    bins: dict[str, list[Tried]] = {name: [] for name in BINS}
    for one in found:
        bins["low" if one.reward < low else "medium" if one.reward <= high else "high"].append(one)
    rng = Random(seed)
    return {name: rng.sample(members, min(count, len(members))) for name, members in bins.items()}


def long_training(
    arch: DecoderCellArchitecture, data: str, *, scale: Scale, start: str, context: Context
) -> StagedTrainRecipe:
    """Return the training of one network: the first two stages of the final training, with epochs of their own."""
    final = published_training("auxcells", arch, [data] * 3, scale=scale, start=start, context=context)
    both = (data, with_option(data, "list", "train") if layout_of(data) == "voc" else data)
    epochs = LONG_EPOCHS if scale == "paper" else SMALL_EPOCHS
    return StagedTrainRecipe(
        stages=tuple(
            replace(
                stage,
                architecture=arch,
                data=place,
                fit=replace(stage.fit, epochs=count),
                auxiliary=arch.auxiliary != "none",
            )
            for stage, place, count in zip(final.stages, both, epochs, strict=False)
        )
    )


def entrants(options: argparse.Namespace) -> dict[str, tuple[Tried, DecoderCellArchitecture]]:
    """Return what is trained, by name."""
    found = tried(options.search)
    if options.study == "auxiliary":
        best = best_of(found, BEST if options.scale == "paper" else SMALL_NETWORKS)
        return {
            f"{number}-{kind}": (one, replace(one.architecture, auxiliary=kind))
            for number, one in enumerate(best)
            for kind in AUXILIARIES
        }
    count = PER_BIN if options.scale == "paper" else 1
    bins = by_reward(found, count=count, bounds=tuple(options.bounds), seed=options.seed)
    return {
        f"{name}-{number}": (one, one.architecture)
        for name, members in bins.items()
        for number, one in enumerate(members)
    }


def run_one(name: str, options: argparse.Namespace) -> None:
    """Train one network and record its figures."""
    torch.set_num_threads(options.threads)
    one, arch = entrants(options)[name]
    setting = {key: str(getattr(options, key)) for key in ("study", "data", "scale", "start", "seed")}
    record = Record(options.out / f"{name}.json", {**setting, "architecture": document(arch)})
    context = Context(cache=options.cache, device=options.device)

    def row() -> dict[str, Any]:
        recipe = long_training(arch, options.data, scale=options.scale, start=options.start, context=context)
        found: Any = train(recipe, options.out / "runs" / name, check=False, context=context)
        return {"miou": found["miou"], "reward": one.reward, "first": one.first, "finished": one.finished}

    record.once("trained", row)
    record.finish()


def auxiliary_table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return Figure 4 as a table: a row for each network, a column for each kind of auxiliary output."""
    numbers = sorted({int(name.partition("-")[0]) for name in rows})
    lines = [f"| network | reward | {' | '.join(f'{kind}, mIoU %' for kind in AUXILIARIES)} |"]
    lines.append("|---" * (2 + len(AUXILIARIES)) + "|")
    won = dict.fromkeys(AUXILIARIES, 0)
    for number in numbers:
        found = {kind: rows.get(f"{number}-{kind}") for kind in AUXILIARIES}
        scores = {kind: row["miou"] for kind, row in found.items() if row is not None}
        reward = next(row["reward"] for row in found.values() if row is not None)
        won[max(scores, key=lambda kind: scores[kind])] += 1
        cells = [f"{100 * scores[kind]:.1f}" if kind in scores else "-" for kind in AUXILIARIES]
        lines.append(f"| {number} | {reward:.3f} | {' | '.join(cells)} |")
    lines.append(f"\nbest: {', '.join(f'{kind} {count}' for kind, count in won.items())} of {len(numbers)}")
    return "\n".join(lines)


def ranking_table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return Figure 5 as two rank correlations, and how many networks each part has."""
    both = [row for row in rows.values() if row["finished"]]
    pairs = {
        "reward after the first stage, after the second": ("first", "reward", both),
        "reward of the search, mIoU of the long training": ("reward", "miou", list(rows.values())),
    }
    counts = {name: sum(key.startswith(f"{name}-") for key in rows) for name in BINS}
    lines = [
        f"networks with rewards: {', '.join(f'{name} {count}' for name, count in counts.items())}",
        "",
        "| ranks of | networks | Spearman |",
        "|---|---|---|",
    ]
    for label, (one, other, members) in pairs.items():
        found = spearman([row[one] for row in members], [row[other] for row in members])
        lines.append(f"| {label} | {len(members)} | {'-' if found is None else f'{found:.2f}'} |")
    return "\n".join(lines)


TABLES = {"auxiliary": auxiliary_table, "ranking": ranking_table}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=list(TABLES))
    parser.add_argument("--search", type=Path, required=True, help="run directory of a finished search")
    parser.add_argument("--data", required=True, help="what is trained on, e.g. voc:PATH")
    parser.add_argument("--scale", choices=("small", "paper"), default="paper")
    parser.add_argument(
        "--start", default="auto", help="weights of the encoder, as `segtailor train --start`"
    )
    parser.add_argument("--bounds", type=float, nargs=2, default=REWARD_BOUNDS, metavar=("LOW", "HIGH"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "segtailor")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder with a file and a run for each network"
    )
    parser.add_argument("--only", help="train only this network, in this process")
    parser.add_argument("--dry-run", action="store_true", help="print what would be trained, and stop")
    options = parser.parse_args(argv)
    try:
        chosen = entrants(options)
        locate(options.data)
        if options.dry_run:
            print("\n".join(f"{name}: reward {one.reward:.3f}" for name, (one, _) in chosen.items()))
            return
        options.out.mkdir(parents=True, exist_ok=True)
        if options.only:
            run_one(options.only, options)
            return
    except UserError as problem:
        raise SystemExit(f"error: {problem}") from None
    if options.study == "ranking" and options.scale == "paper":
        counts = {name: sum(key.startswith(f"{name}-") for key in chosen) for name in BINS}
        if min(counts.values()) < PER_BIN:
            print(f"note: the search has fewer than {PER_BIN} networks in a part: {counts}; see --bounds")
    records = in_processes("benchmarks.auxcells_long", list(chosen), options=options)
    print(TABLES[options.study]({name: record["trained"] for name, record in records.items()}))


if __name__ == "__main__":
    main()
