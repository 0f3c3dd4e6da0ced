"""What a report says, as plain data: every part may be missing. `html.py` draws it.

Everything but the drawn networks can be written as JSON and read again (`parts.py`). Shares and mIoU are fractions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from segtailor.core.errors import UserError
from segtailor.core.plan import Plan

# Of points: "winner", "searched family", "teacher", "published", "baseline", "trial", or any other.
Group: TypeAlias = str
DATA_URI = re.compile(r"data:image/(png|jpeg);base64,[A-Za-z0-9+/]+={0,2}")


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One figure with its name, ready to be shown; `note` is set smaller."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome in one sentence; `met` tells whether the budget is kept, if there is one."""

    sentence: str
    met: bool | None = None
    facts: tuple[Fact, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Point:
    """One network: quality against cost. Of latencies `cost` is the median and `p95` the slow end."""

    name: str
    group: Group
    quality: float
    cost: float
    p95: float | None = None
    params: int | None = None
    macs: int | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Front:
    """Networks compared; `path` names points to join in this order, `budget` is in the unit of the cost."""

    points: tuple[Point, ...]
    unit: str = "ms"
    cost_name: str = "measured latency"
    quality_name: str = "mIoU on the validation split"
    budget: float | None = None
    path: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A network that a run kept with its weights: a budget of `cost` is enough for it.

    `evidence` says where the quality comes from (`trained`, `judged`); offers are compared by `rank`, or by the quality
    where that is None. `command` exports exactly this network.
    """

    name: str
    quality: float
    cost: float
    evidence: str
    rank: float | None = None
    params: int | None = None
    macs: int | None = None
    note: str = ""
    command: str = ""

    @property
    def worth(self) -> float:
        """What it is compared by."""
        return self.quality if self.rank is None else self.rank


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """What other budgets would get: the best offer that costs no more. `budget` is that of the run, if it has one.

    The command that exports is `before`, a budget, and `after`; without these each offer has its own.
    """

    offers: tuple[Offer, ...]
    unit: str = "ms"
    cost_name: str = "latency, 95 % of runs"
    budget: float | None = None
    before: str = ""
    after: str = ""
    note: str = ""

    def best(self) -> Offer | None:
        """Return what the budget of the run gets; without a budget the best offer of all."""
        within = [one for one in self.offers if self.budget is None or one.cost <= self.budget]
        return max(within, key=lambda one: one.worth, default=None)


@dataclass(frozen=True, kw_only=True)
class DrawnNetwork:
    """A network to draw."""

    name: str
    plan: Plan
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of a chart: as many x as y values."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"series '{self.name}' has {len(self.x)} x and {len(self.y)} y values")


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Lines over a common axis; `dots` draws points without lines between them."""

    title: str
    x_name: str
    y_name: str
    series: tuple[Series, ...]
    dots: bool = False
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class DecisionStory:
    """How the probabilities of one decision moved: one row of `shares` per step in `at`, one column per option."""

    name: str
    options: tuple[str, ...]
    at: tuple[float, ...]
    shares: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True)
class ExpansionStep:
    """One step of an expansion path: what grew, and the quality and cost after it."""

    step: int
    direction: str
    quality: float
    cost: float
    gain: float | None = None


@dataclass(frozen=True, kw_only=True)
class SearchStory:
    """What a search did over time; parts that do not apply are empty."""

    summary: str
    charts: tuple[Chart, ...] = ()
    decisions: tuple[DecisionStory, ...] = ()
    path: tuple[ExpansionStep, ...] = ()
    unit: str = "ms"
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LayerTime:
    """One layer: estimated by a table, measured in the network, or both."""

    name: str
    operator: str
    estimated_ms: float | None = None
    measured_ms: float | None = None


