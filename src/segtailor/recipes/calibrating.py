"""Time the operators of a space on a target: the recipe behind `segtailor calibrate`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from segtailor.core.atomic import write_text
from segtailor.core.codec import Json, from_json, to_json
from segtailor.core.errors import RunProblem
from segtailor.core.job import Step
from segtailor.core.ranges import check_seed
from segtailor.core.space import SearchSpace, family, family_of
from segtailor.core.target import parse_target
from segtailor.costs.calibrate import Calibration, CalibrationSettings
from segtailor.recipes.overrides import overridden
from segtailor.recipes.recipe import RECIPES, Place
from segtailor.report.charts import draw_trust
from segtailor.runs import Layout
from segtailor.spaces import architectures, baselines, published


def space_settings(space: str, changes: Iterable[str]) -> dict[str, Any]:
    """Return the settings of a space that differ from its defaults; `changes` are FIELD=VALUE."""
    usual = to_json(family(space)())
    asked = overridden(usual, changes)
    return {name: value for name, value in asked.items() if value != usual[name]}


@RECIPES.register("calibrate")
@dataclass(frozen=True, kw_only=True)
class CalibrateRecipe:
    """Make the device pack of a space (by name, with its settings) on a target at an image size."""

    space: str
    target: str
    image: tuple[int, int]
    classes: int = 19
    minutes: float | None = None
    seconds_per_entry: float = 0.15
    fit_networks: int = 10
    trust_networks: int = 30
    seed: int = 0
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_seed(self.seed)

    def search_space(self) -> SearchSpace:
        """Return the space; an unknown name or setting raises."""
        kind = family(self.space)
        return from_json(kind, self.settings, what=f"settings of space '{self.space}'", error=RunProblem)

    def job(self, place: Place) -> Calibrating:
        """Check space and target, and return the job."""
        space = self.search_space()
        settings = CalibrationSettings(
            target=parse_target(self.target),
            image=self.image,
            classes=self.classes,
            minutes=self.minutes,
            seconds_per_entry=self.seconds_per_entry,
            fit_networks=self.fit_networks,
            trust_networks=self.trust_networks,
            seed=self.seed,
        )
        examples = [
            arch for arch in map(published, architectures() + baselines()) if family_of(arch) == self.space
        ]
        return Calibrating(calibration=Calibration(space, settings, examples=examples), place=place)


@dataclass(kw_only=True, eq=False, repr=False)
class Calibrating:
    """A calibration that writes its pack and the scatter plot when it is done."""

    calibration: Calibration
    place: Place

    def steps(self) -> Iterator[Step]:
        """Measure."""
        yield from self.calibration.steps()

    def save(self, folder: Path) -> None:
        """Write what was measured."""
        self.calibration.save(folder)

    def load(self, folder: Path) -> None:
        """Go on from there."""
        self.calibration.load(folder)

    def result(self) -> Mapping[str, Json]:
        """Write the pack and return its figures."""
        layout = Layout(self.place.folder)
        pack = self.calibration.pack()
        pack.write(layout.cost_table)
        if pack.trust is not None:
            layout.report.mkdir(exist_ok=True)
            drawing = draw_trust(pack.trust, title=f"{pack.space} on {pack.target}")
            write_text(layout.report / "trust.svg", drawing, what="scatter plot")
        return {"pack": str(layout.cost_table), **pack.summary()}
