"""Learning curves with and without a start: python -m benchmarks.starts CAMVID --drive 0016E5 --images 31 62 123.

One drive of CamVid is left out and scored; so many images of the others, evenly spaced, train. Every network gets
the same steps and settings whatever it starts from; only `--start` differs. One JSON line per training goes to `--out`,
and a training whose line is there is not repeated.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean, stdev

from segtailor.core.ranges import parse_size
from segtailor.data.locate import locate
from segtailor.recipes.train import FINE_TUNING, TrainRecipe, train_recipe
from segtailor.report.charts import draw_chart
from segtailor.runs import Context
from segtailor.spaces.starts import NONE

NETWORKS = ("squeezenas-mac-small", "lr-aspp-mobilenetv3-large", "auxcells-arch0", "fast-scnn")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One training: what it was, and its mIoU on the drive that was left out."""

    network: str
    start: str
    drive: str
    images: int
    steps: int
    seed: int
    lr: float
    carried_lr: float
    crop: str
    carried: float | None = None
    miou: float | None = None
    seconds: float | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """What makes two trainings the same."""
        row = replace(self, carried=None, miou=None, seconds=None)
        return tuple(vars(row).values())


def subset(path: str, drive: str, images: int, folder: Path) -> str:
    """Link so many images of the other drives as train, and the drive as val; return the dataset's name."""
    dataset = locate(f"camvid:{path}?fold={drive}")
    train = list(dataset.samples("train"))
    step = len(train) / images
    chosen = [train[int(number * step)] for number in range(images)] if step > 1 else train
    for split, samples in (("train", chosen), ("val", dataset.samples("val"))):
        for sample in samples:
            for kind, file in (("images", sample.image), ("masks", sample.mask)):  # type: ignore[attr-defined]
                link = folder / kind / split / file.name
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(file.resolve())
    return f"camvid:{folder}"


def recipe_of(row: Row, data: str, context: Context) -> TrainRecipe:
    """Return the training of a row."""
    recipe = train_recipe(row.network, data, start=row.start, crop=parse_size(row.crop), context=context)
    fit = replace(FINE_TUNING, steps=row.steps, seed=row.seed, lr=row.lr, carried_lr=row.carried_lr)
    return replace(recipe, fit=fit)


def trained(row: Row, data: str, context: Context) -> Row:
    """Carry out the training of a row."""
    begin = time.perf_counter()
    job = recipe_of(row, data, context).job(context)
    for _ in job.steps():
        pass
    scores = job.fit.result()
    return replace(
        row,
        miou=float(str(scores["miou"])),
        carried=round(job.start.carried, 4),
        seconds=round(time.perf_counter() - begin, 1),
    )


def table(rows: list[Row]) -> str:
    """Return mean and spread over seeds, one line per network, start and number of images."""
    lines = ["network | start | carried | images | steps | seeds | mIoU %", "---|---|---|---|---|---|---"]
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((*row.key[:5], *row.key[6:]), []).append(row)
    for members in groups.values():
        first, values = members[0], [100 * (row.miou or 0.0) for row in members]
        spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
        lines.append(
            f"{Path(first.network).stem} | {first.start} | {first.carried:.0%} | {first.images} | {first.steps} | "
            f"{len(values)} | {mean(values):.1f}{spread}"
        )
    return "\n".join(lines)


def figure(rows: list[Row]) -> str:
    """Return learning curves as SVG: mean mIoU over seeds by number of images, a line per network and start."""
    groups: dict[tuple[str, int], list[float]] = {}
    for row in sorted(rows, key=lambda row: row.images):
        name = f"{Path(row.network).stem}, {'random' if row.start == 'none' else row.start}"
        groups.setdefault((name, row.images), []).append(100 * (row.miou or 0.0))
    return draw_chart(
        {
            "title": "Weights that know pictures",
            "subtitle": f"CamVid, drive {rows[0].drive} left out and scored, {rows[0].steps} steps",
            "unit": "mIoU %",
            "lines": True,
            "values": [[name, f"{images} images", mean(values)] for (name, images), values in groups.items()],
        }
    )


def main() -> None:
    """Train what is missing and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", help="CamVid's folder")
    parser.add_argument("--networks", nargs="+", default=NETWORKS, help="names or architecture files")
    parser.add_argument("--starts", nargs="+", default=("none", "imagenet"))
    parser.add_argument("--drive", default="0016E5", help="the drive that is left out and scored")
    parser.add_argument("--images", nargs="+", type=int, default=(62,))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    parser.add_argument("--lr", type=float, default=FINE_TUNING.lr)
    parser.add_argument("--carried-lr", type=float, default=FINE_TUNING.carried_lr)
    parser.add_argument("--crop", default="192x256", help="HEIGHTxWIDTH of training crops")
    parser.add_argument("--out", type=Path, default=Path("runs/starts.jsonl"))
    parser.add_argument("--figure", type=Path, help="write the curves as SVG")
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    done = (
        [Row(**json.loads(line)) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    )
    known = {row.key for row in done}
    for seed, images in product(given.seeds, given.images):
        with tempfile.TemporaryDirectory() as folder:
            data, context = subset(given.path, given.drive, images, Path(folder)), Context()
            for network, start in product(given.networks, given.starts):
                row = Row(
                    network=network, start=start, drive=given.drive, images=images, steps=given.steps,
                    seed=seed, lr=given.lr, carried_lr=1.0 if start == NONE else given.carried_lr, crop=given.crop,
                )  # fmt: skip
                if row.key in known:
                    continue
                row = trained(row, data, context)
                done.append(row)
                with given.out.open("a") as file:
                    file.write(json.dumps(vars(row)) + "\n")
                print(vars(row), flush=True)
    print(table(done))
    if given.figure is not None:
        given.figure.write_text(figure(done))


if __name__ == "__main__":
    main()
