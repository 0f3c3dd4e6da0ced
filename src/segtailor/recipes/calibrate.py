"""Time the operators of a space on a target: the recipe behind `segtailor calibrate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from segtailor.core.atomic import write_text
from segtailor.core.codec import Json, Tagged
from segtailor.core.job import Step
from segtailor.core.ranges import check_seed
from segtailor.core.registry import FIXED, SPACES
from segtailor.core.space import SearchSpace, family_name, family_of
from segtailor.core.target import parse_target
from segtailor.costs.calibrate import Calibration, CalibrationSettings
from segtailor.report.charts import draw_trust
from segtailor.runs import Context, Layout
from segtailor.spaces.published import architectures, baselines, published


@dataclass(frozen=True, kw_only=True)
class CalibrateRecipe:
    """Make the device pack of a space on a target at an image size (height, width)."""

    space: Annotated[SearchSpace, Tagged(SPACES, FIXED)]
    target: str
    image: tuple[int, int]
    classes: int = 19
    minutes: float | None = None
    seconds_per_entry: float = 0.15
    fit_networks: int = 10
    trust_networks: int = 30
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)

    @property
    def space_name(self) -> str:
        """The registered name of the space."""
        return family_name(self.space)

    def job(self, context: Context) -> Calibrating:
        """Check the target, and return the job."""
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
            arch
            for arch in map(published, architectures() + baselines())
            if family_of(arch) == self.space_name
        ]
        return Calibrating(calibration=Calibration(self.space, settings, examples=examples), context=context)


@dataclass(kw_only=True, eq=False, repr=False)
class Calibrating:
    """A calibration that writes its pack and the scatter plot when it is done."""

    calibration: Calibration
    context: Context

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
        layout = Layout(self.context.folder)
        pack = self.calibration.pack()
        pack.write(layout.cost_table)
        if pack.trust is not None:
            layout.report.mkdir(exist_ok=True)
            drawing = draw_trust(pack.trust, title=f"{pack.space} on {pack.target}")
            write_text(layout.report / "trust.svg", drawing, what="scatter plot")
        return {"pack": str(layout.cost_table), **pack.summary()}
