"""Shared by comparisons of searches: data, searches, random networks of equal cost, training, records of results.

Searches see two halves of the training split only. All compared networks are trained from scratch in the same way on
the whole training split; the mIoU is on `val`. Each piece of a comparison (usually a seed) has a file with one line of
JSON, `OUT/PIECE.json`, to which every finished stage is added at once, so that a stopped comparison can be resumed.
`cat OUT/*.json > results/NAME.jsonl` keeps them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import nn

from segtailor.core.cost import Within
from segtailor.core.plan import Shape
from segtailor.core.ranges import parse_size
from segtailor.core.space import Architecture, architecture_document, fingerprint_of, parse_architecture
from segtailor.core.strategy import Problem
from segtailor.core.task import Preprocessing
from segtailor.core.variation import neighbours, sample, sample_picks
from segtailor.data.augment import Augment
from segtailor.data.batches import Batches
from segtailor.data.cache import Pixels, open_pixels
from segtailor.data.locate import locate
from segtailor.nets.network import Network, build, initialise
from segtailor.recipes.search import SearchRecipe
from segtailor.recipes.train import TrainRecipe
from segtailor.runs import Context
from segtailor.strategies.gradient_settings import Gradient
from segtailor.strategies.halves import FIT, JUDGE, HalvedPixels, HalvedTrain
from segtailor.training.device import Precision
from segtailor.training.distill import DistillSettings
from segtailor.training.fit import Fit
from segtailor.training.settings import FitSettings, Schedule

BUDGET_SHARE = 0.5  # of the mean cost of random networks
COST_TOLERANCE = 0.1  # how much cheaper a random network may be than the network it is compared with
MAX_WALKS, MAX_STEPS = 40, 400  # random walks towards a cost, and steps of each
PROBE_STEPS, PROBE_SECONDS = 4, 2.0  # of the probe of a training step, at least
REPEAT_SEEDS = 1_000_000  # between the seeds of several trainings of a network
FINISHED_KEY = "torch"  # the last key that is recorded


@dataclass(frozen=True, kw_only=True)
class Setting:
    """All settings that change a result.

    `step_worth` is how many steps of a single network a step of the supernet is worth, for equal compute; with 1 steps
    are counted. `image` is the size HEIGHTxWIDTH of crops, and that networks are priced at.
    """

    data: str
    device: str
    steps: int
    batch: int
    training: int
    finalists: int = 0
    trial: int = 1
    ahead: int = 0
    step_worth: float = 1.0
    image: str = "64x128"

    @property
    def search_steps(self) -> int:
        """All steps of a search, with pretraining and trials of finalists; random search gets the same number.

        They are steps of a single network: those of the supernet count as many times as they are worth.
        """
        return round((self.ahead + self.steps) * self.step_worth) + self.finalists * self.trial

    @property
    def draws(self) -> int:
        """How many networks random search can try."""
        return max(1, self.search_steps // self.trial)


class Record:
    """Results of one piece of a comparison in a JSON file; stages that are recorded are not repeated."""

    def __init__(self, path: Path, setting: Mapping[str, Any]) -> None:
        self.path, self.known = path, {"piece": path.stem, "setting": dict(setting), "seconds": {}}
        if path.exists():
            stored = json.loads(path.read_text())
            if stored["setting"] != self.known["setting"]:
                raise SystemExit(f"{path} has results of other settings; remove it, or give another --out.")
            self.known = stored

    def finish(self) -> None:
        """Record that this piece is finished."""
        self.once(FINISHED_KEY, lambda: torch.__version__)

    def once(self, name: str, work: Callable[[], Any]) -> Any:
        """Return the result recorded under a name; without one, do the work and record its result."""
        if name not in self.known:
            started = time.perf_counter()
            self.known[name] = work()
            self.known["seconds"][name] = round(time.perf_counter() - started, 1)
            say(f"{self.path.stem}: {name} in {self.known['seconds'][name]} s")
            draft = self.path.with_suffix(".draft")
            draft.write_text(json.dumps(self.known) + "\n")
            draft.replace(self.path)
        return self.known[name]


class Bench:
    """The data, and what every comparison does with it: search, train, score."""

    def __init__(self, setting: Setting, cache: Path, *, precision: Precision = "fp32") -> None:
        self.setting, self.cache, self.precision = setting, cache, precision
        self.device = torch.device(setting.device)
        self.image = parse_size(setting.image)
        dataset = locate(setting.data)
        halved = HalvedTrain(dataset=dataset)
        self.task, self.halves = dataset.task, halved.halves()
        fit, judge = (open_pixels(halved, half, cache) for half in (FIT, JUDGE))
        train, val = (open_pixels(dataset, split, cache) for split in ("train", "val"))
        self.searched = HalvedPixels(self.task, fit, judge)
        self.unseen = HalvedPixels(self.task, train, val)

    def problem(
        self,
        recipe: SearchRecipe,
        cost: Any,
        *,
        seed: int,
        image: tuple[int, int] | None = None,
        budget: float = BUDGET_SHARE,
    ) -> Problem:
        """Return the problem; its budget is a share of the mean cost of random networks, 0 for no budget."""
        unlimited = Problem(
            space=recipe.space,
            cost=cost,
            objective=Within(limit=float("inf")),
            task=self.task,
            image=Shape(3, *(image or self.image)),
            data=self.halves,
            device=self.setting.device,
            seed=seed,
            cache=self.cache,
        )
        if not budget:
            return unlimited
        rng = Random(0)
        limit = budget * statistics.mean(unlimited.price(sample(recipe.space, rng)) for _ in range(30))
        return replace(unlimited, limit=limit, objective=Within(limit=limit))

    def search(
        self, strategy: Gradient, problem: Problem, *, pretrained: Path | None = None
    ) -> dict[str, Any]:
        """Search by gradients; return the result with the last record of the trajectory only.

        `pretrained` is a folder for the state after pretraining: searches that differ only later share it.
        """
        job = strategy.job(problem)
        if pretrained is not None and pretrained.exists():
            job.load(pretrained)
        for step in job.steps():
            if pretrained is not None and step.phase == "pretrain" and step.done == step.total:
                draft = pretrained.with_suffix(".draft")
                draft.mkdir(parents=True, exist_ok=True)
                job.save(draft)
                draft.replace(pretrained)
        result: dict[str, Any] = dict(job.result())
        result["trajectory"] = result["trajectory"][-1:]
        return result

    def best(self, candidates: Iterable[Architecture], *, seed: int) -> tuple[Architecture, list[float]]:
        """Train each for the steps of a trial on one half; return the best on the other half, and all scores."""
        tried = list(candidates)
        if len(tried) == 1:
            return tried[0], []
        scores = [self.trained(arch, self.searched, seed=seed, steps=self.setting.trial) for arch in tried]
        return tried[max(range(len(tried)), key=scores.__getitem__)], scores

    def trained(
        self, arch: Architecture, data: HalvedPixels, *, seed: int, steps: int | None = None
    ) -> float:
        """Train from scratch and score."""
        return self.fitted(arch, data, seed=seed, steps=steps)[0]

    def fitted(
        self,
        arch: Architecture,
        data: HalvedPixels,
        *,
        seed: int,
        steps: int | None = None,
        teacher: nn.Module | None = None,
    ) -> tuple[float, Network]:
        """Train from scratch, with a teacher where one is given; return score and network."""
        settings = FitSettings(
            steps=steps or self.setting.training,
            batch=self.setting.batch,
            optimiser="adamw",
            lr=0.01,
            weight_decay=0.01,
            schedule=Schedule(kind="cosine"),
            clip=5.0,
            validate_batch=16,
            precision=self.precision,
            distill=None if teacher is None else DistillSettings(),
            seed=seed,
        )
        network = build(arch, self.task.outputs, outputs="all")
        initialise(network, seed)
        fit = Fit(
            network=network,
            batches=lambda **shares: Batches(**self._source(data.fit), **shares),
            settings=settings,
            task=self.task,
            device=self.device,
            validation=data.judge,
            teacher=teacher,
        )
        for _ in fit.steps():
            pass
        return (0.0 if fit.scores is None else fit.scores.miou), network

    def _source(self, pixels: Pixels) -> dict[str, Any]:
        images, labels = pixels.canvas()
        return {
            "images": images,
            "labels": labels,
            "sizes": pixels.sizes,
            "augment": Augment(crop=self.image, scale=(0.75, 1.5)),
            "preprocessing": Preprocessing(),
            "device": self.device,
        }


def finalists(
    result: Mapping[str, Any], *, limit: float | None, count: int
) -> tuple[list[Architecture], list[float]]:
    """Return the best networks within the budget by shared weights, with their scores; the search's choice first."""
    first = result["architecture"]
    trials = sorted(result["trials"], key=lambda trial: -trial["result"]["quality"])
    rows = [({**first, "architecture": trial["architecture"]}, trial["result"]) for trial in trials]
    rows = [(first, result), *(row for row in rows if limit is None or row[1]["cost"] <= limit)]
    unique: dict[str, tuple[Architecture, float]] = {}
    for described, judged in rows:
        arch = parse_architecture(described)
        unique.setdefault(fingerprint_of(arch), (arch, judged["quality"]))
    archs, qualities = zip(*list(unique.values())[: max(1, count)], strict=True)
    return list(archs), list(qualities)


