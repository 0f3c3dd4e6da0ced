"""Training in stages, each from the weights of the one before: other data, rates and coefficients in every stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from segtailor.core.atomic import write_json
from segtailor.core.codec import Json, read_json
from segtailor.core.errors import RunProblem, UserError
from segtailor.core.job import Step
from segtailor.recipes.recipe import RECIPES, Place
from segtailor.recipes.training import Training, TrainRecipe

STAGE = "stage.json"  # inside a checkpoint


@RECIPES.register("train_stages")
@dataclass(frozen=True, kw_only=True)
class StagedTrainRecipe:
    """Complete training recipes of one architecture, carried out one after the other."""

    stages: tuple[TrainRecipe, ...]

    def __post_init__(self) -> None:
        if not self.stages:
            raise UserError("a training in stages needs at least one stage.")

    @property
    def data(self) -> str:
        """The dataset of the last stage, which the bundle is made for."""
        return self.stages[-1].data

    def job(self, place: Place) -> StagedTraining:
        """Return the job, at its first stage."""
        return StagedTraining(recipe=self, place=place)


@dataclass(kw_only=True, eq=False, repr=False)
class StagedTraining:
    """One training at a time; the last one writes the bundle."""

    recipe: StagedTrainRecipe
    place: Place
    stage: int = 0
    before: int = 0  # steps of finished stages
    training: Training = field(init=False)

    def __post_init__(self) -> None:
        self.training = self.recipe.stages[0].job(self.place)

    def steps(self) -> Iterator[Step]:
        """Train stage after stage; the beginning of a stage asks for a checkpoint."""
        count = len(self.recipe.stages)
        while True:
            phase = f"stage {self.stage + 1} of {count}"
            for step in self.training.steps():
                total = None if step.total is None else self.before + step.total
                yield replace(step, phase=phase, done=self.before + step.done, total=total)
            if self.stage + 1 == count:
                return
            weights = self.training.fit.weights()
            self.before += self.training.fit.done
            self.stage += 1
            self.training = self.recipe.stages[self.stage].job(self.place, weights=weights)
            yield Step(phase=f"stage {self.stage + 1} of {count}", done=self.before, checkpoint=True)

    def save(self, folder: Path) -> None:
        """Write the stage and its training state."""
        self.training.save(folder)
        write_json(folder / STAGE, {"stage": self.stage, "before": self.before}, what="stage of the training")

    def load(self, folder: Path) -> None:
        """Restore the stage and its training state."""
        found = read_json(folder / STAGE, what="stage of the training", error=RunProblem)
        self.stage, self.before = int(found["stage"]), int(found["before"])
        self.training = self.recipe.stages[self.stage].job(self.place)
        self.training.load(folder)

    def result(self) -> Mapping[str, Json]:
        """Return the figures of the last stage."""
        return {**self.training.result(), "stages": len(self.recipe.stages)}
