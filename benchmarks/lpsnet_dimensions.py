"""LPS-Net: growth in three dimensions against each dimension alone and random search, at equal compute.

    python -m benchmarks.lpsnet_dimensions --data 'camvid:PATH?fold=0001TP' --image 352x480 --device cuda --jobs 3 \\
        --limit 400MMACs --batch 16 --trial 200 --training 2000 --repeats 2 --out runs/dimensions        # a GPU
    python -m benchmarks.lpsnet_dimensions --steps 2 --batch 2 --trial 1 --training 2 --seeds 1 --limit 5MMACs \\
        --data synthetic:size=64x128,train=8,val=4 --out runs/tiny                                       # CPU
    python -m benchmarks.lpsnet_dimensions ... --dry-run            # trials, trainings and steps, without training

For each seed the expansion grows in all directions until the price limit or `--steps`. What its trials cost to train
(multiply-accumulates, forward and backward, at the size of the crops; or what `--compute` says) is what every other
entrant may spend: growth in depth, in width or in resolution alone, by steps of the same price, and random networks
that cost 90 to 100 % of the limit. An entrant that reaches the limit earlier begins again with other seeds. Trials see
two halves of the training split only. The finalist of an entrant is the network that did best in its trial, among those
that use three quarters of the limit. All finalists are then trained from scratch alike, `--repeats` times, and scored
on `val`: with `?fold=DRIVE` the drive that was left out.

The price is multiply-accumulates, or with `--target` milliseconds by prices that are fitted on this machine first. What
is recorded in `--out` is not repeated, and trials are cached: a stopped comparison goes on where it was.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from random import Random
from statistics import fmean
from typing import Any

import torch

from benchmarks.budgets import Journal, Timed, fit_prices, precision, prices_file, read_prices
from benchmarks.comparing import (
    Bench,
    Record,
    Setting,
    add_flags,
    add_repeat_flags,
    add_trial_flag,
    at_cost,
    document,
    parse_flags,
    records_of,
    scores_of,
    seeds_of,
    setting_of,
    spread,
    training_seeds,
)
from benchmarks.search_strategies import Entrant, Study
from segtailor.core.codec import Json
from segtailor.core.cost import Within
from segtailor.core.plan import Shape
from segtailor.core.ranges import parse_size
from segtailor.core.space import Architecture, fingerprint_of, parse_architecture, plan_of
from segtailor.core.strategy import AskTell, Candidate, Evaluator, Judged, Problem, Trial, TrialResult
from segtailor.core.target import parse_target
from segtailor.costs import Macs
from segtailor.costs.assembly import CalibrationSubject
from segtailor.costs.measured import time_networks
from segtailor.data.locate import locate
from segtailor.recipes.search import SearchRecipe
from segtailor.runs import Context
from segtailor.spaces.scalable_path import ScalablePath
from segtailor.strategies import Expansion
from segtailor.strategies.candidates import ArchitecturePrices
from segtailor.strategies.trials import TrialSearch
from segtailor.systems import lpsnet
from segtailor.verbs.search import parse_limit

ALL, RANDOM = "three dimensions", "random search"
ENTRANTS: Mapping[str, tuple[str, ...]] = {  # by the directions that they grow in
    ALL: (),
    "depth alone": ("depth",),
    "width alone": ("width",),
    "resolution alone": ("resolution",),
}
NAMES = (*ENTRANTS, RANDOM)
LEAST_USED = 0.75  # of the limit, by a finalist
PASSES = 3  # a training step computes forward, and backward to maps and weights
MAX_MISSES = 3  # in a row, of walks to a new random network within the limit
MAX_ROUNDS = 50  # of growing from the start, until the compute is used up
MAX_STEPS = 60  # of growing, where the compute is bounded
GUESSED_NOISE = 0.3  # of made-up results, in the logarithm of multiply-accumulates
ROUND_SEEDS = 10_000  # between the seeds of rounds


@dataclass(kw_only=True)
class Meter:
    """What an entrant may spend on trials and has spent, in multiply-accumulates, and what its trials found."""

    compute: float
    work: Callable[[Architecture], float]
    spent: float = 0.0
    ended: bool = False  # the next batch would be more than is left
    judged: list[Judged] = field(default_factory=list)

    def affords(self, archs: Sequence[Architecture]) -> bool:
        """Take the work of these trials from what is left, or end."""
        due = sum(map(self.work, archs))
        self.ended = self.ended or self.spent + due > self.compute
        self.spent += 0.0 if self.ended else due
        return not self.ended


@dataclass(frozen=True, kw_only=True)
class Metered:
    """A strategy by trials that ends when its meter says so."""

    strategy: Expansion | Study
    meter: Meter
    halving: None = None

    def check(self, problem: Problem) -> None:
        """Refuse what the strategy refuses."""
        self.strategy.check(problem)

    def begin(self, problem: Problem, prices: ArchitecturePrices) -> MeteredState:
        """Return a new state."""
        return MeteredState(self.strategy.begin(problem, prices), self.meter)


class MeteredState:
    """The state of the strategy, whose batches are asked for only if they can be afforded."""

    def __init__(self, state: AskTell, meter: Meter) -> None:
        self._state, self._meter = state, meter

    @property
    def expected(self) -> int | None:
        """As many as the strategy says."""
        return self._state.expected

    def ask(self) -> Sequence[Candidate]:
        """Return the next batch as a whole, or none."""
        batch = self._state.ask()
        return batch if self._meter.affords([item.architecture for item in batch]) else ()

    def tell(self, judged: Sequence[Judged]) -> None:
        """Pass the results on."""
        self._meter.judged += judged
        self._state.tell(judged)

    def summary(self) -> Mapping[str, Json]:
        """Return what the strategy reports."""
        return self._state.summary()


def recipe_of(setting: Setting, options: argparse.Namespace) -> SearchRecipe:
    """Return the small search of the system with the trials, crops and price limit of this comparison."""
    base: Any = lpsnet.SMALL.evaluator
    size = parse_size(setting.image)
    fit = replace(
        base.fit, steps=setting.trial, batch=setting.batch, precision=precision(setting.device), clip=5.0
    )
    cost = Macs() if options.target is None else read_prices(options.out, options.target)
    limit = parse_limit(options.limit, cost.unit)
    return replace(
        lpsnet.SMALL,
        data=setting.data,
        image=size,
        strategy=Expansion(steps=setting.steps),
        evaluator=replace(base, augment=replace(base.augment, crop=size), fit=fit),
        cost=cost,
        limit=limit,
        objective=Within(limit=limit),
    )


def training_work(problem: Problem, setting: Setting) -> Callable[[Architecture], float]:
    """Return the function that says what a trial of a network costs: multiply-accumulates of all its steps."""

    def work(arch: Architecture) -> float:
        macs = plan_of(arch, problem.image, problem.task.outputs).macs()
        return float(PASSES * setting.trial * setting.batch * macs)

    return work


def trials(strategy: Expansion | Study, problem: Problem, meter: Meter) -> None:
    """Carry out the trials of a strategy, as far as the meter allows."""
    for _ in TrialSearch(Metered(strategy=strategy, meter=meter), problem).steps():
        pass


def grown(strategy: Expansion, problem: Problem, meter: Meter) -> int:
    """Grow from the start again and again until the compute is used up; return how often.

    Without a bound on the compute, grow once.
    """
    for number in range(MAX_ROUNDS):
        trials(strategy, replace(problem, seed=problem.seed + ROUND_SEEDS * number), meter)
        if meter.ended or math.isinf(meter.compute):
            break
    return number + 1


def drawn(problem: Problem, limit: float, *, seed: int) -> Iterator[Architecture]:
    """Yield different random networks that cost 90 to 100 % of the limit, or less where a walk does not get there."""
    rng, seen, misses = Random(seed), set[str](), 0
    while misses < MAX_MISSES:
        arch = at_cost(problem, limit, rng)
        mark = fingerprint_of(arch)
        if mark in seen or problem.price(arch) > limit:
            misses += 1
            continue
        misses = 0
        seen.add(mark)
        yield arch


def draws_within(problem: Problem, limit: float, meter: Meter) -> Study:
    """Return the trials of as many random networks as the compute is enough for."""
    left, entrants = meter.compute, list[Entrant]()
    for number, arch in enumerate(drawn(problem, limit, seed=problem.seed)):
        left -= meter.work(arch)
        if left < 0 and entrants:
            break
        entrants.append(Entrant(name=f"draw {number}", architecture=arch))
    return Study(entrants=tuple(entrants))


def finalist(judged: Sequence[Judged], limit: float) -> Judged:
    """Return the best network by its trial, of those that use enough of the limit; without any, the costliest."""
    done = [item for item in judged if item.done]
    if not done:
        raise SystemExit("an entrant had no trial that went well; check --trial and --batch")
    used = [item for item in done if item.cost >= LEAST_USED * limit]
    return max(used, key=lambda item: item.quality) if used else max(done, key=lambda item: item.cost)


def entered(name: str, problem: Problem, setting: Setting, *, compute: float) -> dict[str, Any]:
    """Carry out the search of one entrant; return its finalist and what its trials took."""
    limit = problem.limit or math.inf
    meter = Meter(compute=compute, work=training_work(problem, setting))
    rounds = 1
    if name == RANDOM:
        trials(draws_within(problem, limit, meter), problem, meter)
    else:
        steps = setting.steps if math.isinf(compute) else MAX_STEPS
        rounds = grown(Expansion(steps=steps, directions=ENTRANTS[name]), problem, meter)
    best = finalist(meter.judged, limit)
    return {
        "architecture": document(best.candidate.architecture),
        "quality": best.quality,
        "cost": best.cost,
        "unit": problem.cost.unit,
        "used": best.cost / limit,
        "trials": len(meter.judged),
        "rounds": rounds,
        "compute": meter.spent,
    }


def entrants_of(
    problem: Problem, setting: Setting, compute: float | None, once: Callable[..., Any]
) -> dict[str, dict[str, Any]]:
    """Return the search of every entrant, each done once; the first one says what the others may spend."""
    found: dict[str, dict[str, Any]] = {}
    for name in NAMES:
        bound = compute or (found[ALL]["compute"] if found else math.inf)
        found[name] = once(name, partial(entered, name, problem, setting, compute=bound))
    return found


def trained(bench: Bench, recipe: SearchRecipe, arch: Mapping[str, Any], *, seed: int) -> float:
    """Train a finalist from scratch on the whole training split; return its mIoU on `val`."""
    evaluator: Any = recipe.evaluator
    training = replace(evaluator, fit=replace(evaluator.fit, steps=bench.setting.training))
    result = training.judge(Trial(id=0, architecture=arch, seed=seed), data=bench.unseen, device=bench.device)
    return float("nan") if result.quality is None else float(result.quality)


def compare(bench: Bench, record: Record, seed: int, options: argparse.Namespace) -> None:
    """Search for all entrants and train their finalists; every finished stage is recorded at once."""
    recipe = replace(recipe_of(bench.setting, options), seed=seed)
    problem = recipe.problem(Context(cache=options.cache, device=options.device))
    found = entrants_of(problem, bench.setting, options.compute, record.once)
    for number, training_seed in enumerate(training_seeds(seed, options.repeats)):
        for name, row in found.items():
            work = partial(trained, bench, recipe, row["architecture"], seed=training_seed)
            record.once(f"miou_{name}_{number}", work)
    record.finish()


def guessed(trial: Trial, _device: str) -> TrialResult:
    """Judge a trial without training it, to count trials: large networks are better, by and large."""
    plan = plan_of(parse_architecture(dict(trial.architecture)), Shape(3, 64, 128), len(NAMES))
    return trial.done(math.log(plan.macs()) + Random(trial.seed).gauss(0, GUESSED_NOISE))


def estimate(options: argparse.Namespace) -> str:
    """Return in words what the comparison will take: trials by search with made-up results, trainings, steps."""
    setting = setting_of(options)
    recipe = recipe_of(setting, options)
    task, evaluator = locate(setting.data).task, Evaluator(work=guessed)
    lines, total = ["| entrant | trials | rounds | compute, 10^12 | of the limit |", "|---" * 5 + "|"], 0
    problem = Problem(
        space=recipe.space,
        cost=recipe.cost,  # type: ignore[arg-type]
        objective=Within(limit=recipe.limit or math.inf),
        task=task,
        image=Shape(3, *recipe.image),
        evaluator=evaluator,
        executor=recipe.executor,
        limit=recipe.limit,
    )
    found = entrants_of(problem, setting, options.compute, lambda _, work: work())
    for name, row in found.items():
        total += row["trials"]
        figures = f"{row['trials']} | {row['rounds']} | {row['compute'] / 1e12:.3g} | {row['used']:.0%}"
        lines.append(f"| {name} | {figures} |")
    finals = len(NAMES) * options.repeats
    steps = options.seeds * (total * setting.trial + finals * setting.training)
    lines += [
        "",
        f"For each of {options.seeds} seeds about {total} trials of {setting.trial} steps and {finals} trainings of",
        f"{setting.training} steps, of {setting.batch} images: {steps:,} steps in all. Results were made up: real ones",
        "take other directions.",
    ]
    return "\n".join(lines)


def timed(done: Mapping[str, Mapping[str, Any]], options: argparse.Namespace) -> dict[str, float]:
    """Return the measured milliseconds of all finalists by fingerprint; those not measured yet are, in turns."""
    if options.target is None or options.show is not None:
        return {}
    journal = Journal(options.out, "times", Timed)
    times = {row.network: row.median_ms for row in journal.rows if row.target == options.target}
    archs = [parse_architecture(row[name]["architecture"]) for row in done.values() for name in NAMES]
    missing = {mark: arch for arch in archs if (mark := fingerprint_of(arch)) not in times}
    image, classes = Shape(3, *parse_size(options.image)), locate(options.data).task.outputs
    plans = [plan_of(arch, image, classes) for arch in missing.values()]
    taken = time_networks(plans, parse_target(options.target)) if plans else []
    for mark, (_, median_ms) in zip(missing, taken, strict=True):
        journal.add(Timed(target=options.target, network=mark, median_ms=round(median_ms, 5)))
        times[mark] = median_ms
    return times


def table(done: Mapping[str, Mapping[str, Any]], times: Mapping[str, float] | None = None) -> str:
    """Return a line for each entrant: mIoU over seeds and trainings, price, trials and compute."""
    if not done:
        return "no seed is finished"
    scores = {name: [fmean(scores_of(row, name)) for row in done.values()] for name in NAMES}
    unit = next(iter(done.values()))[ALL]["unit"]
    lines = [
        f"| entrant | mIoU % | each seed | cost, {scaled(unit)[1]} | of the limit | measured, ms | trials | "
        "compute, 10^12 | of the first | ahead of the first |",
        "|---" * 10 + "|",
    ]
    for name in NAMES:
        rows = [row[name] for row in done.values()]
        spent = [row[name]["compute"] / row[ALL]["compute"] for row in done.values()]
        measured = [
            times[mark]
            for row in rows
            if times and (mark := fingerprint_of(parse_architecture(row["architecture"]))) in times
        ]
        ahead = sum(score > first for score, first in zip(scores[name], scores[ALL], strict=True))
        short = sum(row["used"] < LEAST_USED for row in rows)
        cells = [
            name,
            spread(scores[name]),
            " ".join(f"{score:.1f}" for score in scores[name]),
            f"{fmean(row['cost'] for row in rows) * scaled(unit)[0]:.3g}",
            f"{fmean(row['used'] for row in rows):.0%}" + (f" ({short} ended below)" if short else ""),
            f"{fmean(measured):.3g}" if measured else "-",
            f"{fmean(row['trials'] for row in rows):.0f}",
            f"{fmean(row['compute'] for row in rows) / 1e12:.3g}",
            f"{fmean(spent):.0%}",
            "" if name == ALL else f"{ahead} of {len(rows)}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def scaled(unit: str) -> tuple[float, str]:
    """Return the factor and the unit that costs are shown in."""
    return (1.0, unit) if unit == "ms" else (1e-6, f"M {unit}")


def parser_of() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_flags(parser)
    parser.set_defaults(steps=14)  # Table 4
    add_trial_flag(parser)
    parser.add_argument("--limit", default="10MMACs", help="of the price of finalists, e.g. 400MMACs, 0.3ms")
    parser.add_argument("--target", help="price by latency, e.g. cuda/graph/fp16; by default MACs")
    parser.add_argument("--minutes", type=float, default=3.0, help="for fitting prices to the target")
    parser.add_argument(
        "--compute", type=float, help="multiply-accumulates that trials of an entrant may cost"
    )
    add_repeat_flags(parser)
    return parser


def run_piece(piece: str, options: argparse.Namespace) -> None:
    """Carry out the comparison of one seed."""
    torch.set_num_threads(options.threads)
    setting = setting_of(options)
    about = {name: getattr(options, name) for name in ("limit", "target", "compute")}
    record = Record(options.out / f"{piece}.json", asdict(setting) | about)
    compare(Bench(setting, options.cache), record, int(piece.partition("-")[2]), options)


def prepare_prices(options: argparse.Namespace) -> None:
    """Fit the prices of a target, if there are none yet: before several processes disturb each other."""
    if options.target is None or options.show or prices_file(options.out, options.target).exists():
        return
    subject = CalibrationSubject(
        space=ScalablePath(),
        image=parse_size(options.image),
        classes=locate(options.data).task.outputs,
        target=options.target,
    )
    fit_prices(subject, options.out, minutes=options.minutes)


def main() -> None:
    """Run what is missing and print the table."""
    options = parse_flags(parser_of())
    if options.only:
        run_piece(options.only, options)
        return
    prepare_prices(options)
    if options.dry_run:
        print(estimate(options))
        return
    done = records_of("benchmarks.lpsnet_dimensions", seeds_of(options), options=options)
    print(table(done, timed(done, options)))


if __name__ == "__main__":
    main()
