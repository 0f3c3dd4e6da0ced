"""Searched against ready networks at the same budgets, on CamVid's drives: the table of the year.

    python -m benchmarks.budgets price  --target cuda/graph/fp16             # on the device: prices of the space
    python -m benchmarks.budgets search CAMVID --target cuda/graph/fp16 --budgets 0.08 0.12 0.2 0.4
    python -m benchmarks.budgets time   --target cuda/graph/fp16             # on the device: ready and found networks
    python -m benchmarks.budgets train  CAMVID --target cuda/graph/fp16 --budgets 0.08 0.12 0.2 0.4 --seeds 0 1 2
    python -m benchmarks.budgets show   --target cuda/graph/fp16 --budgets 0.08 0.12 0.2 0.4

Every drive in turn is left out. `search` fine-tunes the weights that all networks of `elastic` share on the other
drives once, judges networks for every budget by them, and writes the best ones; it never sees the drive. `time`
measures all of them and all ready networks. `train` trains, from the usual start of each, the
networks whose measured time keeps a budget: the found ones, and the ready ones with the best expected quality. They get
the same `--steps`, the same `--seconds` with those steps at most, or the same `--processor-seconds`, for which a probe
measures the processor time of a step (with one thread, `OMP_NUM_THREADS=1`, other programs hardly change it). `show`
prints the best ready network of each budget (by its mean over drives and seeds, so that luck is on its side) beside the
found one.

Each command adds JSON lines to files in `--work` and does not repeat what is there, so commands can be stopped, divided
over machines, or run several at once with their own `--out` names (`train --part gpu1`).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.comparing import processor_seconds_of_step
from segtailor.core.codec import from_json, read_json, to_json
from segtailor.core.cost import Within
from segtailor.core.errors import DataProblem
from segtailor.core.plan import Shape
from segtailor.core.ranges import parse_size
from segtailor.core.space import (
    Architecture,
    architecture_document,
    fingerprint_of,
    parse_architecture,
    plan_of,
)
from segtailor.core.strategy import Judged, Problem, TrialResult
from segtailor.core.target import parse_target
from segtailor.costs.assembly import CalibrationSubject
from segtailor.costs.fitted import FittedLatency
from segtailor.costs.sampling import fit_space, time_sample
from segtailor.recipes.search import SearchRecipe
from segtailor.recipes.train import CARRIED_LR, FINE_TUNING, TrainRecipe, train_recipe
from segtailor.runs import Context
from segtailor.spaces.elastic import Elastic
from segtailor.spaces.published import published
from segtailor.spaces.starts import AUTO, IMAGENET
from segtailor.strategies.candidates import ArchitecturePrices
from segtailor.strategies.gradient_settings import Choice
from segtailor.strategies.one_shot import OneShot, OneShotSearch
from segtailor.systems.elastic import SMALL
from segtailor.tailoring.selecting import expected_qualities
from segtailor.training.device import Precision, pick_device

CLASSES = 11
SEARCHED = "searched"
USED_SHARE = (0.6, 0.97)  # of a budget: what a found network is to use


@dataclass(frozen=True, kw_only=True)
class Found:
    """A network that a search chose for a budget; `seconds` is what the search took, shared weights included."""

    target: str
    budget: float
    drive: str
    rank: int
    architecture: Mapping[str, Any]
    quality: float
    price: float
    seconds: float

    @property
    def key(self) -> tuple[object, ...]:
        """What was searched for."""
        return self.target, self.budget, self.drive

    @property
    def network(self) -> Architecture:
        """The architecture."""
        return parse_architecture(dict(self.architecture))


@dataclass(frozen=True, kw_only=True)
class Timed:
    """The latency of a network on a target, by its fingerprint."""

    target: str
    network: str
    median_ms: float


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A training: `drive` was left out and scored. `length` is what all trainings have in common, e.g. "800 steps"."""

    network: str
    drive: str
    seed: int
    length: str
    crop: str
    steps: int = 0
    miou: float = 0.0
    seconds: float = 0.0

    @property
    def key(self) -> tuple[object, ...]:
        """What makes two trainings the same."""
        return self.network, self.drive, self.seed, self.length, self.crop


@dataclass(frozen=True, kw_only=True)
class Probed:
    """Processor seconds of a training step of a network."""

    network: str
    crop: str
    batch: int
    processor_seconds: float

    @property
    def key(self) -> tuple[object, ...]:
        """What was probed."""
        return self.network, self.crop, self.batch


