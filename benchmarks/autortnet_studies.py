"""Three small studies of AutoRTNet: the published network AutoRTNet-A against variants with random parts.

    python -m benchmarks.autortnet_studies --out runs/autortnet-studies
    python -m benchmarks.autortnet_studies --device cuda --jobs 4 --batch 16 --training 500 --out runs/autortnet-studies
    python -m benchmarks.autortnet_studies --show results/autortnet.jsonl                       # stored results

`networks` compares it with random networks of its space (Table 3), `positions` with other positions of the reduction
cells (Table 5), `aggregation` with no and with random aggregation cells (Table 6). All are trained from scratch in the
same way on synthetic street scenes; the table has the mean mIoU over seeds and, in brackets, each seed. Called again,
the program skips finished trainings.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from random import Random
from typing import Any

import torch

from benchmarks.comparing import (
    Bench,
    Record,
    add_common_flags,
    document,
    mean,
    parse_flags,
    records_of,
    setting_of,
)
from segtailor.core.plan import Shape
from segtailor.core.space import plan_of
from segtailor.core.variation import sample
from segtailor.spaces import published
from segtailor.spaces.hyper_cell import HyperCellArchitecture
from segtailor.spaces.hyper_cell.architecture import AGGREGATION_OPS
from segtailor.systems import autortnet

IMAGE = Shape(3, 64, 128)
POSITIONS = ((1, 5, 10), (3, 5, 8), (1, 2, 4))  # the paper's; its search found 1, 3, 7
RANDOM_DRAWS = (
    3  # random networks and random aggregation cells for each seed; the paper has ten of each in all
)
UNCHANGED = "AutoRTNet-A"
PAPER = {
    UNCHANGED: 72.9,
    "random network": 66.7,
    "reductions at 1, 5, 10": 71.6,
    "reductions at 3, 5, 8": 72.5,
    "reductions at 1, 2, 4": 68.4,
    "no aggregation cell": 69.9,
    "random aggregation cell": 71.4,
}  # fmt: skip - mIoU % on Cityscapes val


def networks(whole: HyperCellArchitecture, rng: Random) -> Iterator[tuple[str, HyperCellArchitecture]]:
    """Yield random networks of the search space (Table 3)."""
    del whole
    for _ in range(RANDOM_DRAWS):
        yield "random network", sample(autortnet.PAPER.space, rng)  # type: ignore[misc]


def positions(whole: HyperCellArchitecture, rng: Random) -> Iterator[tuple[str, HyperCellArchitecture]]:
    """Yield the same cells with reductions at other positions (Table 5)."""
    del rng  # the positions are those of the paper
    for cells in POSITIONS:
        yield f"reductions at {', '.join(map(str, cells))}", whole.with_reductions(*cells)


def aggregation(whole: HyperCellArchitecture, rng: Random) -> Iterator[tuple[str, HyperCellArchitecture]]:
    """Yield the same network without an aggregation cell and with random ones (Table 6)."""
    yield "no aggregation cell", replace(whole, aggregation=None)
    cell = whole.aggregation
    if cell is None:
        raise SystemExit("the published network has an aggregation cell")
    for _ in range(RANDOM_DRAWS):
        drawn = tuple(rng.choice(tuple(AGGREGATION_OPS)) for _ in cell.operators)
        yield "random aggregation cell", replace(whole, aggregation=replace(cell, operators=drawn))


STUDIES: dict[str, Callable[..., Iterator[tuple[str, HyperCellArchitecture]]]] = {
    "networks": networks,
    "positions": positions,
    "aggregation": aggregation,
}


def run_seed(seed: int, options: argparse.Namespace) -> None:
    """Train the network and its variants with one seed."""
    torch.set_num_threads(options.threads)
    setting = setting_of(options)
    bench, record = Bench(setting, options.cache), Record(options.out / f"{seed}.json", asdict(setting))
    whole: Any = published("autortnet-a")

    def row(arch: HyperCellArchitecture) -> dict[str, Any]:
        macs = plan_of(arch, IMAGE, bench.task.outputs).macs()
        score = bench.trained(arch, bench.unseen, seed=seed)
        return {"miou": score, "macs": macs, "architecture": document(arch)}

    record.once(UNCHANGED, lambda: row(whole))
    for study in options.parts.split(","):
        for number, (name, arch) in enumerate(STUDIES[study](whole, Random(seed))):
            record.once(f"{study}/{number}/{name}", lambda arch=arch: row(arch))
    record.finish()


def table(records: list[dict[str, Any]]) -> str:
    """Return a table with a line for each variant; random variants of one kind share a line."""
    lines = ["| network | M MACs | mIoU % | in the paper |", "|---|---|---|---|"]
    names = dict.fromkeys(key for row in records for key in row if key == UNCHANGED or "/" in key)
    labels = dict.fromkeys(name.rpartition("/")[2] for name in names)
    for label in labels:
        rows = [value for row in records for key, value in row.items() if key.rpartition("/")[2] == label]
        macs = sum(row["macs"] for row in rows) / len(rows) / 1e6
        lines.append(f"| {label} | {macs:.1f} | {mean(rows, 'miou', 100)} | {PAPER[label]} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add_common_flags(parser, STUDIES)
    options = parse_flags(parser, STUDIES)
    if options.only:
        run_seed(int(options.only), options)
        return
    seeds = [str(seed) for seed in range(options.first_seed, options.first_seed + options.seeds)]
    print(table(list(records_of("benchmarks.autortnet_studies", seeds, options=options).values())))


if __name__ == "__main__":
    main()
