"""Which networks of `elastic` learn well in a short time, and whether a search can tell: measured trainings.

    OMP_NUM_THREADS=1 python -m benchmarks.lessons collect DATASET --seconds 60 --networks 16 --draw 1
    OMP_NUM_THREADS=1 python -m benchmarks.lessons judge DATASET --seconds 60 --steps 50 150
    python -m benchmarks.lessons show

`collect` trains random networks on a dataset, each from ImageNet weights and for the same processor time, as a
tailoring would, and scores them on `val`: half of the networks keep whole blocks of the encoder. `judge` scores the
networks that were trained on a dataset as a search does, by shared weights after some steps. `show` prints how well
their order agrees with that of the trainings (Spearman), and what each trait of a network is worth. With several
processes give each its own `--part`.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

import numpy as np

from benchmarks.comparing import processor_seconds_of_step
from segtailor.core.cost import Within
from segtailor.core.plan import Shape, count
from segtailor.core.ranges import parse_size
from segtailor.core.space import (
    Architecture,
    architecture_document,
    fingerprint_of,
    parse_architecture,
    plan_of,
)
from segtailor.core.statistics import spearman
from segtailor.core.variation import sample
from segtailor.recipes.train import CARRIED_LR, TrainRecipe, train_recipe
from segtailor.runs import Context
from segtailor.spaces.elastic import Elastic, ElasticArchitecture
from segtailor.spaces.elastic.architecture import DETAIL_STRIDES, EXPANSION, OPTIONAL_STAGE, STAGES
from segtailor.spaces.starts import IMAGENET
from segtailor.strategies.one_shot import OneShot, OneShotSearch
from segtailor.systems.elastic import SMALL
from segtailor.tailoring.choosing import LR, LR_BATCH
from segtailor.tailoring.training import EMA, SHORT_EMA, SHORT_STEPS, WEIGHT_DECAY
from segtailor.training.settings import FitSettings

CLASSES = 11  # that networks are counted with
USUAL_MACS = 5e7  # of a crop: where the logarithm of the size is 0
DAMPING = 4.0  # of the fit: traits that few lessons tell apart are worth little
LESSONS = Path("results/lessons.jsonl")
JUDGED = Path("results/judged.jsonl")
EFFORT = ("size", "size squared", "steps")  # these explain lessons as well, but are no traits
USUAL_DECODER, USUAL_DEEPEST = 64, 16  # where the logarithms of traits are 0
SEARCHED = 256  # networks that a search judges by the same shared weights


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """One training: the network, what it learnt on and for how long (processor seconds), and its mIoU.

    `macs` are those of a crop.
    """

    data: str
    crop: str
    batch: int
    seconds: float
    steps: int
    seed: int
    macs: float
    architecture: Mapping[str, Any]
    miou: float

    @property
    def network(self) -> ElasticArchitecture:
        """The architecture."""
        arch = parse_architecture(dict(self.architecture))
        assert isinstance(arch, ElasticArchitecture)
        return arch

    @property
    def group(self) -> tuple[str, float]:
        """What networks must have in common to be compared."""
        return self.data, self.seconds


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What shared weights said of a network after some steps, and the processor seconds of both."""

    data: str
    seconds: float
    steps: int
    seed: int
    network: str
    quality: float
    shared_seconds: float
    judging_seconds: float


