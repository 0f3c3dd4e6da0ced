"""Search an architecture on one dataset: the recipe behind `segtailor search`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from segtailor.core.atomic import write_json, write_text
from segtailor.core.codec import Json, Tagged, from_json, to_json
from segtailor.core.cost import Objective, Within
from segtailor.core.errors import Unsupported
from segtailor.core.job import Job, Step
from segtailor.core.plan import Plan, Shape
from segtailor.core.ranges import check_seed
from segtailor.core.registry import (
    COSTS,
    EVALUATORS,
    EXECUTORS,
    OBJECTIVES,
    OPERATORS,
    SPACES,
    STRATEGIES,
)
from segtailor.core.space import Architecture, SearchSpace, architecture_document, fingerprint_of
from segtailor.core.strategy import Candidate, Executor, Judged, Problem, Strategy
from segtailor.core.task import KIND_FACTS, Preprocessing, Task
from segtailor.core.trust import refuse_reach
from segtailor.costs import LatencyTable, Macs, Use
from segtailor.costs.latency import PackLatency, RecipeCost, TargetLatency, open_cost
from segtailor.data.dataset import Dataset, preprocessing_of, scaled_as
from segtailor.data.locate import locate
from segtailor.nets.bundle import Model, save_bundle
from segtailor.recipes.evaluators import evaluation, supernet_facts
from segtailor.report.charts import Mark, draw_chart, draw_front
from segtailor.runs import Context, Layout
from segtailor.spaces.networks import known_architectures
from segtailor.spaces.starts import NONE, open_source, start_facts, start_supernet
from segtailor.strategies import Expansion, Ray, Serial
from segtailor.strategies.evaluators.shared import SharedEvaluator
from segtailor.strategies.evaluators.staged import StagedEvaluator
from segtailor.strategies.evaluators.train import TrainEvaluator
from segtailor.strategies.gradient import GradientSearch
from segtailor.strategies.gradient_settings import Gradient
from segtailor.strategies.halves import HalvedTrain
from segtailor.strategies.one_shot import OneShot, OneShotSearch
from segtailor.strategies.saved_supernet import RemainingSpace
from segtailor.strategies.trials import TrialSearch
from segtailor.training import distributed
from segtailor.training.device import pick_device

MAX_FRONT_BUNDLES = 16  # networks of a front that are kept with their weights

RecipeEvaluator: TypeAlias = TrainEvaluator | StagedEvaluator | SharedEvaluator


@dataclass(frozen=True, kw_only=True)
class SearchRecipe:
    """Everything that decides a search; running it again is the reproduction.

    `image` is the size (height, width) that networks are priced at, `limit` the hard budget in the unit of the cost.
    Without an objective quality alone counts. `evaluator` judges the candidates of a search by trials; `judging` is the
    share of the training split that candidates are judged on. After `seconds` a search by trials ends with what it has.
    `start` is where the weights of candidates come from before their training (`spaces.starts`; not `auto`, which the
    command line turns into a name); the evaluator `staged` names the weights of its encoder itself.
    """

    name: str
    data: str
    image: tuple[int, int]
    space: Annotated[SearchSpace, Tagged(SPACES)]
    strategy: Annotated[Strategy, Tagged(STRATEGIES)]
    evaluator: Annotated[RecipeEvaluator, Tagged(EVALUATORS)]
    judging: float = 0.5
    cost: Annotated[RecipeCost, Tagged(COSTS)] = field(default_factory=Macs)
    limit: float | None = None
    objective: Annotated[Objective, Tagged(OBJECTIVES)] | None = None
    executor: Annotated[Executor, Tagged(EXECUTORS)] = field(default_factory=Serial)
    retries: int = 2
    seed: int = 0
    seconds: float | None = None
    start: str = NONE

    def __post_init__(self) -> None:
        check_seed(self.seed)

    def job(self, context: Context) -> Searching:
        """Check that everything fits together, and return the job."""
        if distributed.world().size > 1:
            raise Unsupported(
                "a search starts its own workers; run it without torchrun and give e.g. --executor processes."
            )
        problem = self.problem(context)
        return Searching(search=self.strategy.job(problem), recipe=self, problem=problem, context=context)

    def problem(self, context: Context) -> Problem:
        """Return what the strategy is asked to solve."""
        if isinstance(self.executor, Ray) and self.executor.address is not None:
            refuse_reach(
                f"send work to the Ray cluster at '{self.executor.address}'", trusted=context.trusted
            )
        dataset = self._scaled(locate(self.data))
        halves = HalvedTrain(dataset=dataset, share=self.judging).halves()
        target = self.cost.target if isinstance(self.cost, PackLatency | TargetLatency) else None
        use = Use(
            space=SPACES.name_of(type(self.space)),
            image=self.image,
            classes=dataset.task.outputs,
            target=target,
        )
        return Problem(
            space=self._space(),
            cost=open_cost(self.cost, use, copy=Layout(context.folder).cost_table),
            objective=self.objective or self._within_limit(),
            task=dataset.task,
            image=Shape(self.preprocessing.channels, *self.image),
            data=halves,
            evaluator=evaluation(self, context, task=dataset.task, halves=halves),
            executor=self.executor,
            device=str(pick_device(context.device)),
            seed=self.seed,
            limit=self.limit,
            retries=self.retries,
            cache=context.cache_folder / "trials",
            seconds=self.seconds,
            known=known_architectures(self.space),
            start=self._supernet_start(dataset.task, trusted=context.trusted),
            trusted=context.trusted,
        )

    @property
    def preprocessing(self) -> Preprocessing:
        """How the images of candidates are normalised."""
        if isinstance(self.strategy, OneShot):
            return self.strategy.preprocessing
        return self.evaluator.preprocessing if self._trains else Preprocessing()  # type: ignore[union-attr]

    @property
    def _trains(self) -> bool:
        """Whether every candidate gets a training of its own, which the evaluator describes."""
        return isinstance(self.evaluator, TrainEvaluator) and not isinstance(self.strategy, Gradient)

    def refuse_bands(self) -> None:
        """Raise `Unsupported` for a search that works on colour images alone."""
        if not isinstance(self.strategy, OneShot) and not self._trains:
            raise Unsupported(
                "searches by gradients, and the evaluators 'staged' and 'shared', work on colour images; for images of "
                "other bands use `search elastic`, or --strategy evolution with --evaluator train."
            )

    def _scaled(self, dataset: Dataset) -> Dataset:
        """Return the dataset; pictures of other bands are scaled by the recipe's ranges."""
        if getattr(dataset, "bands", None) is None:
            return dataset
        self.refuse_bands()
        return scaled_as(dataset, self.preprocessing)

    def _within_limit(self) -> Objective:
        """Return the objective of a search that names none: the quality, within the limit."""
        if self.limit is None:
            return Within(limit=math.inf)
        aim = self.strategy.aim if isinstance(self.strategy, OneShot) else 0.0
        return Within(limit=self.limit, least=aim * self.limit)

    def _supernet_start(self, task: Task, *, trusted: bool) -> Callable[[Any], object] | None:
        """Return what gives the supernet of a search by gradients its first weights."""
        if self.start == NONE or not isinstance(self.strategy, Gradient | OneShot):
            return None
        return partial(
            start_supernet,
            space=self.space,
            source=open_source(self.start, trusted=trusted),
            task=task,
            preprocessing=self.strategy.preprocessing,
        )

    def _space(self) -> SearchSpace:
        """Return the space without what a supernet that judges has lost, except for growing, which needs all of it."""
        if not isinstance(self.evaluator, SharedEvaluator) or isinstance(self.strategy, Expansion):
            return self.space
        facts = supernet_facts(self.evaluator)
        if not facts.removed:
            return self.space
        return RemainingSpace(space=self.space, options=facts.remaining)  # type: ignore[return-value]