class Journal:
    """Files of rows of one kind in the working folder; new rows go to the file of this part of the work."""

    def __init__(self, work: Path, kind: str, row: type, *, part: str = "") -> None:
        work.mkdir(parents=True, exist_ok=True)
        self._file = work / f"{kind}{'-' + part if part else ''}.jsonl"
        files = sorted({*work.glob(f"{kind}.jsonl"), *work.glob(f"{kind}-*.jsonl")})
        lines = [line for file in files for line in file.read_text().splitlines()]
        self.rows: list[Any] = [row(**json.loads(line)) for line in lines]

    def add(self, row: Any) -> None:
        """Write a row."""
        self.rows.append(row)
        with self._file.open("a") as file:
            file.write(json.dumps(vars(row)) + "\n")
        print({name: value for name, value in vars(row).items() if name != "architecture"}, flush=True)


def prices_file(work: Path, target: str) -> Path:
    """Return where the prices of a target are."""
    return work / f"prices-{target.replace('/', '-')}.json"


def price(given: argparse.Namespace) -> None:
    """Fit prices to networks of the space on this machine."""
    subject = CalibrationSubject(
        space=Elastic(), image=parse_size(given.image), classes=CLASSES, target=given.target
    )
    fit_prices(subject, given.work, minutes=given.minutes)


def fit_prices(subject: CalibrationSubject, work: Path, *, minutes: float) -> None:
    """Fit prices to networks of a space on this machine, and write them."""
    fit = fit_space(subject, seconds=minutes * 60)
    work.mkdir(parents=True, exist_ok=True)
    prices_file(work, subject.target).write_text(json.dumps(to_json(fit.cost)))
    print(f"{len(fit.seconds)} networks, mean error {fit.trust.mape:.1%}, Spearman {fit.trust.spearman}")


def read_prices(work: Path, target: str) -> FittedLatency:
    """Return the prices that were fitted for a target."""
    document = read_json(prices_file(work, target), what="prices")
    return from_json(FittedLatency, document, what="prices", error=DataProblem)


def search_recipe(given: argparse.Namespace, drive: str) -> SearchRecipe:
    """Return the search on all drives but one."""
    cost = read_prices(given.work, given.target)
    strategy = SMALL.strategy
    assert isinstance(strategy, OneShot)
    fit = replace(
        strategy.fit, steps=given.steps, batch=given.batch, precision=precision(), carried_lr=CARRIED_LR
    )
    strategy = replace(
        strategy,
        fit=fit,
        augment=replace(SMALL.evaluator.augment, crop=parse_size(given.crop)),
        trials=given.trials,
        choice=Choice(recalibrate=6, images=given.judged),
    )
    limit = USED_SHARE[1] * max(given.budgets)
    return replace(
        SMALL, data=data_of(given, drive), image=parse_size(given.image), strategy=strategy, cost=cost, limit=limit,
        objective=Within(limit=limit), start=IMAGENET, seed=given.seeds[0],
    )  # fmt: skip


def search(given: argparse.Namespace) -> None:
    """Search every drive's networks for all budgets with one set of shared weights."""
    journal = Journal(given.work, "found", Found, part=given.part)
    for drive in given.drives:
        missing = [
            budget
            for budget in given.budgets
            if (given.target, budget, drive) not in {row.key for row in journal.rows}
        ]
        if not missing:
            continue
        begin = time.perf_counter()
        recipe = search_recipe(given, drive)
        problem, strategy = recipe.problem(Context()), recipe.strategy
        assert isinstance(strategy, OneShot)
        job = strategy.job(problem)
        assert isinstance(job, OneShotSearch)
        for _ in job.training():
            pass
        shared = time.perf_counter() - begin
        judged: dict[str, float] = {}
        for budget in missing:
            begin = time.perf_counter()
            limit = USED_SHARE[1] * budget
            within = Within(limit=limit, least=USED_SHARE[0] * limit)
            best = bred(job, strategy, replace(problem, limit=limit, objective=within), judged)
            for rank, row in enumerate(best[: given.keep]):
                journal.add(
                    Found(
                        target=given.target, budget=budget, drive=drive, rank=rank,
                        architecture=architecture_document(row.candidate.architecture),
                        quality=row.quality, price=row.cost,
                        seconds=round(time.perf_counter() - begin + shared / len(given.budgets), 1),
                    )
                )  # fmt: skip


def bred(job: OneShotSearch, strategy: OneShot, problem: Problem, known: dict[str, float]) -> list[Judged]:
    """Breed networks for a budget; return those that were judged, the best first."""
    state, rows = strategy.evolution.begin(problem, ArchitecturePrices(problem)), list[Judged]()
    while batch := state.ask():
        generation = []
        for candidate in batch:
            mark = fingerprint_of(candidate.architecture)
            if mark not in known:
                known[mark] = job.quality(candidate.architecture)
            result = TrialResult(
                id=len(rows) + len(generation), status="done", quality=known[mark], cost=candidate.cost
            )
            generation.append(Judged(candidate=candidate, result=result))
        state.tell(generation)
        rows += generation
    return sorted(rows, key=lambda row: -float(problem.objective.score(row.quality, row.cost)))


