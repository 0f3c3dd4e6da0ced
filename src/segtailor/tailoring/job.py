"""The job: stage after stage, each done once, each resumable, each kept in a file of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from segtailor.core.atomic import write_json
from segtailor.core.codec import Json, read_json
from segtailor.core.errors import Interrupted, RunProblem
from segtailor.core.job import Step
from segtailor.core.text import command, path_argument
from segtailor.runs import Context, Layout
from segtailor.tailoring import delivering, finding, reporting, training
from segtailor.tailoring.context import Context
from segtailor.tailoring.pacing import pace
from segtailor.tailoring.settings import TailorRecipe

StageWork = Callable[[Context], dict[str, Any]]
STAGES: tuple[tuple[str, StageWork], ...] = (
    ("data", finding.data),
    ("fastest", finding.fastest),
    ("pack", finding.pack),
    ("search", finding.search),
    ("choose", finding.choose),
    ("ready", finding.ready),
    ("teacher", training.teacher),
    ("lengths", training.lengths),
    ("train", training.train),
    ("baselines", training.baselines),
    ("recommend", delivering.recommend),
    ("export", delivering.export),
    ("int8", delivering.int8),
    ("contract", delivering.contract),
    ("layers", delivering.layers),
)
CLOCK = "clock.json"


def stopped(outcomes: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return why a stage found that going on makes no sense, if one did."""
    return next((str(found["stop"]) for found in outcomes.values() if found.get("stop")), None)


@dataclass(kw_only=True, eq=False, repr=False)
class Tailoring:
    """Carries out the stages; what is done is never done again."""

    recipe: TailorRecipe
    place: Context
    around: Context = field(default_factory=Context)
    stages: Sequence[tuple[str, StageWork]] = STAGES
    outcomes: dict[str, dict[str, Any]] = field(default_factory=dict)

    def steps(self) -> Iterator[Step]:
        """Work stage by stage."""
        folder = Layout(self.place.folder).stages
        folder.mkdir(parents=True, exist_ok=True)
        for number, (name, work) in enumerate(self.stages, start=1):
            file = folder / f"{name}.json"
            if stopped(self.outcomes) is not None:
                continue
            if file.exists():
                self.outcomes[name] = dict(read_json(file, what=f"stage '{name}'", error=RunProblem))
                message = f"{name}: done before"
            else:
                self._tell(f"stage {number} of {len(self.stages)}: {name}")
                self.outcomes[name] = self._carried_out(name, work)
                write_json(file, self.outcomes[name], what=f"outcome of stage '{name}'")
                message = None
            yield Step(phase="stages", done=number, total=len(self.stages), message=message)

    def save(self, folder: Path) -> None:
        """Nothing to write: every stage keeps its own outcome."""

    def load(self, folder: Path) -> None:
        """Nothing to read: outcomes are found where they lie."""

    def result(self) -> Mapping[str, Json]:
        """Write the report and return the figures."""
        context = self._context("report")
        return reporting.deliver(context, seconds=self._clock(), stopped=stopped(self.outcomes))

    def _carried_out(self, name: str, work: StageWork) -> dict[str, Any]:
        begin = time.monotonic()
        try:
            return work(self._context(name))
        except Interrupted:
            raise Interrupted(
                f"stopped in stage '{name}' and saved; go on with: "
                + command("segtailor", "resume", path_argument(self.place.folder))
            ) from None
        finally:
            clock = self._clock()
            clock[name] = round(clock.get(name, 0.0) + time.monotonic() - begin, 2)
            write_json(Layout(self.place.folder).stages / CLOCK, clock, what="clock of the stages")

    def _context(self, name: str) -> Context:
        left = self._left()
        return Context(
            recipe=self.recipe,
            folder=self.place.folder,
            around=self.around,
            pace=pace(self.recipe.effort, name, left=left),
            left=left,
            outcomes=self.outcomes,
        )

    def _left(self) -> float | None:
        """Return what is left of the time asked for; what was worked before an interruption counts."""
        asked = self.recipe.request.seconds
        return None if asked is None else asked - self.recipe.planning_seconds - sum(self._clock().values())

    def _clock(self) -> dict[str, float]:
        file = Layout(self.place.folder).stages / CLOCK
        if not file.exists():
            return {}
        return {
            str(name): float(value)
            for name, value in dict(read_json(file, what="clock of the stages", error=RunProblem)).items()
        }

    def _tell(self, text: str) -> None:
        if self.around.display is not None:
            self.around.display.message(text)
