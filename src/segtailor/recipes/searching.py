"""Search an architecture on one dataset: the recipe behind `segtailor search`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from segtailor.core.atomic import write_json, write_text
from segtailor.core.codec import Json, from_json, to_json
from segtailor.core.errors import Unsupported
from segtailor.core.figures import KIND_FACTS
from segtailor.core.job import Job, Step
from segtailor.core.objective import Linear, Objective, Power, Within
from segtailor.core.plan import OPERATORS, Plan, Shape
from segtailor.core.ranges import check_seed
from segtailor.core.registry import Registry
from segtailor.core.space import SPACES, Architecture, SearchSpace, architecture_document
from segtailor.core.strategy import STRATEGIES, Candidate, Problem
from segtailor.costs import LatencyTable, Use
from segtailor.data.locate import locate
from segtailor.recipes import staged_judging as staged_judging  # registers the evaluator
from segtailor.recipes.evaluators import EVALUATORS, HALF, Judging, supernet_facts
from segtailor.recipes.parts import CostSpec, ExecutorSpec, Part
from segtailor.recipes.recipe import RECIPES, Place
from segtailor.report.charts import Mark, draw_chart, draw_front
from segtailor.runs import Layout
from segtailor.search import gradient_settings as gradient_settings  # registers the strategy
from segtailor.search.evaluators.shared import SharedEvaluator
from segtailor.search.evaluators.staged import StagedEvaluator
from segtailor.search.evaluators.train import TrainEvaluator
from segtailor.search.gradient import GradientSearch
from segtailor.search.halves import HalvedTrain
from segtailor.search.remaining import Remaining
from segtailor.search.trials import TrialSearch
from segtailor.training import distributed
from segtailor.training.device import pick_device

OBJECTIVES: Registry[type[Objective]] = Registry("objective")
OBJECTIVES.add("within", Within)
OBJECTIVES.add("linear", Linear)
OBJECTIVES.add("power", Power)

MEASURES = {"staged": "reward"}  # what an evaluator's quality is, where it is not the task's headline figure


@RECIPES.register("search")
@dataclass(frozen=True, kw_only=True)
class SearchRecipe:
    """Everything that decides a search; running it again is the reproduction.

    `image` is the size (height, width) that networks are priced at, `limit` the hard budget in the unit of the cost.
    Without an objective quality alone counts. `training` is the short training that judges a candidate, `staged` the
    one of the evaluator of that name, `judging` the share of the training split that candidates are judged by.
    `seconds` ends a search by trials early, with what it has by then.
    """

    name: str
    space: Part
    strategy: Part
    data: str
    image: tuple[int, int]
    training: TrainEvaluator
    staged: StagedEvaluator | None = None
    judging: float = HALF
    cost: CostSpec = field(default_factory=CostSpec)
    limit: float | None = None
    objective: Part | None = None
    evaluator: str = "train"
    shared: SharedEvaluator | None = None
    executor: ExecutorSpec = field(default_factory=ExecutorSpec)
    retries: int = 2
    seed: int = 0
    seconds: float | None = None

    def __post_init__(self) -> None:
        check_seed(self.seed)

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
        device = str(pick_device(place.device))
        dataset = locate(self.data)
        halves = HalvedTrain(dataset=dataset, share=self.judging).halves()
        use = Use(
            space=self.space.kind, image=self.image, classes=dataset.task.outputs, target=self.cost.target
        )
        judging = Judging(recipe=self, place=place, task=dataset.task, halves=halves)
        return Problem(
            space=self._space(),
            cost=self.cost.build(use, table=Layout(place.folder).cost_table),
            objective=self._objective(),
            task=dataset.task,
            image=Shape(3, *self.image),
            data=halves,
            evaluator=EVALUATORS.get(self.evaluator)(judging),
            executor=self.executor.build(device, trusted=place.trusted),
            device=device,
            seed=self.seed,
            limit=self.limit,
            retries=self.retries,
            cache=place.cache / "trials",
            seconds=self.seconds,
            trusted=place.trusted,
        )

    def _space(self) -> SearchSpace:
        """Return the space, without what a supernet that judges has lost; growing through it must stay possible."""
        space = self.space.build(SPACES)
        if self.evaluator != "shared" or self.shared is None or self.strategy.kind == "expansion":
            return space
        facts = supernet_facts(self.shared)
        whole = not facts.removed
        return space if whole else Remaining(space=space, options=facts.remaining)  # type: ignore[return-value]

    def _objective(self) -> Objective:
        if self.objective is None:
            return Within(limit=self.limit or math.inf)
        return self.objective.build(OBJECTIVES)


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
        if self.problem.evaluator is not None and self.problem.evaluator.note:
            yield Step(phase="search", done=0, message=self.problem.evaluator.note)
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
        if isinstance(self.search, GradientSearch):
            self.search.save_supernet(layout.supernet)
        by_trial = {record["id"]: record for record in found["trials"]}
        for member in _kept(found):
            self._write(layout, by_trial[member["trial"]])
        for role, outcome in found.get("roles", {}).items():
            records = {record["id"]: record for record in outcome["trials"]}
            self._write(layout, records[outcome["trial"]], role=role)
            outcome["architecture"] = str(layout.architecture(outcome["fingerprint"]))
        layout.report.mkdir(exist_ok=True)
        usual = KIND_FACTS[self.problem.task.kind].headline.label
        measure = MEASURES.get(self.recipe.evaluator, usual)
        drawing = draw_front(
            _marks(found),
            title=f"{self.recipe.name} on {self.recipe.data}",
            unit=found["unit"],
            path=[member["trial"] for member in found.get("family") or found["front"]],
            path_name="family" if "family" in found else "front",
            measure=measure,
        )
        write_text(layout.report / "pareto.svg", drawing, what="Pareto plot")
        if "chart" in found:
            write_text(layout.report / "chart.svg", draw_chart(found["chart"]), what="chart of the study")
        return found | {
            "architecture": str(layout.architecture(found["fingerprint"])),
            "report": str(layout.report / "pareto.svg"),
            "measure": measure,
        }

    def _write(self, layout: Layout, record: Mapping[str, Any], **more: Json) -> None:
        """Write an architecture with where it comes from, and its plan."""
        kind = self.problem.space.architecture_type
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
