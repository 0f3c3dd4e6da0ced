"""Search an architecture on one dataset: the recipe behind `segtailor search`, and its workers' entry."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from segtailor import spaces as spaces  # registers the families in a fresh worker
from segtailor.core.atomic import write_json, write_text
from segtailor.core.codec import Json, fingerprint, from_json, to_json
from segtailor.core.errors import Unsupported, unknown
from segtailor.core.job import Job, Step
from segtailor.core.objective import Linear, Objective, Power, Within
from segtailor.core.plan import OPERATORS, Plan, Shape
from segtailor.core.registry import Registry
from segtailor.core.space import SPACES, Architecture, architecture_document
from segtailor.core.strategy import STRATEGIES, Candidate, Evaluator, Problem, Trial, TrialResult
from segtailor.costs import LatencyTable, Use
from segtailor.data.cache import open_pixels
from segtailor.data.locate import locate
from segtailor.recipes.parts import CostSpec, ExecutorSpec, Part
from segtailor.recipes.recipe import RECIPES, Place
from segtailor.report.pareto import Mark, draw_front
from segtailor.runs import Layout
from segtailor.runs.environment import environment
from segtailor.search import gradient_settings as gradient_settings  # registers the strategy
from segtailor.search.evaluators.train import HalvedPixels, TrainEvaluator
from segtailor.search.halves import FIT, JUDGE, HalvedTrain
from segtailor.search.trials import TrialSearch
from segtailor.training import distributed
from segtailor.training.device import pick_device

OBJECTIVES: Registry[type[Objective]] = Registry("objective")
OBJECTIVES.add("within", Within)
OBJECTIVES.add("linear", Linear)
OBJECTIVES.add("power", Power)
EVALUATORS = ("train", "shared")


@RECIPES.register("search")
@dataclass(frozen=True, kw_only=True)
class SearchRecipe:
    """Everything that decides a search; running it again is the reproduction.

    `image` is the size (height, width) that networks are priced at, `limit` the hard budget in the unit of the cost.
    Without an objective quality alone counts. `training` is the short training that judges a candidate.
    """

    name: str
    space: Part
    strategy: Part
    data: str
    image: tuple[int, int]
    training: TrainEvaluator
    cost: CostSpec = field(default_factory=CostSpec)
    limit: float | None = None
    objective: Part | None = None
    evaluator: str = "train"
    executor: ExecutorSpec = field(default_factory=ExecutorSpec)
    retries: int = 2
    seed: int = 0

    def job(self, place: Place) -> Searching:
        """Check that everything fits together, and return the job."""
        if distributed.world().size > 1:
            raise Unsupported(
                "a search starts its own workers; run it without torchrun and give e.g. --executor processes."
            )
        strategy: Any = self.strategy.build(STRATEGIES)
        problem = self.problem(place)
        return Searching(search=strategy.job(problem), recipe=self, problem=problem, place=place)

    def problem(self, place: Place) -> Problem:
        """Turn names into objects."""
        self._check_evaluator()
        device = str(pick_device(place.device))
        dataset = locate(self.data)
        halves = HalvedTrain(dataset=dataset).halves()
        use = Use(
            space=self.space.kind, image=self.image, classes=dataset.task.outputs, target=self.cost.target
        )
        evaluator = Evaluator(
            work=f"{__name__}:evaluate",
            settings={
                "training": to_json(replace(self.training, fit=replace(self.training.fit, seed=self.seed))),
                "data": self.data,
                "cache": str(place.cache),
            },
            data=fingerprint([halves.fingerprint, environment()["packages"]]),
        )
        return Problem(
            space=self.space.build(SPACES),
            cost=self.cost.build(use, table=Layout(place.folder).cost_table),
            objective=self._objective(),
            task=dataset.task,
            image=Shape(3, *self.image),
            data=halves,
            evaluator=evaluator,
            executor=self.executor.build(device),
            device=device,
            seed=self.seed,
            limit=self.limit,
            retries=self.retries,
            cache=place.cache / "trials",
        )

    def _objective(self) -> Objective:
        if self.objective is None:
            return Within(limit=self.limit or math.inf)
        return self.objective.build(OBJECTIVES)

    def _check_evaluator(self) -> None:
        if self.evaluator not in EVALUATORS:
            raise unknown("evaluator", self.evaluator, EVALUATORS)
        if self.evaluator == "shared":
            raise Unsupported(
                f"the evaluator 'shared' slices a trained supernet, and there is none for space '{self.space.kind}'. "
                "Use the evaluator 'train'."
            )


@dataclass(kw_only=True, eq=False, repr=False)
class Searching:
    """A search that writes what it found when it is done."""

    search: Job
    recipe: SearchRecipe
    problem: Problem
    place: Place

    def preview(self) -> list[Candidate]:
        """Return the first candidates of a search by trials; a budget that no architecture meets raises."""
        return list(self.search.preview()) if isinstance(self.search, TrialSearch) else []

    def steps(self) -> Iterator[Step]:
        """Search; the prices are kept with the run, which then depends on no file elsewhere."""
        table = Layout(self.place.folder).cost_table
        if isinstance(self.problem.cost, LatencyTable) and not table.exists():
            self.problem.cost.pack.write(table)
        yield from self.search.steps()

    def save(self, folder: Path) -> None:
        """Write results and prices."""
        self.search.save(folder)

    def load(self, folder: Path) -> None:
        """Restore results and prices."""
        self.search.load(folder)

    def retell(self, records: Iterable[Mapping[str, Json]]) -> None:
        """Learn what the journal holds; a search by gradients has all of it in its checkpoint."""
        if isinstance(self.search, TrialSearch):
            self.search.retell(records)

    def result(self) -> Mapping[str, Json]:
        """Write architectures, plans and the plot; return the figures."""
        found: dict[str, Any] = dict(self.search.result())
        layout = Layout(self.place.folder)
        by_trial = {record["id"]: record for record in found["trials"]}
        for member in _kept(found):
            self._write(layout, by_trial[member["trial"]])
        for role, outcome in found.get("roles", {}).items():
            records = {record["id"]: record for record in outcome["trials"]}
            self._write(layout, records[outcome["trial"]], role=role)
            outcome["architecture"] = str(layout.architecture(outcome["fingerprint"]))
        layout.report.mkdir(exist_ok=True)
        drawing = draw_front(
            _marks(found),
            title=f"{self.recipe.name} on {self.recipe.data}",
            unit=found["unit"],
            path=[member["trial"] for member in found.get("family") or found["front"]],
            path_name="family" if "family" in found else "front",
        )
        write_text(layout.report / "pareto.svg", drawing, what="Pareto plot")
        return found | {
            "architecture": str(layout.architecture(found["fingerprint"])),
            "report": str(layout.report / "pareto.svg"),
        }

    def _write(self, layout: Layout, record: Mapping[str, Any], **more: Json) -> None:
        """Write an architecture with where it comes from, and its plan."""
        kind = type(self.problem.space).architecture_type
        arch: Architecture = from_json(kind, record["architecture"], what="architecture")
        origin = {
            "recipe": self.recipe.name,
            "data": self.recipe.data,
            "trial": record["id"],
            "quality": record["result"]["quality"],
            "cost": record["result"]["cost"],
            "unit": self.problem.cost.unit,
            **record["origin"],
            **more,
        }
        layout.architectures.mkdir(exist_ok=True)
        write_json(
            layout.architecture(record["fingerprint"]),
            architecture_document(arch, origin),
            what="architecture",
        )
        plan = self.problem.space.plan(arch, self.problem.image, self.problem.task.outputs)
        write_json(layout.plan(record["fingerprint"]), plan_document(plan), what="plan")


def evaluate(trial: Trial, device: str) -> TrialResult:
    """Judge a trial in a worker: rebuild data and evaluator from the trial's plain settings."""
    settings = dict(trial.evaluator)
    data = _pixels(str(settings["data"]), str(settings["cache"]))
    training = from_json(TrainEvaluator, settings["training"], what="training of the evaluator")
    return training.judge(trial, data=data, device=torch.device(device))