def read(file: Path, row: type[Any]) -> list[Any]:
    """Return the rows of a file, none where there is no file."""
    return [row(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def write(file: Path, row: Any) -> None:
    """Add a row, and print it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lines:
        lines.write(json.dumps(vars(row)) + "\n")
    print({name: value for name, value in vars(row).items() if name != "architecture"}, flush=True)


def drawn(given: argparse.Namespace) -> list[Architecture]:
    """Draw networks: in turns random ones, and ones of whole blocks with a random decoder."""
    space, rng, image = Elastic(), Random(given.draw), Shape(3, *parse_size(given.image))
    guesses = list(space.first_guesses())
    found: dict[str, Architecture] = {}
    while len(found) < given.networks:
        arch: Any = sample(space, rng)
        if len(found) % 2:
            arch = replace(rng.choice(guesses), decoder=arch.decoder, detail=arch.detail)
        if given.least <= count(plan_of(arch, image, CLASSES)).macs <= given.most:
            found.setdefault(fingerprint_of(arch), arch)
    return list(found.values())


def usual_training(
    arch: Architecture, data: str, *, crop: tuple[int, int], batch: int, seed: int
) -> TrainRecipe:
    """Return the training as a tailoring does it on a CPU."""
    recipe = train_recipe(arch, data, start=IMAGENET, crop=crop, context=Context())
    fit = FitSettings(
        steps=SHORT_STEPS, batch=batch, optimiser="adamw", lr=round(LR * (batch / LR_BATCH) ** 0.5, 5),
        carried_lr=CARRIED_LR, weight_decay=WEIGHT_DECAY, loss=recipe.fit.loss, seed=seed,
    )  # fmt: skip
    return replace(recipe, fit=fit)


def collect(given: argparse.Namespace) -> None:
    """Train networks, and write one line for each."""
    crop, file = parse_size(given.crop), given.lessons
    known = {(row.group, fingerprint_of(row.network), row.seed) for row in read(file, Lesson)}
    for arch in drawn(given)[given.part :: given.parts]:
        for seed in given.seeds:
            if ((given.data, given.seconds), fingerprint_of(arch), seed) in known:
                continue
            recipe = usual_training(arch, given.data, crop=crop, batch=given.batch, seed=seed)
            steps = max(10, round(given.seconds / processor_seconds_of_step(recipe)))
            ema = SHORT_EMA if steps < SHORT_STEPS else EMA
            job = replace(recipe, fit=replace(recipe.fit, steps=steps, ema=ema)).job(Context())
            for _ in job.steps():
                pass
            lesson = Lesson(
                data=given.data, crop=given.crop, batch=given.batch, seconds=given.seconds, steps=steps, seed=seed,
                macs=count(plan_of(arch, Shape(3, *crop), CLASSES)).macs,
                architecture=architecture_document(arch), miou=float(str(job.fit.result()["miou"])),
            )  # fmt: skip
            write(file, lesson)


def judge(given: argparse.Namespace) -> None:
    """Score the networks that were trained on a dataset by shared weights, as a search does."""
    group = (given.data, given.seconds)
    archs = {
        fingerprint_of(row.network): row.network for row in read(given.lessons, Lesson) if row.group == group
    }
    known = {(row.data, row.seconds, row.steps, row.network, row.seed) for row in read(given.judged, Verdict)}
    for steps in given.steps:
        if all((*group, steps, name, given.seeds[0]) in known for name in archs):
            continue
        begin = time.process_time()
        search = shared(given, steps)
        for _ in search.training():
            pass
        trained = time.process_time() - begin
        for name, arch in archs.items():
            begin = time.process_time()
            quality = search.quality(arch)
            verdict = Verdict(
                data=given.data, seconds=given.seconds, steps=steps, seed=given.seeds[0], network=name, quality=quality,
                shared_seconds=round(trained, 2), judging_seconds=round(time.process_time() - begin, 2),
            )  # fmt: skip
            write(given.judged, verdict)


def shared(given: argparse.Namespace, steps: int) -> OneShotSearch:
    """Return the search whose shared weights judge."""
    strategy = SMALL.strategy
    assert isinstance(strategy, OneShot)
    ema = 0.9 if steps < 100 else strategy.fit.ema
    lr = round(LR * (given.batch / LR_BATCH) ** 0.5, 5)
    strategy = replace(
        strategy,
        fit=replace(strategy.fit, steps=steps, batch=given.batch, lr=lr, ema=ema),
        augment=replace(SMALL.evaluator.augment, crop=parse_size(given.crop)),
        choice=replace(strategy.choice, images=given.judges),
    )
    recipe = replace(
        SMALL, data=given.data, image=parse_size(given.image), strategy=strategy, limit=given.most,
        objective=Within(limit=given.most), start=IMAGENET, seed=given.seeds[0],
    )  # fmt: skip
    job = strategy.job(recipe.problem(Context()))
    assert isinstance(job, OneShotSearch)
    return job


def traits(arch: ElasticArchitecture) -> dict[str, float]:
    """Return what distinguishes a network, as numbers."""
    scale, deepest = math.log2(arch.ratio), math.log2(arch.deepest / USUAL_DEEPEST)
    blocks = [stage.blocks for stage in STAGES]
    used = [expansion for depth, expansion in zip(arch.depths, arch.expansions, strict=True) if depth]
    return {
        "twice the scale": scale,
        "scale squared": scale**2,
        "whole blocks instead of none": sum(used) / (EXPANSION * len(used)),
        "all blocks instead of none": sum(arch.depths[:OPTIONAL_STAGE]) / sum(blocks[:OPTIONAL_STAGE]),
        "the last stage": arch.depths[OPTIONAL_STAGE] / blocks[OPTIONAL_STAGE],
        "detail of 1/4": float(arch.detail == min(DETAIL_STRIDES)),
        "twice the decoder": math.log2(arch.decoder / USUAL_DECODER),
        "twice the deepest stride": deepest,
        "deepest stride squared": deepest**2,
    }


def worths(lessons: Sequence[Lesson]) -> dict[str, float]:
    """Fit what each trait is worth: networks are compared with those of their own dataset and time alone."""
    rows = []
    for row in lessons:
        size = math.log2(row.macs / USUAL_MACS)
        rows.append([*traits(row.network).values(), size, size**2, math.log2(row.steps)])
    inside, quality = np.array(rows), np.array([row.miou for row in lessons])
    spread = np.maximum(inside.std(axis=0), 1e-9)
    inside = inside / spread
    for group in {row.group for row in lessons}:
        mine = np.array([row.group == group for row in lessons])
        inside[mine] -= inside[mine].mean(axis=0)
        quality[mine] -= quality[mine].mean()
    damped = inside.T @ inside + DAMPING * np.eye(inside.shape[1])
    found = np.linalg.solve(damped, inside.T @ quality) / spread
    names = [*traits(lessons[0].network), *EFFORT]
    return {name: float(value) for name, value in zip(names, found, strict=True) if name not in EFFORT}


def show(given: argparse.Namespace) -> None:
    """Print the rank correlations dataset by dataset, then what traits are worth."""
    lessons: list[Lesson] = read(given.lessons, Lesson)
    verdicts: list[Verdict] = read(given.judged, Verdict)
    print("dataset | seconds | networks | mIoU | by size | shared steps | shared | cost per network")
    print("---|---|---|---|---|---|---|---")
    for group in sorted({row.group for row in lessons}):
        mine = [row for row in lessons if row.group == group]
        truth = [row.miou for row in mine]
        begin = (
            f"{group[0]} | {group[1]:g} | {len(mine)} | {100 * min(truth):.1f} to {100 * max(truth):.1f} | "
            f"{shown(spearman([row.macs for row in mine], truth))}"
        )
        judged = list(judgements(verdicts, mine))
        for steps, said in judged:
            agreement = shown(spearman([row.quality for row in said], truth))
            each = mean(row.shared_seconds / SEARCHED + row.judging_seconds for row in said)
            print(f"{begin} | {steps} | {agreement} | {each / group[1]:.1%}")
        if not judged:
            print(f"{begin} | - | - | -")
    print("\ntrait | worth in points of mIoU\n---|---")
    for name, worth in worths(lessons).items():
        print(f"{name} | {100 * worth:+.1f}")


def judgements(verdicts: Sequence[Verdict], mine: Sequence[Lesson]) -> Iterator[tuple[int, list[Verdict]]]:
    """Yield steps and what weights shared for so long said of each of these networks, seed by seed."""
    asked = [row for row in verdicts if (row.data, row.seconds) == mine[0].group]
    for steps, seed in sorted({(row.steps, row.seed) for row in asked}):
        said = {row.network: row for row in asked if (row.steps, row.seed) == (steps, seed)}
        if all(fingerprint_of(row.network) in said for row in mine):
            yield steps, [said[fingerprint_of(row.network)] for row in mine]


def shown(value: float | None) -> str:
    """Return a correlation as text."""
    return "-" if value is None else f"{value:.2f}"


VERBS = {"collect": collect, "judge": judge, "show": show}


def main() -> None:
    """Carry out one command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=VERBS)
    parser.add_argument("data", nargs="?", help="the dataset")
    parser.add_argument("--seconds", type=float, default=60.0, help="processor time of every training")
    parser.add_argument("--networks", type=int, default=16)
    parser.add_argument("--draw", type=int, default=0, help="seed of the drawing of networks")
    parser.add_argument("--seeds", nargs="+", type=int, default=(0,))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--image", default="360x480", help="HEIGHTxWIDTH of deployed networks")
    parser.add_argument("--crop", default="128x192", help="HEIGHTxWIDTH of training crops")
    parser.add_argument("--least", type=float, default=3e7, help="multiply-accumulates of a network")
    parser.add_argument("--most", type=float, default=1.2e9, help="the same")
    parser.add_argument("--steps", nargs="+", type=int, default=(50, 150), help="of the weights that judge")
    parser.add_argument("--judges", type=int, default=24, help="images that these judge on")
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--lessons", type=Path, default=LESSONS)
    parser.add_argument("--judged", type=Path, default=JUDGED)
    given = parser.parse_args()
    VERBS[given.verb](given)


if __name__ == "__main__":
    main()
