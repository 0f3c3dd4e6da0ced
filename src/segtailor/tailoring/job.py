"""The job: stage after stage. Every outcome is written once, and an interrupted tailoring continues after the last."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, TypeVarTuple

from segtailor.core.atomic import write_json
from segtailor.core.codec import Json, read_json
from segtailor.core.errors import Interrupted, RunProblem
from segtailor.core.job import Step
from segtailor.core.text import command, path_argument
from segtailor.data.dataset import Dataset
from segtailor.data.locate import locate
from segtailor.recipes.recipe import recipe_document
from segtailor.runs import Context, Display, Layout, Quiet, execute
from segtailor.tailoring.delivering import decide_int8, export, measure_contract, recommend, time_layers
from segtailor.tailoring.facts import examine_data
from segtailor.tailoring.recipe import TailorRecipe
from segtailor.tailoring.reporting import Delivery, NoDelivery, deliver
from segtailor.tailoring.searching import fit_prices, search
from segtailor.tailoring.selecting import choose, find_ready, measure_fastest
from segtailor.tailoring.stage import (
    BaselinesOutcome,
    ChosenNetwork,
    ContractOutcome,
    DataOutcome,
    ExportOutcome,
    FastestOutcome,
    Int8Outcome,
    LayersOutcome,
    LengthsOutcome,
    PackOutcome,
    ReadyOutcome,
    Recommendation,
    RepeatsOutcome,
    SearchOutcome,
    StageContext,
    TeacherOutcome,
    TrainedNetwork,
    read_outcome,
    write_outcome,
)
from segtailor.tailoring.time_plan import pace
from segtailor.tailoring.training import (
    decide_lengths,
    train_baselines,
    train_repeats,
    train_teacher,
    train_winner,
)
from segtailor.verbs.report import report

STAGE_NAMES = (
    "data",
    "fastest",
    "pack",
    "search",
    "choose",
    "ready",
    "teacher",
    "lengths",
    "train",
    "baselines",
    "repeats",
    "recommend",
    "export",
    "int8",
    "contract",
    "layers",
)
CLOCK_FILE = "clock.json"  # seconds of each stage, over all sessions

T = TypeVar("T")
Inputs = TypeVarTuple("Inputs")


def carry_out(recipe: TailorRecipe, context: Context) -> dict[str, Json]:
    """Do the stages that are not done yet in `context.folder`; a finished tailoring returns its result."""
    result = execute(
        lambda: recipe.job(context),
        context.folder,
        recipe_document(recipe),
        display=MessagesOnly(context.display or Quiet()),
        policy=context.policy,
    )
    report([context.folder])  # again, because only now the run is finished and the page says so
    return result


@dataclass(kw_only=True, eq=False, repr=False)
class Tailoring:
    """All stages in their order, then the report."""

    recipe: TailorRecipe
    context: Context
    runner: StageRunner | None = None
    ending: Delivery | NoDelivery | None = None

    def steps(self) -> Iterator[Step]:
        """Do stage by stage; one that was done before is only read."""
        self.runner = StageRunner(recipe=self.recipe, context=self.context, dataset=locate(self.recipe.data))
        self.ending = yield from _stages(self.runner)

    def save(self, folder: Path) -> None:
        """Nothing to write: every stage writes its outcome."""

    def load(self, folder: Path) -> None:
        """Nothing to read: the outcomes of stages are read by `steps`."""

    def result(self) -> Mapping[str, Json]:
        """Write the report and return the figures."""
        if self.runner is None or self.ending is None:
            raise RuntimeError("the result of a tailoring was asked for before its steps")
        return deliver(self.runner.stage_context("report"), self.ending, seconds=self.runner.clock())


def _stages(run: StageRunner) -> Generator[Step, None, Delivery | NoDelivery]:
    """Do all stages; each gets the outcomes that it needs."""
    data = yield from run.stage("data", DataOutcome, examine_data)
    fastest = yield from run.stage("fastest", FastestOutcome, measure_fastest)
    if fastest.stop is not None:
        return NoDelivery.of_timed(fastest, data=data, reason=fastest.stop)
    pack = yield from run.stage("pack", PackOutcome, fit_prices)
    searched = yield from run.stage("search", SearchOutcome, search, pack)
    chosen = yield from run.stage("choose", ChosenNetwork, choose, fastest, pack, searched)
    ready = yield from run.stage("ready", ReadyOutcome, find_ready, fastest, chosen)
    teacher = yield from run.stage("teacher", TeacherOutcome, train_teacher, chosen, searched)
    lengths = yield from run.stage("lengths", LengthsOutcome, decide_lengths, chosen, ready, teacher)
    if lengths.stop is not None:
        return NoDelivery.of_timed(chosen, data=data, reason=lengths.stop)
    winner = yield from run.stage("train", TrainedNetwork, train_winner, chosen, teacher, lengths)
    baselines = yield from run.stage("baselines", BaselinesOutcome, train_baselines, teacher, lengths, winner)
    repeats = yield from run.stage(
        "repeats", RepeatsOutcome, train_repeats, chosen, teacher, lengths, winner, baselines
    )
    best = yield from run.stage(
        "recommend", Recommendation, recommend, chosen, ready, winner, baselines, repeats
    )
    if best.stop is not None:
        return NoDelivery.of_trained(best, data=data, reason=best.stop)
    yield from run.stage("export", ExportOutcome, export, best)
    int8 = yield from run.stage("int8", Int8Outcome, decide_int8, best)
    contract = yield from run.stage("contract", ContractOutcome, measure_contract, best, int8)
    layers = yield from run.stage("layers", LayersOutcome, time_layers, best)
    return Delivery(
        data=data,
        pack=pack,
        searched=searched,
        chosen=chosen,
        teacher=teacher,
        best=best,
        int8=int8,
        contract=contract,
        layers=layers,
    )


@dataclass(frozen=True, kw_only=True)
class StageRunner:
    """Does one stage after the other, and measures how long each takes."""

    recipe: TailorRecipe
    context: Context
    dataset: Dataset

    def stage(
        self,
        name: str,
        kind: type[T],
        work: Callable[[StageContext, *Inputs], T],
        *inputs: *Inputs,
    ) -> Generator[Step, None, T]:
        """Return the outcome of a stage: read it if it is there, else do the stage and write it."""
        folder = Layout(self.context.folder).stages
        folder.mkdir(parents=True, exist_ok=True)
        file, number, total = folder / f"{name}.json", STAGE_NAMES.index(name) + 1, len(STAGE_NAMES)
        if file.exists():
            outcome, message = read_outcome(kind, file, stage=name), f"{name}: done before"
        else:
            self.context.tell(f"stage {number} of {total}: {name}")
            outcome, message = self._timed(name, work, *inputs), None
            write_outcome(file, outcome, stage=name)
        yield Step(phase="stages", done=number, total=total, message=message)
        return outcome

    def stage_context(self, name: str) -> StageContext:
        """Return what a stage is given when it begins now."""
        asked, left = self.recipe.request.seconds, None
        if asked is not None:
            left = asked - self.recipe.planning_seconds - sum(self.clock().values())
        return StageContext(
            recipe=self.recipe,
            context=self.context,
            dataset=self.dataset,
            pace=pace(self.recipe.effort, name, left=left),
            left=left,
        )

    def clock(self) -> dict[str, float]:
        """Return the seconds of each stage, with those of earlier sessions."""
        file = Layout(self.context.folder).stages / CLOCK_FILE
        if not file.exists():
            return {}
        seconds = dict(read_json(file, what="clock of the stages", error=RunProblem))
        return {str(name): float(value) for name, value in seconds.items()}

    def _timed(self, name: str, work: Callable[[StageContext, *Inputs], T], *inputs: *Inputs) -> T:
        begin = time.monotonic()
        try:
            return work(self.stage_context(name), *inputs)
        except Interrupted:
            raise Interrupted(
                f"stopped in stage '{name}' and saved; go on with: "
                + command("segtailor", "resume", path_argument(self.context.folder))
            ) from None
        finally:
            clock = self.clock()
            clock[name] = round(clock.get(name, 0.0) + time.monotonic() - begin, 2)
            write_json(Layout(self.context.folder).stages / CLOCK_FILE, clock, what="clock of the stages")


class MessagesOnly:
    """Shows the messages of a tailoring; the runs of its stages show their progress themselves."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def open(self, title: str) -> None:
        """Begin."""
        self._display.message(title)

    def step(self, step: Step) -> None:
        """Show the message of a step, if it has one."""
        if step.message:
            self._display.message(step.message)

    def message(self, text: str) -> None:
        """Show a message."""
        self._display.message(text)

    def close(self) -> None:
        """End."""