@cache
def _pixels(data: str, folder: str) -> HalvedPixels:
    """Open the halves once per worker."""
    halved = HalvedTrain(dataset=locate(data))
    fit, judge = (open_pixels(halved, half, Path(folder)) for half in (FIT, JUDGE))
    return HalvedPixels(halved.task, fit, judge)


def plan_document(plan: Plan) -> dict[str, Json]:
    """Return a plan as plain data: every node with operator, inputs, shape and counts."""
    nodes: list[Json] = []
    for node in plan.nodes:
        call = plan.call(node.name)
        row: dict[str, Json] = {
            "name": node.name,
            "op": {"kind": OPERATORS.name_of(type(node.op)), **to_json(node.op)},
            "inputs": list(node.inputs),
            "stride": node.stride,
            "shape": list(plan.shape(node.name)),
            "macs": call.macs(),
            "params": call.params(),
        }
        nodes.append(row)
    return {"image": list(plan.image), "nodes": nodes, "outputs": dict(plan.outputs)}


def _kept(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return best, front, family and entrants, each trial once."""
    done = [row for row in found.get("study", []) if row["quality"] is not None]
    members = [found, *found["front"], *found.get("family", []), *done]
    return list({member["trial"]: member for member in members}.values())


def _marks(found: Mapping[str, Any]) -> list[Mark]:
    """Return a mark for every trial that was judged in full."""
    marks = []
    for record in found["trials"]:
        result, origin = record["result"], record["origin"]
        if result["status"] == "done" and record["budget"] == 1:
            how = " ".join(str(origin[key]) for key in ("entrant", "direction", "k") if key in origin)
            marks.append(
                Mark(
                    id=record["id"],
                    cost=result["cost"],
                    quality=result["quality"],
                    label=f"trial {record['id']} {how}".strip(),
                    name=str(origin.get("entrant", "")),
                )
            )
    return marks
