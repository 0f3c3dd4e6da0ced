"""Which changes of a plain training pay: python -m benchmarks.recipes CAMVID --drives 0001TP 0006R0 --seeds 0 1 2.

One change at a time, and several together, against a plain training (cross-entropy, scales of 0.5 to 2, slight changes
of colours): a drive of CamVid is left out
and scored, so many images of the others, evenly spaced, train. `--data` takes another dataset instead, as typed on the
command line, with its own split. One JSON line per training goes to `--out`; a training whose line is there is not
repeated. Several copies with different `--seeds` may run side by side, each with its own `--out`; `--show` prints the
table of all their files.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.budgets import precision
from benchmarks.starts import subset
from segtailor.core.ranges import parse_size
from segtailor.recipes.train import FINE_TUNING, TrainRecipe, train_recipe
from segtailor.runs import Context
from segtailor.spaces.starts import IMAGENET

PLAIN_SCALE = (0.5, 2.0)
PLAIN, ALL = "plain", "all"


def _augmented(**changes: Any) -> Callable[[TrainRecipe], TrainRecipe]:
    return lambda recipe: replace(recipe, augment=replace(recipe.augment, **changes))


def _fitted(**changes: Any) -> Callable[[TrainRecipe], TrainRecipe]:
    return lambda recipe: replace(recipe, fit=replace(recipe.fit, **changes))


def _lost(**changes: Any) -> Callable[[TrainRecipe], TrainRecipe]:
    return lambda recipe: replace(recipe, fit=replace(recipe.fit, loss=replace(recipe.fit.loss, **changes)))


CHANGES: Mapping[str, Callable[[TrainRecipe], TrainRecipe]] = {
    "pasted classes": _augmented(mix=1.0),
    "borrowed light": _augmented(restyle=1.0),
    "stronger colours": _augmented(brightness=0.6, contrast=0.6, saturation=0.6, hue=0.06),
    "narrower scales": _augmented(scale=(0.75, 1.75)),
    "overlap loss": _lost(overlap=1.0),
    "balanced classes": _lost(balance=True),
    "averaged norms": _fitted(ema_norms=True),
    "norms do not decay": _fitted(decay_norms=False, weight_decay=0.03),
    "no auxiliary head": lambda recipe: replace(recipe, auxiliary=False),
}
TOGETHER = ("pasted classes", "borrowed light", "overlap loss")  # what CamVid's long trainings found to pay


def changed(recipe: TrainRecipe, variant: str) -> TrainRecipe:
    """Return a recipe with the named changes, joined by " + "."""
    names = {PLAIN: (), ALL: tuple(CHANGES)[:-1]}.get(variant, tuple(variant.split(" + ")))
    for name in names:
        recipe = CHANGES[name](recipe)
    return recipe


@dataclass(frozen=True, kw_only=True)
class Row:
    """One training: what it was, and its mIoU."""

    variant: str
    network: str
    start: str
    data: str  # the drive that is left out, or the name of a dataset
    images: int
    steps: int
    seed: int
    crop: str
    miou: float | None = None
    seconds: float | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """What makes two trainings the same."""
        return tuple(vars(replace(self, miou=None, seconds=None)).values())


def trained(row: Row, data: str, context: Context) -> Row:
    """Carry out the training of a row."""
    begin = time.perf_counter()
    usual = train_recipe(row.network, data, start=row.start, crop=parse_size(row.crop), context=context)
    plain = replace(usual, augment=replace(usual.augment, scale=PLAIN_SCALE, restyle=0.0))
    fit = replace(FINE_TUNING, steps=row.steps, seed=row.seed, batch=16, ema=0.99, precision=precision())
    job = changed(replace(plain, fit=fit), row.variant).job(context)
    for _ in job.steps():
        pass
    seconds = round(time.perf_counter() - begin, 1)
    return replace(row, miou=float(str(job.fit.result()["miou"])), seconds=seconds)


def table(rows: list[Row]) -> str:
    """Return the mean gain of every change over the plain training with the same network, data and seed."""
    plain = {row.key[1:]: row.miou or 0.0 for row in rows if row.variant == PLAIN}
    columns = sorted({(row.network, row.start, row.data, row.images, row.steps) for row in rows})
    lines = [
        "change | "
        + " | ".join(f"{Path(column[0]).stem}, {column[1]}, {column[2]}, {column[3]}" for column in columns)
        + " | mean"
    ]
    lines.append("---" + "|---" * (len(columns) + 1))
    for variant in dict.fromkeys(row.variant for row in rows):
        cells, gains = [], []
        for column in columns:
            of = (variant, *column)
            members = [row for row in rows if (row.variant, *row.key[1:6]) == of and row.key[1:] in plain]
            if not members:
                cells.append("-")
                continue
            if variant == PLAIN:
                values = [100 * (row.miou or 0.0) for row in members]
                cells.append(f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else ""))
                continue
            gain = mean(100 * ((row.miou or 0.0) - plain[row.key[1:]]) for row in members)
            gains.append(gain)
            cells.append(f"{gain:+.1f}")
        lines.append(f"{variant} | " + " | ".join(cells) + (f" | {mean(gains):+.1f}" if gains else " | "))
    return "\n".join(lines)


def main() -> None:
    """Train what is missing and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", nargs="?", help="CamVid's folder")
    parser.add_argument("--data", help="another dataset")
    parser.add_argument("--networks", nargs="+", default=("results/camvid/networks/elastic-lite0.json",))
    parser.add_argument("--start", default=IMAGENET)
    parser.add_argument("--drives", nargs="+", default=("0001TP",), help="each is left out and scored")
    parser.add_argument("--images", nargs="+", type=int, default=(62,))
    parser.add_argument("--variants", nargs="+", default=(PLAIN, *CHANGES, " + ".join(TOGETHER), ALL))
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    parser.add_argument("--crop", default="352x480", help="HEIGHTxWIDTH of training crops")
    parser.add_argument("--out", type=Path, default=Path("runs/recipes.jsonl"))
    parser.add_argument("--show", nargs="+", type=Path, help="only print the table of these files")
    given = parser.parse_args()
    if given.show:
        print(
            table([Row(**json.loads(line)) for file in given.show for line in file.read_text().splitlines()])
        )
        return
    given.out.parent.mkdir(parents=True, exist_ok=True)
    lines = given.out.read_text().splitlines() if given.out.exists() else []
    done = [Row(**json.loads(line)) for line in lines]
    known = {row.key for row in done}
    names = given.drives if given.data is None else [given.data]
    for seed, images, name in product(given.seeds, given.images, names):
        with tempfile.TemporaryDirectory() as folder:
            data = given.data or subset(given.path, name, images, Path(folder))
            context = Context()
            for network, variant in product(given.networks, given.variants):
                row = Row(
                    variant=variant, network=network, start=given.start, data=name, images=images,
                    steps=given.steps, seed=seed, crop=given.crop,
                )  # fmt: skip
                if row.key in known:
                    continue
                row = trained(row, data, context)
                done.append(row)
                with given.out.open("a") as file:
                    file.write(json.dumps(vars(row)) + "\n")
                print(vars(row), flush=True)
    print(table(done))


if __name__ == "__main__":
    main()
