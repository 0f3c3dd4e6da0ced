"""Three studies of AutoRTNet in miniature: what random parts do to the published network AutoRTNet-A.

    python benchmarks/autortnet_studies.py --out runs/autortnet-studies
    python benchmarks/autortnet_studies.py --device cuda --jobs 4 --batch 16 --training 500 --out runs/autortnet-studies

`networks` compares it with random networks of its space (Table 3), `positions` with other places to halve the map at
(Table 5), `aggregation` with none and with random aggregation cells (Table 6). All are trained alike from scratch on
synthetic street scenes; the table has the mean mIoU over seeds and, in brackets, each. What has ended is not repeated.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from random import Random
from typing import Any

import torch

from comparing import Bench, Notes, asked, common, document, in_processes, mean, setting_of
from segtailor.core.plan import Shape
from segtailor.core.space import plan_of
from segtailor.core.variation import sample
from segtailor.spaces import published
from segtailor.spaces.hyper_cell import HyperCell, HyperCellArchitecture
from segtailor.spaces.hyper_cell.architecture import AGGREGATION_OPS
from segtailor.systems.autortnet import PAPER_DEPTHS

IMAGE = Shape(3, 64, 128)
POSITIONS = ((1, 5, 10), (3, 5, 8), (1, 2, 4))  # the paper's; its search found 1, 3, 7
RANDOM = 3  # networks and aggregation cells for each seed; the paper has ten of each in all
WHOLE = "AutoRTNet-A"
PAPER = {
    WHOLE: 72.9,
    "random network": 66.7,
    "reductions at 1, 5, 10": 71.6,
    "reductions at 3, 5, 8": 72.5,
    "reductions at 1, 2, 4": 68.4,
    "no aggregation cell": 69.9,
    "random aggregation cell": 71.4,
}  # fmt: skip - mIoU % on Cityscapes val


def networks(whole: HyperCellArchitecture, rng: Random) -> Iterator[tuple[str, HyperCellArchitecture]]:
    """Give random networks of the search space (Table 3)."""
    del whole
    space = HyperCell(depths=PAPER_DEPTHS)
    for _ in range(RANDOM):
        yield "random network", sample(space, rng)  # type: ignore[misc]


def positions(whole: HyperCellArchitecture, rng: Random) -> Iterator[tuple[str, HyperCellArchitecture]]:
    """Give the same cells with reductions elsewhere (Table 5)."""
    del rng  # the paper says which
    for places in POSITIONS:
        yield f"reductions at {', '.join(map(str, places))}", whole.with_reductions(*places)


def aggregation(whole: HyperCellArchitecture, rng: Random) -> Iterator[tuple[str, HyperCellArchitecture]]:
    """Give the same network without an aggregation cell and with random ones (Table 6)."""
    yield "no aggregation cell", replace(whole, aggregation=None)
    cell = whole.aggregation
    if cell is None:
        raise SystemExit("the published network has an aggregation cell")
    for _ in range(RANDOM):
        drawn = tuple(rng.choice(tuple(AGGREGATION_OPS)) for _ in cell.operators)
        yield "random aggregation cell", replace(whole, aggregation=replace(cell, operators=drawn))


STUDIES: dict[str, Callable[..., Iterator[tuple[str, HyperCellArchitecture]]]] = {
    "networks": networks,
    "positions": positions,
    "aggregation": aggregation,
}


def do(seed: int, options: argparse.Namespace) -> None:
    """Train the network and its variants with one seed."""
    torch.set_num_threads(options.threads)
    setting = setting_of(options)
    bench, notes = Bench(setting, options.cache), Notes(options.out / f"{seed}.json", asdict(setting))
    whole: Any = published("autortnet-a")

    def row(arch: HyperCellArchitecture) -> dict[str, Any]:
        macs = plan_of(arch, IMAGE, bench.task.outputs).macs()
        score = bench.trained(arch, bench.unseen, seed=seed)
        return {"miou": score, "macs": macs, "architecture": document(arch)}

    notes.once(WHOLE, lambda: row(whole))
    for study in options.parts.split(","):
        for number, (name, arch) in enumerate(STUDIES[study](whole, Random(seed))):
            notes.once(f"{study}/{number}/{name}", lambda arch=arch: row(arch))
    notes.end()


def table(found: list[dict[str, Any]]) -> str:
    """Write a line for each variant; random ones of a seed are joined."""
    lines = ["| network | M MACs | mIoU % | in the paper |", "|---|---|---|---|"]
    names = dict.fromkeys(key for row in found for key in row if key == WHOLE or "/" in key)
    labels = dict.fromkeys(name.rpartition("/")[2] for name in names)
    for label in labels:
        rows = [value for row in found for key, value in row.items() if key.rpartition("/")[2] == label]
        macs = sum(row["macs"] for row in rows) / len(rows) / 1e6
        lines.append(f"| {label} | {macs:.1f} | {mean(rows, 'miou', 100)} | {PAPER[label]} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    common(parser, STUDIES)
    options = asked(parser, STUDIES)
    if options.only:
        do(int(options.only), options)
        return
    seeds = [str(seed) for seed in range(options.first_seed, options.first_seed + options.seeds)]
    print(table(list(in_processes(__file__, seeds, options=options).values())))


if __name__ == "__main__":
    main()