def measure(given: argparse.Namespace) -> None:
    """Time all ready and found networks in turns on this machine."""
    journal = Journal(given.work, "times", Timed, part=given.part)
    known = {row.network for row in journal.rows if row.target == given.target}
    found = [row.network for row in Journal(given.work, "found", Found).rows if row.target == given.target]
    networks = [published(name) for name in ready(given)] + found
    missing = {mark: arch for arch in networks if (mark := fingerprint_of(arch)) not in known}
    for part in in_parts(list(missing), given.at_once):
        plans = [(mark, plan_of(missing[mark], Shape(3, *parse_size(given.image)), CLASSES)) for mark in part]
        seconds = given.minutes * 60 * len(part) / len(missing)
        for row in time_sample(plans, parse_target(given.target), seconds=seconds):
            taken = row.measured()
            journal.add(
                Timed(target=given.target, network=taken.fingerprint, median_ms=round(taken.median_ms, 5))
            )


def in_parts(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """Yield the names in parts: all networks at once may not fit into memory."""
    for first in range(0, len(names), size):
        yield names[first : first + size]


def ready(given: argparse.Namespace) -> list[str]:
    """Return the ready networks that compete, best expected quality first."""
    expected = expected_qualities()
    return given.ready or sorted(expected, key=lambda name: -expected[name][0])


def entrants(given: argparse.Namespace, budget: float) -> Iterator[tuple[str, str, Architecture]]:
    """Yield what competes at a budget: its name, the drive (all where empty) and the architecture."""
    times = {
        row.network: row.median_ms
        for row in Journal(given.work, "times", Timed).rows
        if row.target == given.target
    }

    def keeps(arch: Architecture) -> bool:
        return times.get(fingerprint_of(arch), float("inf")) <= budget

    fitting = [name for name in ready(given) if keeps(published(name))]
    for name in fitting[: given.most]:
        yield name, "", published(name)
    found: dict[str, Found] = {}
    for row in sorted(Journal(given.work, "found", Found).rows, key=lambda row: row.rank):
        if (row.target, row.budget) == (given.target, budget) and keeps(row.network):
            found.setdefault(row.drive, row)
    for drive, row in found.items():
        yield SEARCHED, drive, row.network


def train(given: argparse.Namespace) -> None:
    """Train what competes at any budget, seed after seed, so that a stop leaves whole rounds."""
    journal = Journal(given.work, "trained", Trained, part=given.part)
    probes = Journal(given.work, "probed", Probed, part=given.part)
    for seed, budget in product(given.seeds, given.budgets):
        for _, only, arch in entrants(given, budget):
            for drive in [one for one in given.drives if only in ("", one)]:
                row = Trained(
                    network=fingerprint_of(arch),
                    drive=drive,
                    seed=seed,
                    length=length_of(given),
                    crop=given.crop,
                )
                if row.key in {one.key for one in journal.rows}:
                    continue
                begin = time.perf_counter()
                recipe = training_of(given, arch, drive, seed=seed)
                if given.processor_seconds is not None:
                    each = probed(given, recipe, row.network, probes)
                    steps = max(1, round(given.processor_seconds / each))
                    recipe = replace(recipe, fit=replace(recipe.fit, steps=steps))
                job = recipe.job(Context())
                for _ in job.steps():
                    pass
                quality = float(str(job.fit.result()["miou"]))
                seconds = round(time.perf_counter() - begin, 1)
                journal.add(replace(row, steps=job.fit.done, miou=quality, seconds=seconds))


def length_of(given: argparse.Namespace) -> str:
    """Return in words how long every training is."""
    if given.processor_seconds is not None:
        return f"{given.processor_seconds:g} s of processor time"
    return f"{given.steps} steps" + (f" in {given.seconds:g} s" if given.seconds is not None else "")


def training_of(given: argparse.Namespace, arch: Architecture, drive: str, *, seed: int) -> TrainRecipe:
    """Return the training of a network with a drive left out, from its usual start."""
    usual = train_recipe(
        arch, data_of(given, drive), start=AUTO, crop=parse_size(given.crop), context=Context()
    )
    fit = replace(
        FINE_TUNING, steps=given.steps, seed=seed, batch=given.batch, ema=0.99, precision=precision(),
        seconds=given.seconds,
    )  # fmt: skip
    return replace(usual, fit=fit)


def probed(given: argparse.Namespace, recipe: TrainRecipe, network: str, journal: Journal) -> float:
    """Return the processor seconds of a step of this training; measured once for each network."""
    wanted = Probed(network=network, crop=given.crop, batch=given.batch, processor_seconds=0.0)
    for row in journal.rows:
        if row.key == wanted.key:
            return float(row.processor_seconds)
    each = processor_seconds_of_step(recipe)
    journal.add(replace(wanted, processor_seconds=round(each, 5)))
    return each


def show(given: argparse.Namespace) -> None:
    """Print one line per budget."""
    rows = [row for row in Journal(given.work, "trained", Trained).rows if row.length == length_of(given)]
    scores: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        scores.setdefault((row.network, row.drive), []).append(100 * row.miou)
    cost = [row.seconds for row in Journal(given.work, "found", Found).rows if row.target == given.target]
    print("budget | best ready network | its mIoU | searched | gain | drives | trainings")
    print("---|---|---|---|---|---|---")
    for budget in given.budgets:
        by_name: dict[str, dict[str, list[float]]] = {}
        for name, only, arch in entrants(given, budget):
            for drive in given.drives if not only else [only]:
                taken = scores.get((fingerprint_of(arch), drive))
                if taken:
                    by_name.setdefault(name, {})[drive] = taken
        drives = sorted(set.intersection(*(set(of) for of in by_name.values()))) if by_name else []
        if SEARCHED not in by_name or len(by_name) < 2 or not drives:
            print(f"{budget:g} ms | not trained yet")
            continue
        means = {name: mean(mean(of[drive]) for drive in drives) for name, of in by_name.items()}
        best = max((name for name in means if name != SEARCHED), key=lambda name: means[name])
        trainings = [value for of in by_name.values() for values in of.values() for value in values]
        print(
            f"{budget:g} ms | {best} | {means[best]:.1f} {_spread(by_name[best])} | "
            f"{means[SEARCHED]:.1f} {_spread(by_name[SEARCHED])} | {means[SEARCHED] - means[best]:+.1f} | "
            f"{len(drives)} | {len(trainings)}"
        )
    if cost:
        print(f"search: {mean(cost):.0f} s per budget and drive")


def _spread(of: Mapping[str, Sequence[float]]) -> str:
    """Return the mean deviation between seeds of one drive."""
    several = [stdev(values) for values in of.values() if len(values) > 1]
    return f"± {mean(several):.1f}" if several else ""


def data_of(given: argparse.Namespace, drive: str) -> str:
    """Return the dataset with a drive left out; with `--data` that dataset, whose split counts as the drive."""
    return given.data or f"camvid:{given.path}?fold={drive}"


def precision(device: str | None = None) -> Precision:
    """Return the usual precision of a device, by default of the best one here."""
    return "fp32" if pick_device(device).type == "cpu" else "bf16"


VERBS = {"price": price, "search": search, "time": measure, "train": train, "show": show}


def main() -> None:
    """Carry out one command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=VERBS)
    parser.add_argument("path", nargs="?", help="CamVid's folder")
    parser.add_argument("--data", help="another dataset, to try the commands")
    parser.add_argument("--target", default="cpu/onnxruntime/fp32")
    parser.add_argument("--budgets", nargs="+", type=float, default=(5.0, 10.0, 20.0, 40.0), help="in ms")
    parser.add_argument("--drives", nargs="+", default=("0001TP", "0006R0", "0016E5"))
    parser.add_argument("--seeds", nargs="+", type=int, default=(0,))
    parser.add_argument("--ready", nargs="+", help="names of ready networks; all by default")
    parser.add_argument("--most", type=int, default=3, help="ready networks that are trained for a budget")
    parser.add_argument("--keep", type=int, default=3, help="networks that a search writes for a budget")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seconds", type=float, help="that every training may take")
    parser.add_argument("--processor-seconds", type=float, help="processor time of every training")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--image", default="360x480", help="HEIGHTxWIDTH of deployed networks")
    parser.add_argument("--crop", default="352x480", help="HEIGHTxWIDTH of training crops")
    parser.add_argument("--trials", type=int, default=256, help="networks that are judged for a budget")
    parser.add_argument("--judged", type=int, default=96, help="images that they are judged on")
    parser.add_argument("--minutes", type=float, default=1.5, help="of price and time")
    parser.add_argument("--at-once", type=int, default=24, help="networks that are timed in turns")
    parser.add_argument("--work", type=Path, default=Path("runs/budgets"))
    parser.add_argument("--part", default="", help="name of the files that this process writes")
    given = parser.parse_args()
    VERBS[given.verb](given)


if __name__ == "__main__":
    main()
