"""Which ready networks are compared with: what is known to keep the budget is not measured again."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from segtailor.core.space import architecture_document, family_of, fingerprint_of
from segtailor.costs.pack import read_pack
from segtailor.costs.trust import with_scaled_prices
from segtailor.runs import Context, Layout
from segtailor.spaces.networks import count, resolve
from segtailor.spaces.published import published
from segtailor.tailoring.context import Context
from segtailor.tailoring.finding import KIN, OTHERS, SLACK, _pack_minutes, _worth_a_look, choose, pack, ready
from tests.tailoring.test_job import recipe

WINNER = "lpsnet-step1"
IMAGE = (32, 64)


def context(folder: Path, *, budget_ms: float, **known: float) -> Context:
    """A winner that takes a millisecond, and ready networks of known latency."""
    file = folder / "winner.json"
    file.write_text(json.dumps(architecture_document(published(WINNER))))
    outcomes = {
        "choose": {"architecture": str(file), "median_ms": 1.0, "p95_ms": 1.1},
        "fastest": {
            "networks": [
                {"network": name.replace("_", "-"), "median_ms": p95, "p95_ms": p95, "making_seconds": 1.0}
                for name, p95 in known.items()
            ]
        },
    }
    plan = recipe()
    request = replace(plan.request, target="cpu/eager/fp32?threads=1", budget_ms=budget_ms)
    plan = replace(plan, request=request, image=IMAGE, timing_seconds=0.01)
    around = Context(cache=folder / "cache", device="cpu")
    return Context(recipe=plan, folder=folder, around=around, outcomes=outcomes)


@pytest.mark.parametrize("budget_ms", [0.5, 2.0, 10.0])
def test_only_networks_that_may_keep_the_budget_are_looked_at(tmp_path: Path, budget_ms: float) -> None:
    likely = max(1.0, budget_ms) * count(WINNER, image=IMAGE).macs
    for name in _worth_a_look(context(tmp_path, budget_ms=budget_ms)):
        kin = family_of(resolve(name)) == family_of(published(WINNER))
        assert count(name, image=IMAGE, classes=11).macs <= 1.05 * (KIN if kin else OTHERS) * likely


def test_the_best_expected_of_the_networks_known_to_keep_the_budget_is_taken_unmeasured(
    tmp_path: Path,
) -> None:
    place = context(tmp_path, budget_ms=1.0, lpsnet_step0=0.3, lpsnet_step1=0.9)
    place = replace(place, recipe=replace(place.recipe, effort=replace(place.recipe.effort, baselines=1)))
    assert ready(place)["networks"] == [place.outcomes["fastest"]["networks"][1]]
    tight = context(tmp_path, budget_ms=0.5, lpsnet_step0=0.3, lpsnet_step1=0.9)
    assert ready(tight)["networks"][0] == tight.outcomes["fastest"]["networks"][0]


def test_none_is_taken_where_none_keeps_the_budget_or_none_is_wanted(tmp_path: Path) -> None:
    tight = context(tmp_path, budget_ms=1e-3, lpsnet_step0=0.3, lpsnet_step1=0.9)
    assert ready(tight) == {"networks": []}
    loose = context(tmp_path, budget_ms=1.0, lpsnet_step0=0.3)
    none = replace(loose.recipe, effort=replace(loose.recipe.effort, baselines=0))
    assert ready(replace(loose, recipe=none)) == {"networks": []}


@dataclass(frozen=True, kw_only=True)
class Told(Context):
    """A target that is told, not measured: so many multiply-accumulates in a millisecond."""

    macs_per_ms: float = 1e6

    def look(self, model: Any) -> dict[str, float]:
        p95 = count(resolve(model), image=self.recipe.image).macs / self.macs_per_ms
        return {"median_ms": 0.9 * p95, "p95_ms": p95, "making_seconds": 1.0}


def searched(folder: Path, names: list[str], *, budget_ms: float, fastest_ms: float) -> Told:
    """What a search found, best first, on a target that does 1 GMAC in a second."""
    layout = Layout(folder / "search")
    layout.architectures.mkdir(parents=True)
    (folder / "stages").mkdir()
    rows = []
    for number, name in enumerate(names):
        arch = published(name)
        mark = fingerprint_of(arch)
        layout.architecture(mark).write_text(json.dumps(architecture_document(arch)))
        rows.append({"trial": number, "fingerprint": mark, "quality": 0.5 - 0.1 * number, "cost": 1.0})
    known = {"network": "lpsnet-step0", "median_ms": fastest_ms, "p95_ms": fastest_ms, "making_seconds": 1.0}
    outcomes = {
        "search": {"run": str(layout.root), "found": rows},
        "pack": {"pack": None},
        "fastest": {"networks": [known]},
    }
    plan = replace(recipe(), system="lpsnet", image=IMAGE, data="synthetic:size=32x64,train=8,val=2")
    plan = replace(plan, request=replace(plan.request, budget_ms=budget_ms))
    around = Context(cache=folder / "cache", device="cpu")
    return Told(recipe=plan, folder=folder, around=around, outcomes=outcomes)


def ms(name: str) -> float:
    return count(name, image=IMAGE).macs / 1e6


def test_the_best_that_keeps_the_budget_as_measured_is_chosen(tmp_path: Path) -> None:
    place = searched(tmp_path, ["lpsnet-l", "lpsnet-s"], budget_ms=1.1 * ms("lpsnet-s"), fastest_ms=0.1)
    found = choose(place)
    assert (found["trial"], found["kept"], found["network"]) == (1, True, "searched")
    assert [row["trial"] for row in found["measured"]] == [0, 1]


@pytest.mark.parametrize("share", [0.8, 0.4, 0.2])
def test_networks_that_miss_the_budget_are_replaced_by_smaller_ones_that_keep_it(
    tmp_path: Path, share: float
) -> None:
    place = searched(tmp_path, ["lpsnet-l", "lpsnet-m"], budget_ms=share * ms("lpsnet-m"), fastest_ms=0.1)
    found = choose(place)
    assert found["kept"]
    assert found["network"] == "searched"
    assert found["p95_ms"] <= SLACK * place.recipe.request.budget_ms
    assert found["p95_ms"] >= 0.3 * place.recipe.request.budget_ms  # and not by being tiny
    assert resolve(found["architecture"]) is not None


def test_where_no_network_of_the_space_keeps_the_budget_a_ready_one_takes_its_place(tmp_path: Path) -> None:
    place = searched(tmp_path, ["lpsnet-l"], budget_ms=1e-3, fastest_ms=5e-4)
    found = choose(place)
    assert (found["network"], found["architecture"], found["kept"]) == ("lpsnet-step0", "lpsnet-step0", True)
    late = searched(tmp_path / "other", ["lpsnet-l"], budget_ms=1e-3, fastest_ms=1.0)
    assert choose(late)["kept"] is False


@pytest.mark.parametrize(
    ("left", "making", "minutes"),
    [(900.0, 1.0, 2.25), (540.0, 1.0, None), (900.0, 20.0, None), (None, 20.0, 2.25)],
)
def test_a_pack_is_made_only_where_there_is_time_for_its_networks(
    tmp_path: Path, left: float | None, making: float, minutes: float | None
) -> None:
    place = context(tmp_path, budget_ms=10.0, lpsnet_step0=1.0)
    for row in place.outcomes["fastest"]["networks"]:
        row["making_seconds"] = making
    plan = replace(place.recipe, request=replace(place.recipe.request, seconds=left and 900.0))
    effort = replace(plan.effort, pack_minutes=2.25, closing_seconds=45.0)
    plan = replace(plan, effort=effort)
    found = _pack_minutes(replace(place, recipe=plan, left=left))
    assert found == (None if minutes is None else pytest.approx(minutes, rel=0.05))


@dataclass(frozen=True, kw_only=True)
class Disturbed(Told):
    """A target on which other programs slow some runs of the first looks down."""

    looks: list[int] = field(default_factory=list)

    def look(self, model: Any) -> dict[str, float]:
        self.looks.append(1)
        found = super().look(model)
        return {**found, "p95_ms": 10 * found["p95_ms"]} if len(self.looks) < 3 else found


def test_a_network_that_only_some_runs_were_too_slow_of_is_looked_at_again(tmp_path: Path) -> None:
    told = searched(tmp_path, ["lpsnet-s"], budget_ms=1.1 * ms("lpsnet-s"), fastest_ms=0.1)
    place = Disturbed(recipe=told.recipe, folder=told.folder, around=told.around, outcomes=told.outcomes)
    found = choose(place)
    assert (found["trial"], found["kept"], len(place.looks)) == (0, True, 3)


@pytest.mark.slow
def test_a_pack_of_a_busy_time_is_scaled_before_it_is_used_again(tmp_path: Path) -> None:
    place = context(tmp_path, budget_ms=10.0, lpsnet_step0=1.0)
    (tmp_path / "stages").mkdir()
    effort = replace(place.recipe.effort, pack_minutes=0.1, pack_networks=4)
    plan = replace(place.recipe, system="lpsnet", effort=effort, data="synthetic:size=32x64,train=8,val=2")
    place = replace(place, recipe=plan)
    made = pack(place)
    assert made["made"]
    kept = tmp_path / "cache" / "packs" / "scalable_path-32x64-cpu-eager-fp32-threads-1.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    usual = read_pack(Path(made["pack"]))
    slow = replace(
        with_scaled_prices(usual, 4.0), trust=usual.trust
    )  # as if everything had taken four times as long
    slow.write(kept)
    other = replace(place, folder=tmp_path / "other")
    (tmp_path / "other" / "stages").mkdir(parents=True)
    found = pack(other)
    if found["made"]:
        pytest.skip("this machine became busy just now: the pack was made anew")
    assert 0.1 < found["ratio"] < 0.7
    mended = read_pack(Path(found["pack"]))
    assert mended.correction.slope == pytest.approx(found["ratio"] * slow.correction.slope, rel=0.01)
    assert Path(found["pack"]).is_relative_to(tmp_path / "other")