@dataclass(frozen=True, kw_only=True)
class LayerTimes:
    """Latency by layer. The totals are those of the whole network, not sums of the rows."""

    layers: tuple[LayerTime, ...]
    estimated_ms: float | None = None
    measured_ms: float | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class ClassQuality:
    """Quality of one class; `share` is that of the labelled pixels, `colour` is red, green, blue."""

    name: str
    iou: float | None
    accuracy: float | None = None
    share: float | None = None
    colour: tuple[int, int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One example as data URIs (see `inspecting.picture`), all of one size."""

    name: str
    kind: Literal["worst", "best"]
    quality: float
    image: str
    truth: str
    prediction: str
    error: str

    def __post_init__(self) -> None:
        for uri in (self.image, self.truth, self.prediction, self.error):
            if not DATA_URI.fullmatch(uri):
                raise UserError(
                    f"picture '{self.name}' holds {uri[:40]!r}, which is no PNG or JPEG data URI; make it with "
                    "`segtailor.report.inspecting.picture`."
                )


@dataclass(frozen=True, kw_only=True)
class Quality:
    """How well a network predicts. Rows of `confusion` are the truth, columns the prediction, values pixels.

    `figure` names the quality of single pictures. Only a segmentation has classes.
    """

    classes: tuple[ClassQuality, ...]
    miou: float | None = None
    facts: tuple[Fact, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    pictures: tuple[Picture, ...] = ()
    note: str = ""
    figure: str = "mIoU"

    def __post_init__(self) -> None:
        size = len(self.classes)
        if self.confusion and [len(row) for row in self.confusion] != [size] * size:
            raise UserError(
                f"the confusion matrix is not {size} x {size}, one row and column per class; count it again."
            )


@dataclass(frozen=True, kw_only=True)
class TrustPoint:
    """One network measured whole, against its price in the table."""

    name: str
    predicted_ms: float
    measured_ms: float
    disturbed: bool = False


@dataclass(frozen=True, kw_only=True)
class TableTrust:
    """How far the latency table can be trusted; `mape` is a fraction."""

    points: tuple[TrustPoint, ...]
    pearson: float
    spearman: float
    mape: float
    facts: tuple[Fact, ...] = ()
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Precision:
    """One number format, measured."""

    name: str
    latency_ms: float | None = None
    p95_ms: float | None = None
    quality: float | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Int8:
    """Whether eight bits are worth it: the decision in one sentence, and the figures behind it."""

    decision: str
    chosen: str = ""
    rows: tuple[Precision, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DataFinding:
    """One problem of the data, or a fact worth knowing."""

    severity: Literal["error", "warning", "info"]
    kind: str
    message: str
    fix: str = ""
    file: str = ""


@dataclass(frozen=True, kw_only=True)
class Split:
    """One split of the data; `shares` are fractions of the labelled pixels by class."""

    name: str
    images: int
    shares: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class DataFindings:
    """What the dataset doctor found."""

    name: str
    findings: tuple[DataFinding, ...] = ()
    splits: tuple[Split, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ChosenSetting:
    """A setting that was chosen automatically, and why, in one line."""

    setting: str
    value: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class StageSummary:
    """A part of the work: how long it took and how it ended (`done`, `skipped`, `unfinished`, `failed`)."""

    name: str
    status: str
    seconds: float | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class FactGroup:
    """Facts that belong together: a machine, versions, settings."""

    title: str
    facts: tuple[Fact, ...]


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command to type, and what it does."""

    text: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Everything on a page that JSON can hold. `missing` tells what could not be read, and why."""

    verdict: Verdict | None = None
    front: Front | None = None
    budgets: Budgets | None = None
    search: SearchStory | None = None
    training: tuple[Chart, ...] = ()
    layers: LayerTimes | None = None
    quality: Quality | None = None
    trust: TableTrust | None = None
    int8: Int8 | None = None
    data: DataFindings | None = None
    choices: tuple[ChosenSetting, ...] = ()
    stages: tuple[StageSummary, ...] = ()
    conditions: tuple[FactGroup, ...] = ()
    commands: tuple[Command, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Report(Parts):
    """Everything on one page."""

    title: str
    subtitle: str = ""
    networks: tuple[DrawnNetwork, ...] = ()