def at_cost(problem: Problem, cost: float, rng: Random) -> Architecture:
    """Return a random network that costs 90 to 100 % of `cost`, found by random steps that come closer to it."""
    space, middle = problem.space, (1 - COST_TOLERANCE / 2) * cost
    nearest: tuple[float, Architecture] | None = None
    for _ in range(MAX_WALKS):
        picks = sample_picks(space, rng)
        here = problem.price(space.architecture(picks))
        for _ in range(MAX_STEPS):
            if (1 - COST_TOLERANCE) * cost <= here <= cost:
                return space.architecture(picks)
            other = rng.choice(list(neighbours(space, picks)))
            there = problem.price(space.architecture(other))
            if abs(there - middle) < abs(here - middle):
                picks, here = other, there
        if nearest is None or abs(here - middle) < nearest[0]:
            nearest = abs(here - middle), space.architecture(picks)
    if nearest is None:
        raise SystemExit("no random network was drawn")
    return nearest[1]


def document(arch: Architecture) -> dict[str, Any]:
    """Return an architecture as it is recorded."""
    return dict(architecture_document(arch))


def in_processes(module: str, pieces: list[str], *, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Run each piece in its own process, `--jobs` at a time; return the records of all finished pieces.

    A piece that fails does not stop the others.
    """
    command = [sys.executable, "-m", module, *sys.argv[1:]]
    waiting, running = list(pieces), []
    while waiting or running:
        while waiting and len(running) < options.jobs:
            piece = waiting.pop(0)
            running.append((piece, subprocess.Popen([*command, "--only", piece])))
        time.sleep(0.2)
        for piece, process in list(running):
            if process.poll() is not None:
                running.remove((piece, process))
                if process.returncode:
                    say(f"{piece} failed with status {process.returncode}")
    files = {piece: options.out / f"{piece}.json" for piece in pieces}
    records = {piece: json.loads(file.read_text()) for piece, file in files.items() if file.exists()}
    done = {piece: row for piece, row in records.items() if FINISHED_KEY in row}
    for piece in sorted(set(pieces) - set(done)):
        say(f"{piece} is not finished; call again to resume")
    return done


def add_common_flags(parser: argparse.ArgumentParser, parts: Iterable[str] = ()) -> None:
    """Add the flags of comparisons with random search of equal compute, and `--parts` if there are several."""
    if parts:
        parser.add_argument("--parts", default=",".join(parts), help="separated by commas")
    add_flags(parser)
    add_trial_flag(parser)
    parser.add_argument(
        "--finalists", type=int, default=4, help="networks tried by a short training before one is chosen"
    )
    parser.add_argument(
        "--step-worth",
        type=float,
        default=1.0,
        help="steps of a network that one of the supernet is worth, for random search of equal compute",
    )


def add_repeat_flags(parser: argparse.ArgumentParser) -> None:
    """Add the number of trainings of a network, and `--dry-run`."""
    parser.add_argument("--repeats", type=int, default=1, help="trainings of every compared network")
    parser.add_argument("--dry-run", action="store_true", help="print what it will take, and stop")


def add_trial_flag(parser: argparse.ArgumentParser) -> None:
    """Add the length of trials."""
    parser.add_argument("--trial", type=int, default=30, help="steps of a short training")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that all comparisons have."""
    parser.add_argument("--data", default="synthetic:size=64x128,train=160,val=40")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=150, help="steps of a search")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--training", type=int, default=100, help="training steps of every compared network")
    parser.add_argument("--image", default="64x128", help="HEIGHTxWIDTH of crops and of pricing")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--threads", type=int, default=1, help="threads of each process")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "segtailor")
    parser.add_argument("--out", type=Path, help="folder with one JSON file for each piece")
    parser.add_argument("--only", help="run only this piece, in this process")
    parser.add_argument("--show", type=Path, help="print the table of a file of stored records (JSON lines)")