def fitted_to_bands(recipe: SearchRecipe, dataset: Dataset) -> SearchRecipe:
    """Return a recipe with the statistics of a dataset whose images are no RGB; one that cannot use them raises."""
    found = preprocessing_of(dataset)
    if found.ranges is None:
        return recipe
    recipe.refuse_bands()
    strategy, evaluator = recipe.strategy, recipe.evaluator
    if isinstance(strategy, OneShot):
        strategy = replace(strategy, preprocessing=found)
    if isinstance(evaluator, TrainEvaluator):
        evaluator = replace(evaluator, preprocessing=found)
    return replace(recipe, strategy=strategy, evaluator=evaluator)


@dataclass(kw_only=True, eq=False, repr=False)
class Searching:
    """A search that writes its architectures, plans and plot when it is done."""

    search: Job
    recipe: SearchRecipe
    problem: Problem
    context: Context

    def preview(self) -> list[Candidate]:
        """Return the first candidates of a search by trials; a budget that no architecture meets raises."""
        if isinstance(self.search, TrialSearch | OneShotSearch):
            return list(self.search.preview())
        return []

    def steps(self) -> Iterator[Step]:
        """Search; the prices are kept with the run, which then depends on no file elsewhere."""
        table = Layout(self.context.folder).cost_table
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
        result: dict[str, Any] = dict(self.search.result())
        layout = Layout(self.context.folder)
        if isinstance(self.search, GradientSearch | OneShotSearch):
            self.search.save_supernet(layout.supernet)
        start = start_facts(self.recipe.start, trusted=self.context.trusted)
        if isinstance(self.search, OneShotSearch):
            self._write_front(layout, self.search, start)
        by_trial = {record["id"]: record for record in result["trials"]}
        for member in _members(result):
            self._write(layout, by_trial[member["trial"]])
        for role, outcome in result.get("roles", {}).items():
            records = {record["id"]: record for record in outcome["trials"]}
            self._write(layout, records[outcome["trial"]], role=role)
            outcome["architecture"] = str(layout.architecture(outcome["fingerprint"]))
        layout.report.mkdir(exist_ok=True)
        headline = KIND_FACTS[self.problem.task.kind].headline.label
        measure = "reward" if isinstance(self.recipe.evaluator, StagedEvaluator) else headline
        drawing = draw_front(
            _marks(result),
            title=f"{self.recipe.name} on {self.recipe.data}",
            unit=result["unit"],
            path=[member["trial"] for member in result.get("family") or result["front"]],
            path_name="family" if "family" in result else "front",
            measure=measure,
        )
        write_text(layout.report / "pareto.svg", drawing, what="Pareto plot")
        if "chart" in result:
            write_text(layout.report / "chart.svg", draw_chart(result["chart"]), what="chart of the study")
        return result | {
            "start": start,
            "architecture": str(layout.architecture(result["fingerprint"])),
            "report": str(layout.report / "pareto.svg"),
            "measure": measure,
        }

    def _write_front(self, layout: Layout, search: OneShotSearch, start: Mapping[str, Json]) -> None:
        """Write the networks of the front with their weights, as bundles: other budgets can be served from them."""
        for item in spread(search.front(), MAX_FRONT_BUNDLES):
            arch = item.candidate.architecture
            model = Model(
                network=search.network(arch),
                task=self.problem.task,
                preprocessing=search.preprocessing,
                provenance={
                    "data": self.recipe.data,
                    "train_split": "train",
                    "fingerprint": fingerprint_of(arch),
                    "search": self.recipe.name,
                    "seed": self.recipe.seed,
                    "start": dict(start),
                },
                numbers={"judged": item.quality, "cost": item.cost, "unit": self.problem.cost.unit},
            )
            save_bundle(layout.front(fingerprint_of(arch)), model)

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


def spread(front: Sequence[Judged], most: int) -> list[Judged]:
    """Return at most so many members of a front: the best one, and others that are evenly spread over their order."""
    if len(front) <= most:
        return list(front)
    step = (len(front) - 1) / max(1, most - 1)
    return [front[-1 - round(number * step)] for number in reversed(range(most))]


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


def _members(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return best, front, family and entrants, each trial once."""
    done = [row for row in result.get("study", []) if row["quality"] is not None]
    members = [result, *result["front"], *result.get("family", []), *done]
    return list({member["trial"]: member for member in members}.values())


def _marks(result: Mapping[str, Any]) -> list[Mark]:
    """Return a mark for every trial that was judged in full."""
    marks = []
    for record in result["trials"]:
        outcome, origin = record["result"], record["origin"]
        if outcome["status"] == "done" and record["budget"] == 1:
            how = " ".join(str(origin[key]) for key in ("entrant", "direction", "k") if key in origin)
            marks.append(
                Mark(
                    id=record["id"],
                    cost=outcome["cost"],
                    quality=outcome["quality"],
                    label=f"trial {record['id']} {how}".strip(),
                    name=str(origin.get("entrant", "")),
                )
            )
    return marks
