"""The stages `fastest`, `choose` and `ready`: time networks on the target and select those worth training."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Literal, TypeAlias

from segtailor.core.atomic import write_json
from segtailor.core.cost import Cost
from segtailor.core.errors import MissingCost, UserError
from segtailor.core.plan import Plan, Shape
from segtailor.core.plan import count as count_plan
from segtailor.core.space import Architecture, architecture_document, family_of, fingerprint_of, plan_of
from segtailor.core.variation import sample
from segtailor.costs import Macs
from segtailor.recipes.timed import (
    MAX_SLOW_RUNS,
    TimedNetwork,
    crowded,
    less_disturbed,
    nearest_ms,
    next_to_time,
    time_undisturbed,
)
from segtailor.runs import Layout
from segtailor.spaces import architectures, baselines, on_lite0, published, published_record
from segtailor.spaces.networks import count, resolve
from segtailor.spaces.starts import NONE, carried_by
from segtailor.tailoring.choosing import AIM_SHARE, SEARCH_SHARE_OF_BUDGET
from segtailor.tailoring.recipe import TailorRecipe
from segtailor.tailoring.stage import (
    SEARCHED,
    ChosenNetwork,
    FastestOutcome,
    FoundNetwork,
    PackOutcome,
    ReadyOutcome,
    SearchOutcome,
    StageContext,
    TimedCandidate,
)
from segtailor.tailoring.time_plan import BUDGET_SHARE, READY_SHARE
from segtailor.tailoring.training import network_start

FASTEST_NETWORKS = 4  # smallest ready networks that are timed first
FASTEST_SHARE = 0.05  # of the time asked for, after which one of them within the budget is enough
MAX_TIMED_CANDIDATES = 8  # of a search
MIN_USED_SHARE = 0.5  # of the budget: a chosen network that uses less needs a reason
NEARLY_LARGEST = 0.9  # of the price of the largest network of the space
SECOND_CHANCES = 2  # candidates that are timed once more in the end
SMALLER_TRIES = 6  # smaller networks that are timed if no candidate keeps the budget
SMALLER_DRAWS = 400  # random networks from which these are taken
SMALLER_COST_SHARE = 0.85  # of the cost that would just keep the budget
MAX_RELATIVE_WORK = 1.3  # multiply-accumulates of ready networks of the winner's family, in what should fit
MAX_OTHER_WORK = 3.0  # of ready networks of other families
COMPARISON_SHAPE = Shape(3, 1024, 2048)  # of the published qualities
COMPARISON_CLASSES = 19
MOSTLY_UNCUT = 0.5  # of a network's parameters, which lost little of their donor
UNCUT_GAIN, CUT_GAIN = 0.10, 0.03  # of mIoU by a start where that holds, and where it does not
QUALITY = "cityscapes_val_miou_percent"  # after the full training of the authors

Evidence: TypeAlias = Literal["published", "inferred"]


def measure_fastest(stage: StageContext) -> FastestOutcome:
    """Stage `fastest`: time the smallest ready networks; if the median of each is too slow, a search cannot help."""
    image, request = stage.recipe.image, stage.recipe.request
    smallest = sorted(architectures(), key=lambda name: count(name, image=image).macs)[:FASTEST_NETWORKS]
    until = None if request.seconds is None else time.monotonic() + FASTEST_SHARE * request.seconds
    rows: list[TimedNetwork] = []
    for name in smallest:
        late = until is not None and time.monotonic() > until
        if late and any(_keeps_budget(stage, row) for row in rows):
            break
        rows.append(stage.timed(name, name))
    best = min(rows, key=lambda row: row.median_ms)
    possible = best.median_ms <= request.budget_ms
    height, width = image
    stop = (
        f"No network keeps {request.budget_ms:g} ms on {request.target} at {height}x{width}: the fastest one known, "
        f"{best.network}, takes {best.median_ms:.3g} ms. Allow more time, or a smaller --image."
    )
    return FastestOutcome(
        **asdict(best), networks=tuple(rows), possible=possible, stop=None if possible else stop
    )


def choose(
    stage: StageContext, fastest: FastestOutcome, pack: PackOutcome, searched: SearchOutcome
) -> ChosenNetwork:
    """Stage `choose`: time candidates from image to labels, and choose the best-judged one within the budget.

    If there is none, smaller networks of the space are tried; if these are too slow as well, a ready one is chosen.
    """
    if not searched.found:
        raise UserError("the search found no network that works; see its journal, or give it more time.")
    timed = _time_candidates(stage, pack, searched)
    keeping = [row for row in timed if _keeps_budget(stage, row)]
    if not keeping and not _crowded(stage, timed):
        smaller = _smaller(stage, pack, timed)
        timed += smaller
        keeping = [row for row in smaller[-1:] if _keeps_budget(stage, row)]
    if not keeping and _crowded(stage, timed):
        return _chosen(_most_likely(stage, pack, timed), timed, kept=False)
    if not keeping:
        return _ready_instead(stage, fastest, timed)
    best = max(keeping, key=lambda row: -1.0 if row.quality is None else row.quality)
    used = best.p95_ms / stage.recipe.request.budget_ms
    unused = None if used >= MIN_USED_SHARE else _why_unused(stage, pack, best, timed)
    if unused is not None:
        stage.tell(unused)
    return _chosen(best, timed, kept=True, used=round(used, 4), unused=unused)


def _time_candidates(stage: StageContext, pack: PackOutcome, searched: SearchOutcome) -> list[TimedCandidate]:
    """Time the best-judged candidate that may keep the budget, until no better one is left.

    Those that use the limit of the search come first: a short training prefers small networks, which learn faster.
    Each time corrects the prices of all others, so a candidate that seemed too slow may be timed after all. In the end
    a better one that only a busy machine made miss the budget is timed again.
    """
    layout = Layout(Path(searched.run))
    rows: dict[str, TimedCandidate] = {}
    least = AIM_SHARE * search_limit(stage.recipe, pack)
    for networks in ([one for one in searched.found if one.cost >= least], searched.found):
        while len(rows) < MAX_TIMED_CANDIDATES and not (rows and _no_time(stage)):
            found = _next_candidate(stage, pack, networks, rows)
            if found is None:
                break
            expected = expected_ms(found.cost, pack, list(rows.values()))
            rows[found.fingerprint] = _timed_candidate(
                stage, layout.architecture(found.fingerprint), found, expected_ms=expected
            )
        if any(_keeps_budget(stage, row) for row in rows.values()):
            break
    for row in _second_chances(stage, list(rows.values())):
        if _no_time(stage):
            break
        again = replace(row, **asdict(less_disturbed(row, stage.timed(row.network, row.architecture))))
        rows[row.fingerprint] = again
        if _keeps_budget(stage, again):
            break
    return list(rows.values())


def search_limit(recipe: TailorRecipe, pack: PackOutcome) -> float:
    """Return the most that a network of the search may cost, in the unit of its prices."""
    if pack.fit is None:
        return float(round(recipe.search_limit_macs))
    return pack.limit_ms or recipe.search_limit_ms


def _no_time(stage: StageContext) -> bool:
    left = stage.before_training(reserved=READY_SHARE)
    return left is not None and left < 0


def _next_candidate(
    stage: StageContext,
    pack: PackOutcome,
    found: Sequence[FoundNetwork],
    timed: Mapping[str, TimedCandidate],
) -> FoundNetwork | None:
    """Return the best-judged candidate that was not timed, is better than those within the budget, and may keep it."""
    rows = list(timed.values())
    return next_to_time(
        found,
        rows,
        expected_ms=lambda one: expected_ms(one.cost, pack, rows),
        keeps=lambda row: _keeps_budget(stage, row),
        budget_ms=stage.recipe.request.budget_ms,
    )


def expected_ms(cost: float, pack: PackOutcome, timed: Sequence[TimedCandidate]) -> float | None:
    """Return the p95 latency, from image to labels, that the price of a network and the times of others let expect.

    Before any network was timed, a fit does.
    """
    rest = pack.rest_ms or 0.0
    if timed:
        return nearest_ms(cost, timed, rest_ms=rest)
    return rest + (pack.slow_runs or 1.0) * cost if pack.fit is not None else None


def _second_chances(stage: StageContext, timed: Sequence[TimedCandidate]) -> list[TimedCandidate]:
    """Return the candidates whose fastest run keeps the budget and that are judged better than those that keep it."""
    enough = max((row.quality or 0.0 for row in timed if _keeps_budget(stage, row)), default=-1.0)
    limit = BUDGET_SHARE * stage.recipe.request.budget_ms
    disturbed = [row for row in timed if (row.quality or 0.0) > enough and row.undisturbed_ms <= limit]
    return sorted(disturbed, key=lambda row: -(row.quality or 0.0))[:SECOND_CHANCES]


def _chosen(
    best: TimedCandidate,
    timed: Sequence[TimedCandidate],
    *,
    kept: bool,
    used: float | None = None,
    unused: str | None = None,
) -> ChosenNetwork:
    return ChosenNetwork(**asdict(best), measured=tuple(timed), kept=kept, used=used, unused=unused)


def _why_unused(
    stage: StageContext, pack: PackOutcome, best: TimedCandidate, timed: Sequence[TimedCandidate]
) -> str:
    """Say why the chosen network uses less than half of the budget."""
    recipe, space = stage.recipe, stage.space
    budget = recipe.request.budget_ms
    begin = f"The search did not use the budget: its network takes {best.p95_ms / budget:.0%} of it, "
    largest = space.architecture({one.name: len(one.options) - 1 for one in space.decisions})
    most = float(pack.cost().of(space.plan(largest, stage.shape, stage.classes)))
    if best.cost >= NEARLY_LARGEST * most:
        return begin + "and the space has hardly any larger one."
    late = [row for row in timed if row.fingerprint != best.fingerprint and not _keeps_budget(stage, row)]
    if late:
        return begin + f"and {len(late)} other candidates miss the budget as measured."
    if search_limit(recipe, pack) < most and recipe.search_limit_ms < SEARCH_SHARE_OF_BUDGET * budget:
        return begin + "because larger ones could not be trained well in the time; more --time allows them."
    return (
        begin + "because no larger candidate was judged better; more --time lets the search try more of them."
    )


def _timed_candidate(
    stage: StageContext,
    file: Path,
    found: FoundNetwork | None = None,
    *,
    cost: float = 0.0,
    expected_ms: float | None = None,
) -> TimedCandidate:
    """Time the network in a file: one of the search, or a smaller one at a cost, which the search did not judge."""
    row = _undisturbed(stage, SEARCHED, str(file), expected_ms=expected_ms)
    fingerprint = fingerprint_of(resolve(file)) if found is None else found.fingerprint
    return TimedCandidate(
        **asdict(row),
        architecture=str(file),
        trial=None if found is None else found.trial,
        fingerprint=fingerprint,
        quality=None if found is None else found.quality,
        cost=cost if found is None else found.cost,
    )


def _undisturbed(
    stage: StageContext, network: str, model: str, *, expected_ms: float | None = None
) -> TimedNetwork:
    """Time a network; again if it misses the budget, but its fastest run or its price says that it can keep it.

    The machine was busy then.
    """
    return time_undisturbed(
        lambda: stage.timed(network, model),
        limit_ms=BUDGET_SHARE * stage.recipe.request.budget_ms,
        expected_ms=expected_ms,
    )


def _keeps_budget(stage: StageContext, row: TimedNetwork) -> bool:
    return row.p95_ms <= BUDGET_SHARE * stage.recipe.request.budget_ms


def _smaller(stage: StageContext, pack: PackOutcome, timed: Sequence[TimedCandidate]) -> list[TimedCandidate]:
    """Time smaller and smaller networks of the space until one, the last, keeps the budget.

    Each is the largest random network whose latency should keep the budget, judging by the network before it.
    """
    recipe, space = stage.recipe, stage.space
    cost = pack.cost()
    shape, classes = stage.shape, stage.classes

    def price(arch: Architecture) -> float:
        return float(cost.of(space.plan(arch, shape, classes)))

    rng = Random(recipe.request.seed)
    drawn = [sample(space, rng) for _ in range(SMALLER_DRAWS)]
    drawn.append(space.architecture({decision.name: 0 for decision in space.decisions}))
    priced = sorted(((price(arch), arch) for arch in drawn), key=lambda pair: pair[0])
    last = min(timed, key=lambda row: row.p95_ms)
    last_price = price(resolve(last.architecture))
    stage.tell("no network that was found keeps the budget as measured: smaller ones are tried")
    smaller: list[TimedCandidate] = []
    for number in range(SMALLER_TRIES):
        allowed = BUDGET_SHARE * recipe.request.budget_ms
        slow_ms = min(last.p95_ms, MAX_SLOW_RUNS * last.undisturbed_ms)  # or a busy moment asks for tiny ones
        limit = SMALLER_COST_SHARE * last_price * min(1.0, allowed / slow_ms)
        fitting = [pair for pair in priced if pair[0] <= limit]
        last_price, arch = fitting[-1] if fitting else priced[0]
        file = Layout(stage.folder).stages / f"smaller-{number}.json"
        write_json(file, architecture_document(arch), what="architecture")
        last = _timed_candidate(stage, file, cost=last_price)
        smaller.append(last)
        if _keeps_budget(stage, last) or not fitting or _crowded(stage, smaller) or _no_time(stage):
            break
    return smaller


def _ready_instead(
    stage: StageContext, fastest: FastestOutcome, timed: Sequence[TimedCandidate]
) -> ChosenNetwork:
    """Choose the slowest ready network that is known to keep the budget; if there is none, the fastest candidate."""
    keeping = [row for row in fastest.networks if _keeps_budget(stage, row)]
    if not keeping:
        return _chosen(min(timed, key=lambda row: row.p95_ms), timed, kept=False)
    best = max(keeping, key=lambda row: row.p95_ms)
    stage.tell(f"no network of the search keeps the budget: the ready network {best.network} is trained")
    used = best.p95_ms / stage.recipe.request.budget_ms
    reason = (
        f"The search did not use the budget: the ready network {best.network} takes {used:.0%} of it, and no "
    )
    return ChosenNetwork(
        **asdict(best),
        architecture=best.network,
        measured=tuple(timed),
        kept=True,
        used=round(used, 4),
        unused=None if used >= MIN_USED_SHARE else reason + "network of the search keeps it.",
    )


def _crowded(stage: StageContext, timed: Sequence[TimedCandidate]) -> bool:
    """Tell whether other programs interrupt runs so long that every network misses the budget, whatever its size."""
    limit = BUDGET_SHARE * stage.recipe.request.budget_ms
    return any(crowded(row.undisturbed_ms, row.p95_ms, limit_ms=limit) for row in timed)


def _most_likely(stage: StageContext, pack: PackOutcome, timed: Sequence[TimedCandidate]) -> TimedCandidate:
    """Return the best-judged candidate whose median keeps the budget; where there is none, the fastest.

    Those that use the limit of the search come first here, too.
    """
    least = AIM_SHARE * search_limit(stage.recipe, pack)
    limit = BUDGET_SHARE * stage.recipe.request.budget_ms
    likely = [row for row in timed if row.median_ms <= limit and row.quality is not None]
    if likely:
        stage.tell("the machine is too busy to tell which network keeps the budget: half of all runs decide")
        return max(likely, key=lambda row: (row.cost >= least, row.quality or 0.0))
    return min(timed, key=lambda row: row.p95_ms)


def find_ready(stage: StageContext, fastest: FastestOutcome, chosen: ChosenNetwork) -> ReadyOutcome:
    """Stage `ready`: find the ready networks within the budget that are worth training, best expected first.

    Of several at least one is hand-made if any of these keeps the budget. Networks of stage `fastest` are not timed
    again.
    """
    wanted, asked = stage.recipe.effort.baselines, stage.recipe.request.seconds
    if not wanted:
        return ReadyOutcome(networks=())
    until = None if asked is None else time.monotonic() + READY_SHARE * asked
    names = [name for name in worth_timing(stage, chosen) if name != chosen.network]
    if wanted == 1:
        return ReadyOutcome(networks=tuple(_within_budget(stage, fastest, names, 1, until=until)))
    handmade = [name for name in names if name in baselines()]
    others = [name for name in names if name not in handmade]
    ready = _within_budget(stage, fastest, handmade, wanted // 2, until=until)
    rest = wanted - len(ready) if ready else max(1, wanted // 2)
    ready += _within_budget(stage, fastest, others, rest, until=until)
    return ReadyOutcome(networks=tuple(sorted(ready, key=lambda row: names.index(row.network))))


def worth_timing(stage: StageContext, chosen: ChosenNetwork) -> list[str]:
    """Return the ready networks that do not have far more multiply-accumulates than should fit, best expected first."""
    recipe, winner = stage.recipe, resolve(chosen.architecture)
    likely = count(winner, image=recipe.image).macs * max(1.0, recipe.request.budget_ms / chosen.median_ms)
    rows = ready_networks(Macs(), MAX_OTHER_WORK * likely, image=recipe.image, classes=stage.classes)
    fitting = [
        row
        for row in rows
        if row.fits
        and (
            (row.price or 0) <= MAX_RELATIVE_WORK * likely
            or family_of(resolve(row.name)) != family_of(winner)
        )
    ]
    started = {row.name: row.expected + _start_gain(stage, resolve(row.name)) for row in fitting}
    return sorted(started, key=lambda name: (-started[name], name))


def _start_gain(stage: StageContext, arch: Architecture) -> float:
    """Return what a network gains by its start, as measured with ImageNet weights (docs/results.md#starts)."""
    start = network_start(stage, arch)
    if start == NONE:
        return 0.0
    return UNCUT_GAIN if carried_by(start, arch, stage.dataset.task).uncut >= MOSTLY_UNCUT else CUT_GAIN


def _within_budget(
    stage: StageContext, fastest: FastestOutcome, names: Sequence[str], wanted: int, *, until: float | None
) -> list[TimedNetwork]:
    """Time networks one by one until enough keep the budget; those that are too slow judging by others are skipped.

    With no time left only known ones count.
    """
    budget, image = stage.recipe.request.budget_ms, stage.recipe.image
    known = {row.network: row for row in fastest.networks}
    keeping: list[TimedNetwork] = []
    timed, best_rate = 0, 0.0  # the most multiply-accumulates per millisecond of those that were timed
    for name in names:
        if len(keeping) >= wanted:
            break
        macs = count(name, image=image).macs
        late = timed >= 4 * wanted + 2 or (until is not None and time.monotonic() > until)
        if name not in known and (late or (timed and macs > MAX_RELATIVE_WORK * best_rate * budget)):
            continue
        row = known.get(name) or stage.timed(name, name)
        timed, best_rate = timed + (name not in known), max(best_rate, macs / row.median_ms)
        if _keeps_budget(stage, row):
            keeping.append(row)
    return keeping


@dataclass(frozen=True, kw_only=True)
class ReadyNetwork:
    """A ready network at one image size: its price, its expected quality, and why it is too expensive if it is.

    `expected` is a Cityscapes validation mIoU (0 to 1), used for sorting and not a promise for other data: that of the
    authors if they give one for exactly this network, otherwise `inferred` from its multiply-accumulates.
    """

    name: str
    expected: float
    evidence: Evidence
    price: float | None = None
    reason: str | None = None

    @property
    def fits(self) -> bool:
        """Whether the price keeps the limit."""
        return self.reason is None


def ready_networks(
    cost: Cost,
    limit: float,
    *,
    image: tuple[int, int],
    classes: int,
    names: Sequence[str] | None = None,
) -> tuple[ReadyNetwork, ...]:
    """Price ready networks at an image size: those named, or all of them, each once.

    These are published and hand-made ones, and published decoders on EfficientNet-Lite0. First those within `limit` (in
    the unit of the cost), best expected quality first; then the others with the reason, cheapest first, those that have
    no price last.
    """
    if not limit > 0 or math.isnan(limit):
        raise UserError(f"limit: {limit} {cost.unit} is no budget; give a number above 0.")
    expected = expected_qualities()
    rows = []
    for name in expected if names is None else names:
        plan = plan_of(published(name), Shape(3, *image), classes)
        quality, evidence = expected[_first_name(name)]
        price, reason = _priced(cost, plan, limit, image)
        rows.append(ReadyNetwork(name=name, expected=quality, evidence=evidence, price=price, reason=reason))
    return tuple(sorted(rows, key=_rank))


def expected_qualities() -> Mapping[str, tuple[float, Evidence]]:
    """Return the expected quality of every ready network by name, and its evidence: after a long training of any start.

    A network with two names (LPS-Net-S is also step 7 of its search) is listed under the first of them. A quality that
    is not published is taken from the straight line through all others over the logarithm of the multiply-accumulates.
    Published values of short trainings or with other encoders are not comparable and not used.
    """
    names = tuple(_by_fingerprint().values())
    macs = {
        name: math.log(count_plan(plan_of(published(name), COMPARISON_SHAPE, COMPARISON_CLASSES)).macs)
        for name in names
    }
    known = {name: published_record(name)["origin"]["results"].get(QUALITY) for name in names}
    points = [(macs[name], value / 100) for name, value in known.items() if value is not None]
    centre, level = (sum(column) / len(points) for column in zip(*points, strict=True))
    spread = sum((x - centre) ** 2 for x, _ in points)
    slope = sum((x - centre) * (y - level) for x, y in points) / spread
    return {
        name: (level + slope * (macs[name] - centre), "inferred")
        if value is None
        else (value / 100, "published")
        for name, value in known.items()
    }


@cache
def _by_fingerprint() -> Mapping[str, str]:
    """Return the first name of each ready network by its fingerprint."""
    names: dict[str, str] = {}
    for name in architectures() + baselines() + on_lite0():
        names.setdefault(fingerprint_of(published(name)), name)
    return names


def _first_name(name: str) -> str:
    """Return the name under which a network is listed."""
    return _by_fingerprint()[fingerprint_of(published(name))]


def _priced(cost: Cost, plan: Plan, limit: float, image: tuple[int, int]) -> tuple[float | None, str | None]:
    """Return the price, and why it is too high or unknown."""
    try:
        price = cost.of(plan)
    except MissingCost as problem:
        return None, f"has no price here: {problem}"
    if price <= limit:
        return price, None
    size = f"{image[0]}x{image[1]}"
    return price, f"costs {price:.4g} {cost.unit} at {size}, the limit is {limit:.4g} {cost.unit}"


def _rank(row: ReadyNetwork) -> tuple[bool, float, str]:
    if row.fits:
        return False, -row.expected, row.name
    return True, math.inf if row.price is None else row.price, row.name