def parse_flags(parser: argparse.ArgumentParser, parts: Iterable[str] = ()) -> argparse.Namespace:
    """Read the command line, and make the folder of results."""
    options = parser.parse_args()
    if parts and set(options.parts.split(",")) - set(parts):
        raise SystemExit(f"unknown part; choose among {', '.join(parts)}")
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    elif options.show is None:
        parser.error("give --out, the folder for results, or --show, a file of stored results")
    return options


def records_of(module: str, pieces: list[str], *, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return records by piece: stored ones with `--show`, otherwise those of the pieces, which are run first."""
    if options.show is None:
        return in_processes(module, pieces, options=options)
    lines = options.show.read_text(encoding="utf-8").splitlines()
    return {record["piece"]: record for record in map(json.loads, lines)}


def setting_of(options: argparse.Namespace) -> Setting:
    """Return the settings that change results."""
    names = ("data", "device", "steps", "batch", "training", "finalists", "trial", "step_worth", "image")
    known = {name: getattr(options, name) for name in (*names, "ahead") if hasattr(options, name)}
    return Setting(**known)


def seeds_of(options: argparse.Namespace) -> list[str]:
    """Return the names of the pieces of a comparison that has one for each seed."""
    return [f"seed-{seed}" for seed in range(options.first_seed, options.first_seed + options.seeds)]


def scores_of(row: Mapping[str, Any], name: str) -> list[float]:
    """Return the mIoU in percent of all trainings of a network, recorded as `miou_NAME_REPEAT`."""
    return [100 * value for key, value in row.items() if key.startswith(f"miou_{name}_")]


def spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation."""
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"**{statistics.mean(values):.1f}**{deviation}"


def training_seeds(seed: int, repeats: int) -> list[int]:
    """Return the seeds of the trainings of a network that a search with some seed has found."""
    return [seed + REPEAT_SEEDS * repeat for repeat in range(repeats)]


def mean(rows: list[dict[str, Any]], key: str, scale: float) -> str:
    """Return the mean of a column and, in brackets, its values."""
    values = [scale * row[key] for row in rows]
    each = " ".join(f"{value:.1f}" if scale == 100 else f"{value:.3g}" for value in values)
    return f"**{statistics.mean(values):.2f}** ({each})"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def processor_seconds_of_step(recipe: TrainRecipe) -> float:
    """Return the processor seconds of a step of a training, by doing some: with one thread others hardly disturb."""
    endless = replace(recipe, val_split=None, fit=replace(recipe.fit, steps=PROBE_STEPS * 1000, seconds=None))
    first: tuple[int, float] | None = None
    for step in endless.job(Context()).steps():
        now = step.done, time.process_time()
        if first is None and step.done:  # the first steps also allocate memory
            first = now
        elif first is not None and now[0] >= first[0] + PROBE_STEPS and now[1] > first[1] + PROBE_SECONDS:
            break
    assert first is not None
    return (now[1] - first[1]) / (now[0] - first[0])
