"""The networks that a finished search or tailoring kept with their weights: the best one that keeps a budget, exported.

The run may come from somebody else: only its own files are read, none through a link, and no path in them is followed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, Unpack

from segtailor.core.atomic import new_folder
from segtailor.core.codec import Json, from_json, read_json
from segtailor.core.errors import RunProblem, Unsupported, UserError
from segtailor.core.plan import Count
from segtailor.core.shipped import DESCRIPTION
from segtailor.core.space import fingerprint_of, parse_architecture
from segtailor.core.target import parse_target, timed_stages
from segtailor.core.task import Task
from segtailor.core.text import command, path_argument
from segtailor.nets.bundle import WEIGHTS, load_bundle, save_bundle
from segtailor.nets.checkpoint_file import MAX_FILE_BYTES
from segtailor.recipes.export import Exported, ExportOptions, ExportPlan, plan_export
from segtailor.recipes.timed import MAX_SLOW_RUNS, TimedNetwork, nearest_ms, next_to_time, time_undisturbed
from segtailor.report.fields import number, rows, size, text
from segtailor.runs import Layout, read_recipe, read_result
from segtailor.runs.layout import FINGERPRINT
from segtailor.spaces.networks import count

DEFAULT_TARGET = "cpu/onnxruntime/fp32"  # where a search names none
TAILOR, SEARCH = "tailor", "search"  # kinds of runs that keep networks
SEARCHED = "searched"  # the network of a tailoring that its search found, among ready ones
MAX_NETWORKS = 64  # of a run; a search keeps 16
MIN_WEIGHT_BYTES = 2  # of a stored parameter: half precision

Evidence: TypeAlias = Literal["trained", "judged"]


@dataclass(frozen=True, kw_only=True)
class KeptNetwork:
    """A network that a run kept with its weights.

    `quality` is the mIoU of a training on the validation split (`trained`), or that of the weights that networks share
    in a search, on its judging images (`judged`). `cost` is its price in the search, infinite where it has none.
    `rank` is the quality by which networks are compared: judged ones may count for less than their figure.
    """

    network: str
    fingerprint: str
    bundle: Path
    quality: float
    evidence: Evidence
    cost: float
    rank: float
    size: Count


@dataclass(frozen=True, kw_only=True)
class KeptFront:
    """The networks of a run, best quality first, with the image size and the target that the run was made for."""

    run: Path
    image: tuple[int, int]
    target: str
    data: str
    networks: tuple[KeptNetwork, ...]


@dataclass(frozen=True, kw_only=True)
class TimedKept(TimedNetwork):
    """A network of a run that was timed; `quality` is its rank."""

    fingerprint: str
    quality: float
    cost: float

    def without_disturbance(self) -> TimedKept:
        """Return it with the slow runs that are due to the network and not to other programs."""
        return replace(self, p95_ms=min(self.p95_ms, MAX_SLOW_RUNS * self.undisturbed_ms))


@dataclass(frozen=True, kw_only=True)
class Pick:
    """The best network that keeps a budget (None where none does), and all that were timed, in this order."""

    chosen: KeptNetwork | None
    timed: tuple[TimedKept, ...]

    @property
    def fastest(self) -> TimedKept:
        """The timed network with the shortest median: on a busy machine the slowest runs say little."""
        return min(self.timed, key=lambda row: row.median_ms)


def training_folder(network: str) -> str:
    """Return the name of the folder in which a tailoring trains a network."""
    return "train" if network == SEARCHED else f"baseline-{network}"


def is_run(folder: str | Path) -> bool:
    """Tell whether a folder is a run directory."""
    return Layout(Path(folder)).recipe.is_file()


def kept_front(run: Path) -> KeptFront:
    """Read which networks a finished search or tailoring kept; what is wrong with it raises with one clear line."""
    layout = Layout(run)
    if not is_run(run):
        raise UserError(
            f"{run} is no run directory: it has no {layout.recipe.name}. A budget chooses among the networks of a "
            "finished search or tailoring; export a bundle without --budget."
        )
    layout.own(layout.recipe)
    recipe = read_recipe(run)
    kind, image = text(recipe, "kind"), size(recipe, "image")
    if kind not in (TAILOR, SEARCH) or image is None:
        raise UserError(
            f"{run} is a run of kind '{kind[:40]}', which keeps no networks to choose from; give the run directory of "
            "a finished search or tailoring, or export its bundle without --budget."
        )
    layout.own(layout.result)
    if read_result(run) is None:
        resume = command("segtailor", "resume", path_argument(run))
        raise RunProblem(
            f"the run {run} is not finished, so its networks are not final; go on with: {resume}"
        )
    networks = kept_networks(run, image, tailoring=kind == TAILOR)
    if not networks:
        raise Unsupported(
            f"the run {run} kept no networks with weights; a search does where networks share weights (`segtailor "
            "search elastic`, and `tailor` with it). Train one of its architectures and export that bundle."
        )
    target = text(recipe, "request", "target") if kind == TAILOR else text(recipe, "cost", "target")
    return KeptFront(
        run=run,
        image=image,
        target=target or DEFAULT_TARGET,
        data=text(recipe, "request", "data") if kind == TAILOR else text(recipe, "data"),
        networks=networks,
    )


def kept_networks(run: Path, image: tuple[int, int], *, tailoring: bool) -> tuple[KeptNetwork, ...]:
    """Return the networks with weights of a run, each once, best quality first.

    Of one that a tailoring trained, its training counts and not what the search judged.
    """
    layout = Layout(run)
    judged = list(_judged(layout, layout.stage(SEARCH) if tailoring else run, image))
    trained = list(_trained(layout, judged, image)) if tailoring else []
    share = _share_of_judged(trained, judged)
    once = {row.fingerprint: replace(row, rank=share * row.quality) for row in judged}
    once |= {row.fingerprint: row for row in trained}
    ranked = sorted(once.values(), key=lambda row: (-row.rank, row.evidence != "trained", row.fingerprint))
    return tuple(ranked)


def _share_of_judged(trained: Sequence[KeptNetwork], judged: Sequence[KeptNetwork]) -> float:
    """Return what a judged quality is worth beside a trained one: less than all of it where training reached less.

    The images of the search are then easier than those of the validation split.
    """
    before = {row.fingerprint: row.quality for row in judged}
    both = [(row.quality, before.get(row.fingerprint, 0.0)) for row in trained]
    return min((after / first for after, first in both if first > after), default=1.0)


def _judged(layout: Layout, searched: Path, image: tuple[int, int]) -> Iterator[KeptNetwork]:
    """Yield the networks on the front of a one-shot search."""
    folder = layout.own(Layout(searched).fronts)
    if not folder.is_dir():
        return
    names = sorted(path.name for path in folder.iterdir() if FINGERPRINT.fullmatch(path.name))
    if len(names) > MAX_NETWORKS:
        raise RunProblem(f"{folder} holds {len(names)} networks; at most {MAX_NETWORKS} are looked at.")
    for name in names:
        facts, fingerprint, counted = _bundle(layout, folder / name, image)
        quality, cost = number(facts, "numbers", "judged"), number(facts, "numbers", "cost")
        if fingerprint != name or quality is None or not 0 <= quality <= 1:
            raise _damaged(folder / name, "it does not say what the search judged there")
        yield KeptNetwork(
            network=name,
            fingerprint=name,
            bundle=folder / name,
            quality=quality,
            rank=quality,
            evidence="judged",
            cost=cost if cost is not None and cost > 0 else math.inf,
            size=counted,
        )


def _trained(layout: Layout, judged: Sequence[KeptNetwork], image: tuple[int, int]) -> Iterator[KeptNetwork]:
    """Yield the networks that a tailoring trained; their folders follow from their names."""
    file = layout.own(layout.stages / "recommend.json")
    if not file.is_file():
        return
    costs = {row.fingerprint: row.cost for row in judged}
    compared = rows(read_json(file, what="networks of the tailoring", error=RunProblem), "networks")
    for row in compared[:MAX_NETWORKS]:
        name, quality = text(row, "network"), number(row, "miou")
        folder = layout.stage(training_folder(name))
        bundle = layout.own(Layout(folder).weights)
        if quality is None or not 0 <= quality <= 1:
            raise _damaged(file, f"it does not say what {name} reached")
        _, fingerprint, counted = _bundle(layout, bundle, image)
        yield KeptNetwork(
            network=name,
            fingerprint=fingerprint,
            bundle=bundle,
            quality=quality,
            rank=quality,
            evidence="trained",
            cost=costs.get(fingerprint, math.inf),
            size=counted,
        )


def _bundle(layout: Layout, folder: Path, image: tuple[int, int]) -> tuple[dict[str, Any], str, Count]:
    """Return the description, fingerprint and size of a bundle in a run, without its weights."""
    file, weights = layout.own(folder / DESCRIPTION), layout.own(folder / WEIGHTS)
    facts = read_json(file, what="bundle", error=RunProblem)
    if not isinstance(facts, dict):
        raise _damaged(folder, f"{DESCRIPTION} is no JSON object")
    arch = parse_architecture(facts.get("architecture"), what=f"bundle {folder}")
    task = from_json(Task, facts.get("task"), what=f"task of bundle {folder}", error=RunProblem)
    counted = count(arch, image=image, classes=task.outputs)
    if not weights.is_file():
        raise _damaged(folder, f"{WEIGHTS} is missing")
    if not MIN_WEIGHT_BYTES * counted.params <= weights.stat().st_size <= MAX_FILE_BYTES:
        raise _damaged(folder, f"{WEIGHTS} is {weights.stat().st_size} bytes, which cannot be its weights")
    return facts, fingerprint_of(arch), counted


def _damaged(place: Path, why: str) -> RunProblem:
    return RunProblem(f"{place} is damaged: {why}. Restore it from a copy of the run.")


def pick_within(front: KeptFront, budget_ms: float, *, time: Callable[[KeptNetwork], TimedNetwork]) -> Pick:
    """Time networks, the best that may keep the budget first, until no better one is left that may.

    Those that cannot keep it, judging by the times of others, are left out.
    """
    timed: list[TimedKept] = []
    by_fingerprint = {row.fingerprint: row for row in front.networks}
    networks = [replace(row, quality=row.rank) for row in front.networks]

    def expected_ms(one: KeptNetwork) -> float | None:
        priced = [row.without_disturbance() for row in timed if math.isfinite(row.cost)]
        return nearest_ms(one.cost, priced) if priced and math.isfinite(one.cost) else None

    def keeps(row: TimedKept) -> bool:
        return row.p95_ms <= budget_ms

    while one := next_to_time(networks, timed, expected_ms=expected_ms, keeps=keeps, budget_ms=budget_ms):
        row = _timed(one, time, budget_ms)
        timed.append(row)
    best = max(filter(keeps, timed), key=lambda row: row.quality, default=None)
    return Pick(chosen=None if best is None else by_fingerprint[best.fingerprint], timed=tuple(timed))


def _timed(one: KeptNetwork, time: Callable[[KeptNetwork], TimedNetwork], budget_ms: float) -> TimedKept:
    row = time_undisturbed(lambda: time(one), limit_ms=budget_ms)
    return TimedKept(
        network=one.network,
        median_ms=row.median_ms,
        p95_ms=row.p95_ms,
        min_ms=row.min_ms,
        making_seconds=row.making_seconds,
        fingerprint=one.fingerprint,
        quality=one.rank,
        cost=one.cost,
    )


@dataclass(frozen=True, kw_only=True)
class FrontExport:
    """An export of the best network within a budget that has been checked and can be carried out."""

    front: KeptFront
    budget_ms: float
    out: Path
    options: ExportOptions
    first: ExportPlan

    def preview(self) -> dict[str, Json]:
        """Return what would be considered and written."""
        return {
            **self._asked(),
            "considered": [_row(one) for one in self.front.networks],
            "files": [str(file) for file in (self.out / DESCRIPTION, self.out / WEIGHTS, *self.first.files)],
        }

    def carry_out(self, time: Callable[[KeptNetwork], TimedNetwork]) -> dict[str, Json]:
        """Time, choose, copy and export; where no network keeps the budget, write nothing and name the fastest."""
        picked = pick_within(self.front, self.budget_ms, time=time)
        chosen = picked.chosen
        times = {row.fingerprint: row for row in picked.timed}
        shown = picked.fastest if chosen is None else times[chosen.fingerprint]
        one = next(row for row in self.front.networks if row.fingerprint == shown.fingerprint)
        document: dict[str, Json] = {
            **self._asked(),
            "met": chosen is not None,
            "model": None if chosen is None else str(self.out),
            "network": one.network,
            "fingerprint": one.fingerprint,
            "quality": one.quality,
            "evidence": one.evidence,
            "params": one.size.params,
            "latency_ms": shown.median_ms,
            "p95_ms": shown.p95_ms,
            "considered": [_row(row, times.get(row.fingerprint)) for row in self.front.networks],
        }
        if chosen is None:
            return document
        exported = self._write(chosen, shown)
        return document | exported.document() | self._next(chosen)

    def _asked(self) -> dict[str, Json]:
        return {
            "run": str(self.front.run),
            "out": str(self.out),
            "budget_ms": self.budget_ms,
            "target": self.front.target,
            "includes": timed_stages(self.front.target),
            "image": list(self.front.image),
        }

    def _write(self, chosen: KeptNetwork, timed: TimedKept) -> Exported:
        """Write bundle and export together, or nothing."""
        model = load_bundle(chosen.bundle)
        height, width = self.front.image
        measured: dict[str, Json] = {
            "quality": chosen.quality,
            "evidence": chosen.evidence,
            "latency_ms": timed.median_ms,
            "p95_ms": timed.p95_ms,
            "target": self.front.target,
            "budget_ms": self.budget_ms,
        }
        placed = replace(
            model,
            provenance={**model.provenance, "image": [height, width]},
            numbers={**model.numbers, "within_budget": measured},
        )
        with new_folder(self.out, what="network within the budget") as folder:
            save_bundle(folder, placed)
            options = self.options.copy()
            options["out"] = folder
            exported = plan_export(placed, **options).carry_out()
        return replace(
            exported,
            files=tuple(self.out / file.name for file in exported.files),
            verify=self.out / exported.verify.name,
            programs=tuple(self.out / file.name for file in exported.programs),
        )

    def _next(self, chosen: KeptNetwork) -> dict[str, Json]:
        """Return the command that trains a judged network: its weights are those that it shared with others."""
        if chosen.evidence == "trained" or not self.front.data:
            return {}
        layout = Layout(self.front.run)
        searched = Layout(layout.stage(SEARCH)) if layout.stages.is_dir() else layout
        file = layout.own(searched.architecture(chosen.fingerprint))
        if not file.is_file():
            return {}
        words = ("--data", self.front.data, "--start", path_argument(self.out))
        out = self.out.with_name(f"{self.out.name}-trained")
        train = command("segtailor", "train", path_argument(file), *words, "--out", path_argument(out))
        return {"next": train}


def plan_front_export(
    run: str | Path,
    budget_ms: float,
    *,
    target: str | None = None,
    **options: Unpack[ExportOptions],
) -> FrontExport:
    """Check an export within a budget before anything is timed; see `ExportOptions` for what can be asked.

    `out` is a new folder, by default one beside the run that is named after the budget.
    """
    front = kept_front(Path(run))
    place = parse_target(target or front.target)
    if target is not None and place != place.unrounded:
        raise Unsupported(
            f"export --budget writes a file in fp32, so networks cannot be timed on {place}. Use --target "
            f"{place.unrounded}, and afterwards export --precision int8 for the bundle that it writes."
        )
    front = replace(
        front,
        target=str(place.unrounded),
        image=options.get("image") or front.image,
    )
    options["image"] = front.image
    given = options.get("out")
    out = _beside(Path(run), budget_ms) if given is None else Path(given)
    if out.is_symlink() or (out.exists() and not out.is_dir()) or (out.is_dir() and any(out.iterdir())):
        raise UserError(
            f"{out} is there already; give a new folder for the chosen network, e.g. --out {out}-2."
        )
    options["out"] = out
    first = plan_export(load_bundle(front.networks[0].bundle), **options)
    return FrontExport(front=front, budget_ms=budget_ms, out=out, options=options, first=first)


def _beside(run: Path, budget_ms: float) -> Path:
    place = run if run.name else run.resolve()
    return place.with_name(f"{place.name}-{budget_ms:g}ms")


def _row(one: KeptNetwork, timed: TimedKept | None = None) -> Json:
    row: dict[str, Json] = {
        "network": one.network,
        "fingerprint": one.fingerprint,
        "quality": one.quality,
        "evidence": one.evidence,
        "params": one.size.params,
        "macs": one.size.macs,
        "latency_ms": None if timed is None else timed.median_ms,
        "p95_ms": None if timed is None else timed.p95_ms,
    }
    return row
