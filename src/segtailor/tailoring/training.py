"""The stages that train: a larger network of the family as teacher, the winner, and ready networks beside it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

from segtailor.core.codec import from_json
from segtailor.core.errors import RunProblem, UserError
from segtailor.core.space import Architecture, family_of
from segtailor.core.variation import sample
from segtailor.data.cache import open_pixels
from segtailor.nets.bundle import load_bundle
from segtailor.recipes.front import training_folder
from segtailor.recipes.recipe import parse_recipe
from segtailor.recipes.train import CARRIED_LR, TrainRecipe, usual_augment, usual_loss
from segtailor.runs import Layout
from segtailor.runs.layout import read_recipe
from segtailor.spaces.networks import count, resolve
from segtailor.spaces.published import architectures
from segtailor.spaces.starts import AUTO, MIN_SHARE, NONE, choose_start, start_share
from segtailor.tailoring.choosing import TEACHER_WORK
from segtailor.tailoring.machine import step_seconds
from segtailor.tailoring.stage import (
    SEARCHED,
    TRAINING_NOISE,
    BaselinesOutcome,
    ChosenNetwork,
    LengthsOutcome,
    ReadyOutcome,
    RepeatsOutcome,
    SearchOutcome,
    StageContext,
    TeacherOutcome,
    TimedNetwork,
    TrainedNetwork,
)
from segtailor.tailoring.time_plan import (
    MAX_LATE_SHARE,
    MAX_OVERTIME_SHARE,
    MIN_TRAIN_STEPS,
    RESERVED_TRAINING_SHARE,
    TrainingCost,
    closing_seconds,
    equal_time,
    extra_training_seconds,
)
from segtailor.training.distill import DistillSettings
from segtailor.training.settings import FitSettings
from segtailor.verbs.eval import evaluate

MIN_TEACHER_WORK, MAX_TEACHER_WORK = 1.5, 12.0  # multiply-accumulates, in those of the student
DRAWN_TEACHERS = 64  # random networks from which a teacher is taken if none is published
MIN_SECONDS_WITH_TEACHER = (
    1800.0  # of a tailoring: with it a step costs twice as much, and there are half as many
)
MIN_TEACHER_STEPS = 150  # a teacher that was trained for fewer steps does not help
TEACHER_SHARE = TEACHER_WORK / (
    1 + TEACHER_WORK
)  # of the stage's time; the rest trains the student for as many steps
SPARE_STEPS = 1.5  # of a training with a time, over those that its probe expects, which was disturbed perhaps
MIN_TRAINING_SECONDS = 1.0  # of a training whose time is over before it begins
WEIGHT_DECAY = 0.01  # of AdamW
FAST_STEPS, FAST_RATE = 2500, 2.0  # shorter trainings learn at a multiple of the rate: docs/results.md#rates
SHORT_STEPS, SHORT_EMA, EMA = (
    400,
    0.98,
    0.999,
)  # in shorter trainings a long average would hold the first steps


@dataclass(frozen=True, kw_only=True)
class NetworkTraining:
    """One training: which network, the name of its folder, the bundle of its teacher, and that of its first weights.

    Without a `start` it begins from what was asked for, if that fits.
    """

    folder: str
    model: Architecture
    teacher: str | None = None
    start: str | None = None


def train_teacher(stage: StageContext, chosen: ChosenNetwork, searched: SearchOutcome) -> TeacherOutcome:
    """Stage `teacher`: train a larger network of the same family, to distil from.

    The student is trained for as many steps without it: only a teacher that is clearly better is used.
    """
    asked = stage.recipe.request.seconds
    if asked is not None and asked < MIN_SECONDS_WITH_TEACHER:
        return _no_teacher(
            f"with less than {MIN_SECONDS_WITH_TEACHER / 60:.0f} minutes the student gains more from the time itself"
        )
    larger = larger_network(stage, chosen, searched)
    if larger is None:
        return _no_teacher("the family has no network of a fitting size")
    name, arch = larger
    training, steps = NetworkTraining(folder="teacher", model=arch), stage.recipe.effort.teacher_steps
    seconds = stage.seconds("teacher")
    if seconds is not None and not stage.begun("teacher"):
        begin = time.monotonic()
        step = step_seconds(training_recipe(stage, training, steps), stage.context)
        steps = TrainingCost(step=step).steps(TEACHER_SHARE * (seconds - (time.monotonic() - begin)))
        if steps < MIN_TEACHER_STEPS:
            return _no_teacher(
                f"{name} could be trained for {steps} steps only; its time is used for the student"
            )
        seconds = TEACHER_SHARE * (seconds - (time.monotonic() - begin))
    trained = _trained(stage, name, training, training_recipe(stage, training, steps, seconds=seconds))
    student = replace(_winner(stage, chosen, _no_teacher("")), folder="teacher-check")
    alone = _trained(stage, "student", student, training_recipe(stage, student, trained.steps))
    if trained.miou < alone.miou + TRAINING_NOISE:
        return _no_teacher(
            f"{name} has {trained.miou:.1%} after {trained.steps} steps, its student {alone.miou:.1%}: not ahead "
            f"by more than the noise of a training ({TRAINING_NOISE:.1%})"
        )
    return TeacherOutcome(**asdict(trained))


def _no_teacher(reason: str) -> TeacherOutcome:
    return TeacherOutcome(network=None, model=None, reason=reason)


def decide_lengths(
    stage: StageContext, chosen: ChosenNetwork, ready: ReadyOutcome, teacher: TeacherOutcome
) -> LengthsOutcome:
    """Stage `lengths`: decide, once, how long the winner is trained, and which ready networks as long beside it.

    Where a time was asked for, a probe of each training measures what its steps cost, and all train for the same time:
    what a user has is time, not steps. Otherwise all get the same number of steps.
    """
    names = tuple(row.network for row in ready.networks)
    if stage.left is None:
        return LengthsOutcome(steps=stage.recipe.effort.train_steps, networks=names)
    winner = _probed(stage, _winner(stage, chosen, teacher), chosen)
    others = [_probed(stage, _baseline(row.network, teacher), row) for row in ready.networks]
    preparing = mean(row.making_seconds for row in (chosen, *ready.networks))  # any of them may be exported
    left = (stage.remaining() or 0.0) - closing_seconds(preparing)
    shared = equal_time(winner, others, seconds=left)
    if winner.steps(shared.seconds) < MIN_TRAIN_STEPS:  # rather one network that is trained enough
        shared = equal_time(winner, [], seconds=left)
    decided = LengthsOutcome(
        steps=winner.steps(shared.seconds),
        networks=names[: shared.ready],
        seeds=shared.seeds,
        seconds=shared.seconds,
        making_seconds=preparing,
        costs_seconds=(winner, *others),
    )
    if decided.steps >= MIN_TRAIN_STEPS:
        return decided
    return _overtime(stage, replace(decided, networks=()), late=winner.seconds(MIN_TRAIN_STEPS) - left)


def _overtime(stage: StageContext, decided: LengthsOutcome, *, late: float) -> LengthsOutcome:
    """Train for the least number of steps although that ends `late` seconds late; if that is far too late, stop."""
    asked = stage.recipe.request.seconds or 0.0
    (winner, *_) = decided.costs_seconds or ()
    needed = winner.seconds(MIN_TRAIN_STEPS)
    steps = f"{MIN_TRAIN_STEPS} steps of training, the least that is useful,"
    if late <= MAX_OVERTIME_SHARE * asked:
        stage.tell(f"{steps} end about {late / 60:.1f} minutes after the time asked for: it is extended.")
        return replace(decided, steps=MIN_TRAIN_STEPS, seconds=needed)
    enough = (2 * needed + stage.recipe.effort.closing_seconds) / RESERVED_TRAINING_SHARE
    return replace(
        decided,
        steps=0,
        seconds=0.0,
        stop=f"Not enough time: {steps} take {needed / 60:.0f} minutes on this machine as it is now. "
        f"Give --time {math.ceil(enough / 60)}m, or stop other programs; nothing was exported.",
    )


def train_winner(
    stage: StageContext, chosen: ChosenNetwork, teacher: TeacherOutcome, lengths: LengthsOutcome
) -> TrainedNetwork:
    """Stage `train`: train the chosen network, with distillation from the teacher."""
    training = _winner(stage, chosen, teacher)
    steps = lengths.steps if lengths.seconds is None else round(SPARE_STEPS * lengths.steps)
    recipe = training_recipe(stage, training, steps, seconds=lengths.seconds, least_steps=MIN_TRAIN_STEPS)
    return _trained(stage, chosen.network, training, recipe)


def train_baselines(
    stage: StageContext, teacher: TeacherOutcome, lengths: LengthsOutcome, winner: TrainedNetwork
) -> BaselinesOutcome:
    """Stage `baselines`: train ready networks in the same way and for as long as the winner.

    If less time is left than was expected, all but the first are left out; that one is shortened only if necessary,
    which the verdict says.
    """
    rows: list[TrainedNetwork] = []
    for number, name in enumerate(lengths.networks):
        training = _baseline(name, teacher)
        affordable = _baseline_seconds(stage, lengths, number)
        if affordable is None or lengths.seconds is None or lengths.costs_seconds is None:
            recipe = training_recipe(stage, training, winner.steps)
        else:
            if number and affordable < lengths.seconds and not stage.begun(training.folder):
                break
            seconds = min(lengths.seconds, affordable)
            steps = round(SPARE_STEPS * lengths.costs_seconds[1 + number].steps(seconds))
            recipe = training_recipe(stage, training, steps, seconds=seconds)
        rows.append(_trained(stage, name, training, recipe))
    return BaselinesOutcome(networks=tuple(rows), left_out=lengths.networks[len(rows) :])


def train_repeats(
    stage: StageContext,
    chosen: ChosenNetwork,
    teacher: TeacherOutcome,
    lengths: LengthsOutcome,
    winner: TrainedNetwork,
    baselines: BaselinesOutcome,
) -> RepeatsOutcome:
    """Stage `repeats`: train the winner and the best ready network again, with another seed, if there is time.

    Two trainings of one network differ; what the two networks differ by says something only if it is more.
    """
    if lengths.seeds < 2 or not baselines.networks:
        return RepeatsOutcome()
    best = max(baselines.networks, key=lambda row: row.miou)
    number = lengths.networks.index(best.network)
    late = _baseline_seconds(stage, lengths, number)
    again = [replace(_winner(stage, chosen, teacher), folder=f"{training_folder(SEARCHED)}-again")]
    again.append(replace(_baseline(best.network, teacher), folder=f"{training_folder(best.network)}-again"))
    needed = 2 * (lengths.seconds or 0.0)
    if late is not None and late < needed and not any(stage.begun(training.folder) for training in again):
        stage.tell("no time is left for trainings with a second seed")
        return RepeatsOutcome()
    rows = []
    for trained, training in zip((winner, best), again, strict=True):
        recipe = training_recipe(stage, training, trained.steps)
        repeated = replace(recipe, fit=replace(recipe.fit, seed=recipe.fit.seed + 1))
        rows.append(_trained(stage, trained.network, training, repeated))
    return RepeatsOutcome(networks=tuple(rows))


def _baseline_seconds(stage: StageContext, lengths: LengthsOutcome, number: int) -> float | None:
    """Return how long the steps of a ready network may take, where a time was asked for."""
    remaining, asked = stage.remaining(), stage.recipe.request.seconds
    costs, preparing = lengths.costs_seconds, lengths.making_seconds
    if remaining is None or asked is None or costs is None or preparing is None:
        return None
    closing = closing_seconds(preparing, untimed=1 + number)
    left = remaining + MAX_LATE_SHARE * asked - closing - costs[1 + number].rest
    return max(left, MIN_TRAINING_SECONDS)


def larger_network(
    stage: StageContext, chosen: ChosenNetwork, searched: SearchOutcome
) -> tuple[str, Architecture] | None:
    """Return the name and architecture of a network of the family with about four times the multiply-accumulates.

    The teacher that was searched with the network comes first, then published networks, then random ones of the space.
    """
    crop, student = stage.recipe.crop, resolve(chosen.architecture)
    student_macs = count(student, image=crop).macs
    for group in _relatives(stage, family_of(student), searched):
        ratios = {name: count(arch, image=crop).macs / student_macs for name, arch in group.items()}
        fitting = {
            name: ratio for name, ratio in ratios.items() if MIN_TEACHER_WORK <= ratio <= MAX_TEACHER_WORK
        }
        if fitting:
            name = min(fitting, key=lambda name: abs(fitting[name] / TEACHER_WORK - 1))
            return name, group[name]
    return None


def _relatives(
    stage: StageContext, family: str, searched: SearchOutcome
) -> Iterator[dict[str, Architecture]]:
    """Yield networks of a family by name: the searched teacher, the published ones, random ones of the space."""
    if searched.teacher is not None:
        yield {"searched teacher": resolve(searched.teacher)}
    yield {name: arch for name in architectures() if family_of(arch := resolve(name)) == family}
    space, rng = stage.space, Random(stage.recipe.request.seed)
    yield {f"drawn network {number}": sample(space, rng) for number in range(DRAWN_TEACHERS)}


def _winner(stage: StageContext, chosen: ChosenNetwork, teacher: TeacherOutcome) -> NetworkTraining:
    return NetworkTraining(
        folder=training_folder(SEARCHED),
        model=resolve(chosen.architecture),
        teacher=teacher.model,
        start=searched_weights(stage, chosen),
    )


def searched_weights(stage: StageContext, chosen: ChosenNetwork) -> str | None:
    """Return the bundle that a search left of the chosen network, if it did: its weights know the data already."""
    if chosen.fingerprint is None:
        return None
    bundle = Layout(stage.run_folder("search")).front(chosen.fingerprint)
    return str(bundle) if bundle.is_dir() else None


def _baseline(name: str, teacher: TeacherOutcome) -> NetworkTraining:
    return NetworkTraining(folder=training_folder(name), model=resolve(name), teacher=teacher.model)


def _probed(stage: StageContext, training: NetworkTraining, timed: TimedNetwork) -> TrainingCost:
    """Measure what a training costs by doing some of its steps."""
    recipe = stage.recipe
    step = step_seconds(training_recipe(stage, training, recipe.effort.train_steps), stage.context)
    images = len(open_pixels(stage.dataset, "val", stage.context.cache_folder))
    batches = images * math.prod(recipe.image) / (recipe.batch * math.prod(recipe.crop))
    rest = extra_training_seconds(timed.making_seconds, step=step, batches=batches)
    return TrainingCost(step=step, rest=rest)


def training_recipe(
    stage: StageContext,
    training: NetworkTraining,
    steps: int,
    *,
    seconds: float | None = None,
    least_steps: int = 1,
) -> TrainRecipe:
    """Return a training of so many steps; fewer, but at least `least_steps`, if they take longer than `seconds`."""
    recipe = stage.recipe
    fit = FitSettings(
        steps=steps,
        batch=recipe.batch,
        optimiser="adamw",
        lr=recipe.lr * (FAST_RATE if steps < FAST_STEPS else 1.0),
        carried_lr=CARRIED_LR,
        weight_decay=WEIGHT_DECAY,
        loss=usual_loss(stage.dataset.task.kind),
        ema=SHORT_EMA if steps < SHORT_STEPS else EMA,
        precision=recipe.precision,
        seed=recipe.request.seed,
        distill=None if training.teacher is None else DistillSettings(kind="kl"),
    )
    if seconds is not None:
        fit = replace(fit, seconds=round(max(seconds, MIN_TRAINING_SECONDS), 1), least_steps=least_steps)
    return TrainRecipe(
        architecture=training.model,
        data=recipe.data,
        augment=usual_augment(stage.dataset.task.kind, recipe.crop),
        fit=fit,
        val_split="val" if "val" in stage.dataset.splits else None,
        reparameterise=True,
        preprocessing=stage.preprocessing,
        teacher=training.teacher,
        start=training.start or network_start(stage, training.model),
        settled=None if training.start is None else network_start(stage, training.model),
    )


def network_start(stage: StageContext, arch: Architecture) -> str:
    """Return where the weights of a network come from: what was asked for, if it fits; the same for all networks."""
    asked = stage.recipe.request.start
    chosen, _ = choose_start(asked, arch, stage.dataset.task)
    if asked in (AUTO, NONE):
        return chosen
    try:
        share = start_share(chosen, arch, stage.dataset.task)
    except UserError as problem:
        raise RunProblem(f"--start {asked}: {problem}") from None
    return chosen if share >= MIN_SHARE else NONE


def _trained(
    stage: StageContext, name: str, training: NetworkTraining, recipe: TrainRecipe
) -> TrainedNetwork:
    """Train in a separate folder, and score on the validation split."""
    result: Mapping[str, Any] = stage.carry_out(recipe, training.folder)
    run, model = stage.run_folder(training.folder), str(result["model"])
    kept = parse_recipe(read_recipe(run), what=f"recipe of {run}")  # of an earlier session, perhaps
    scores = evaluate(model, stage.recipe.data, split="val", context=stage.context)
    document = {
        "network": name,
        "run": str(run),
        "model": model,
        "steps": result["steps"],
        "seconds": kept.fit.seconds if isinstance(kept, TrainRecipe) else None,
        "miou": scores["miou"],
        "params": count(load_bundle(Path(model)).architecture).params,
    }
    return from_json(TrainedNetwork, document, what=f"training {training.folder}", error=RunProblem)
