"""What a stage may see: the recipe, where things lie, and what earlier stages found."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from segtailor.core.errors import RunProblem
from segtailor.core.target import Includes
from segtailor.data.locate import locate
from segtailor.recipes.recipe import Recipe, carry_out
from segtailor.runs import Context, Layout
from segtailor.tailoring.pacing import before_training, stage_seconds
from segtailor.tailoring.settings import TailorRecipe
from segtailor.targets.timing import Measurement, TimingSettings
from segtailor.verbs.bench import bench
from segtailor.verbs.resume import resume

OWN = "searched"  # the name of the network that was found, among ready ones
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # no part of it leads elsewhere
RUNS = 50  # of a network that is timed, at least


def timing(seconds: float) -> TimingSettings:
    """Return how networks are timed within a tailoring."""
    return TimingSettings(runs=RUNS, seconds=seconds, warm_up_limit=min(10.0, max(0.5, 10 * seconds)))


@dataclass(frozen=True, kw_only=True)
class Context:
    """The surroundings of one stage; `outcomes` are those of the stages before it.

    `left` is how much of the time asked for was left as the stage began.
    """

    recipe: TailorRecipe
    folder: Path
    around: Context
    pace: float = 1.0
    left: float | None = None
    began: float = field(default_factory=time.monotonic)
    outcomes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def run_folder(self, name: str) -> Path:
        """Return the run directory of a stage, or of one of its parts."""
        if not PLAIN_NAME.fullmatch(name):  # names of networks come from files of the run
            raise RunProblem(
                f"a stage of {self.folder} asks for a folder called {name[:100]!r}, which is no plain name. Its files "
                "are damaged or were tampered with; start again in another folder."
            )
        return Layout(self.folder).stages / name

    def own(self, place: str) -> Path:
        """Return a folder that files of the run name, to be written to; one that lies elsewhere is refused."""
        path = Path(place)
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise RunProblem(
                f"{self.folder} says that its network is in {path}, outside of itself, where nothing is written. Was "
                "the folder moved, or made by somebody else? Start again in another folder."
            )
        return path

    def paced(self, steps: int) -> int:
        """Return the planned number of steps, more or less of them where earlier stages were quick or slow."""
        return max(2, round(self.pace * steps))

    def seconds(self, stage: str) -> float | None:
        """Return how long a stage that trains may take, where a time was asked for."""
        if self.recipe.request.seconds is None:
            return None
        return self.pace * stage_seconds(self.recipe.effort, stage)

    def remaining(self) -> float | None:
        """Return how much of the time asked for is left now."""
        return None if self.left is None else self.left - (time.monotonic() - self.began)

    def before_training(self, *, kept: float = 0.0) -> float | None:
        """Return the seconds that may be spent before training begins, where a time was asked for.

        `kept` is a share of the time asked for that stages between this one and training need.
        """
        remaining, asked = self.remaining(), self.recipe.request.seconds
        if remaining is None or asked is None:
            return None
        return before_training(remaining, self.recipe.effort, asked=asked) - kept * asked

    def tell(self, text: str) -> None:
        """Say something to the user."""
        if self.around.display is not None:
            self.around.display.message(text)

    def overdue(self) -> bool:
        """Tell whether the time asked for is over."""
        remaining = self.remaining()
        return remaining is not None and remaining < 0

    def begun(self, name: str) -> bool:
        """Tell whether a run of a stage began before."""
        return Layout(self.run_folder(name)).recipe.exists()

    def time(
        self,
        models: Sequence[Any],
        *,
        includes: Includes | None = None,
        final: bool = False,
    ) -> list[Measurement]:
        """Measure networks on the target at the exported size, in turns; `final` ones for longer."""
        return bench(
            models,
            [self.recipe.request.target],
            image=self.recipe.image,
            includes=includes or self.recipe.includes,
            classes=locate(self.recipe.data).task.outputs,
            settings=self.timing(final=final),
        )

    def look(self, model: Any) -> dict[str, float]:
        """Measure one network, and how long it took to make it ready for that."""
        begin = time.monotonic()
        (one,) = self.time([model])
        making = time.monotonic() - begin - one.warm_up_seconds - one.seconds
        return {
            "median_ms": one.median_ms,
            "p95_ms": one.p95_ms,
            "making_seconds": round(max(making, 0.0), 2),
        }

    def timing(self, *, final: bool) -> TimingSettings:
        """Return how networks are timed."""
        return timing((2 if final else 1) * self.recipe.timing_seconds)

    def carry_out(self, recipe: Recipe, name: str) -> dict[str, Any]:
        """Do a run of a stage; one that began before goes on with what it began with, whatever time is left now."""
        folder = self.run_folder(name)
        if self.begun(name):
            return resume(folder, surroundings=self.around)
        # What a stage is asked follows from files of the run, which may be somebody else's.
        return carry_out(recipe, folder, surroundings=self.around, trusted=self.around.trust_code)
