"""Gradient search on the two published spaces, and their recipes as data."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from segtailor.core.codec import from_json, to_json
from segtailor.core.cost import Within
from segtailor.core.errors import MissingCost, Unsupported
from segtailor.core.plan import Shape
from segtailor.core.strategy import Problem
from segtailor.costs import LatencyTable, Macs, Pack, Params
from segtailor.costs.keys import key_of
from segtailor.costs.pack import Entry
from segtailor.data.synthetic import Synthetic
from segtailor.nets.supernet import SupernetSettings
from segtailor.spaces.hyper_cell import OWN_PATHS, HyperCell, MultiScale
from segtailor.spaces.inverted_residual import InvertedResidual
from segtailor.strategies.candidates import ArchitecturePrices
from segtailor.strategies.choosing import Choosing, sampled_picks
from segtailor.strategies.gradient import GradientSearch
from segtailor.strategies.gradient_settings import Choice, CostTerm, Gradient, Learning, LogitOptimiser
from segtailor.strategies.halves import HalvedTrain
from segtailor.strategies.saved_supernet import load_supernet, read_facts
from segtailor.systems import autortnet, squeezenas
from segtailor.testing import check_strategy
from segtailor.verbs.search import towards_budget

SIZE = (32, 64)
CELLS = HyperCell(depths=(2, 3, 3), widths=(4, 4, 4), stem=4, wiring=replace(OWN_PATHS, width=4),
                  context=MultiScale(branch=4, output=4, rates=(2,)))  # fmt: skip
BLOCKS = InvertedResidual()


def problem(space: Any, **changes: Any) -> Problem:
    halved = HalvedTrain(dataset=Synthetic(size=SIZE, images={"train": 8}))
    standard: dict[str, Any] = {
        "space": space,
        "cost": Macs(),
        "objective": Within(limit=math.inf),
        "task": halved.task,
        "image": Shape(3, *SIZE),
        "data": halved.halves(),
    }
    return Problem(**{**standard, **changes})


def short(strategy: Gradient, *, steps: int, **changes: Any) -> Gradient:
    fit = replace(strategy.fit, steps=steps, batch=2, precision="fp32")
    supernet = SupernetSettings(affine=strategy.supernet.affine)
    choice = Choice(samples=min(2, strategy.choice.samples), recalibrate=1)
    brief: dict[str, Any] = {"fit": fit, "supernet": supernet, "choice": choice, "augment": None}
    return replace(strategy, **{**brief, "marks": steps, "judge_every": 0, **changes})


def finished(strategy: Gradient, asked: Problem) -> GradientSearch:
    job = GradientSearch(strategy, asked)
    for _ in job.steps():
        pass
    return job


def rows(job: GradientSearch) -> list[Any]:
    found: list[Any] = [row["roles"]["student"] for row in job.trajectory]  # type: ignore[index, call-overload]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("soft", marks=pytest.mark.slow),
        "pair",
        pytest.param("path", marks=pytest.mark.slow),
        pytest.param("prune", marks=pytest.mark.slow),
    ],
)
def test_depth_logits_stay_frozen_for_a_third_and_then_move(mode: Any) -> None:
    strategy = short(replace(autortnet.PAPER_STRATEGY, mode=mode, record=mode == "soft"), steps=3)
    found = [row["probabilities"] for row in rows(finished(strategy, problem(CELLS)))]
    depths, operators = ([row[name] for row in found] for name in ("depth2", "normal2_edge02"))
    assert depths[0] == depths[1]
    assert depths[2] != depths[1]
    assert len({tuple(row) for row in operators}) == len(operators)  # operators move from the first step on


@pytest.mark.slow
def test_a_large_gamma_makes_the_expected_depths_fall() -> None:
    own = autortnet.SMALL_STRATEGY
    strategy = replace(own, cost=replace(own.cost, weight=5.0), mode="path")
    pressed = short(strategy, steps=8, logits=LogitOptimiser(lr=0.3), groups={}, learn=Learning())
    found = rows(finished(pressed, problem(CELLS)))
    for name, start in (("expected_depth1", 1.5), ("expected_depth2", 2.0), ("expected_depth3", 2.0)):
        assert found[0][name] == pytest.approx(start, abs=0.05)
        assert found[-1][name] < 0.8 * start
    assert found[-1]["cost"] < found[0]["cost"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["squeezenas", "autortnet"])
def test_the_fast_path_of_a_recipe_moves_logits_and_weights_as_the_plain_one_does(name: str) -> None:
    row, asked = (squeezenas.PAPER, BLOCKS) if name == "squeezenas" else (autortnet.PAPER, CELLS)
    fast = short(row.strategy, steps=2, supernet=row.strategy.supernet, learn=Learning())
    fast = replace(fast, fit=replace(fast.fit, accumulate=1))
    assert fast.supernet.fused
    plain = replace(fast, record=False, supernet=SupernetSettings(affine=fast.supernet.affine))
    updates, tables = [], []
    for how in (fast, plain):
        job = GradientSearch(how, problem(asked))
        weights: list[Tensor] = list(job._engine.module.parameters())
        before = _flat(weights)
        job._advance()
        updates.append(_flat(weights) - before)
        tables.append(job.probabilities["student"])
    # Float32 through twenty blocks of small maps; in float64 the supernets' own tests ask for much less.
    assert (updates[0] - updates[1]).norm() < 0.01 * updates[1].norm()
    assert updates[1].norm() > 0
    for key, found in tables[0].items():
        assert found == pytest.approx(tables[1][key], abs=1e-4), key


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([row.detach().flatten() for row in tensors])


@pytest.mark.slow
def test_a_saved_supernet_of_each_space_judges_as_the_search_did(tmp_path: Path) -> None:
    for name, asked, strategy in (
        ("blocks", BLOCKS, squeezenas.SMALL),
        ("cells", CELLS, autortnet.SMALL),
    ):
        how = replace(short(strategy.strategy, steps=2), choice=Choice(samples=1, recalibrate=1, images=1))
        job = finished(how, problem(asked))
        job.save_supernet(tmp_path / name)
        facts = read_facts(tmp_path / name)
        again = replace(job._judge, supernet=load_supernet(tmp_path / name, facts))
        for _, arch in job._shortlist("student"):
            assert again(arch) == pytest.approx(job._judge(arch), abs=1e-6)


@pytest.mark.slow
def test_searches_on_both_spaces_repeat_and_resume(tmp_path: Path) -> None:
    small = short(squeezenas.SMALL_STRATEGY, steps=2)
    small = replace(small, choice=Choice(samples=1, recalibrate=0, images=1))
    check_strategy(small, problem(BLOCKS), tmp_path / "blocks")
    check_strategy(short(autortnet.PAPER_STRATEGY, steps=2), problem(CELLS), tmp_path / "cells")


@pytest.mark.slow
def test_a_search_of_blocks_samples_within_the_budget() -> None:
    limit = 6_500_000.0
    strategy = short(towards_budget(squeezenas.SMALL_STRATEGY), steps=2)
    result: Any = finished(strategy, problem(BLOCKS, limit=limit)).result()
    assert result["met"] is True
    assert result["cost"] <= limit
    assert result["architecture"]["family"] == "inverted_residual"
    assert len(result["trials"]) >= 3


@pytest.mark.parametrize("space", [BLOCKS, CELLS])
def test_picks_become_affordable_by_giving_up_little(space: Any) -> None:
    asked = problem(space)
    generator = torch.Generator().manual_seed(0)
    tables = {
        row.name: torch.rand(len(row.options), generator=generator).softmax(0).tolist()
        for row in space.decisions
    }
    picks = space.discretise(tables)
    start = asked.price(space.architecture(picks))
    asked = replace(asked, limit=0.8 * start)
    supernet = space.supernet(asked.image, asked.task.outputs)
    choosing = Choosing(asked, supernet, price=Macs().price, prices=ArchitecturePrices(asked))
    cheaper = choosing.affordable(picks, tables)
    assert asked.price(space.architecture(cheaper)) <= 0.8 * start
    assert sum(cheaper[name] != picks[name] for name in picks) < len(picks) / 2


def table(space: Any, *, without: int = 0) -> LatencyTable:
    """A pack in which every call takes a microsecond per 1000 multiply-accumulates."""
    asked = problem(space)
    calls = list(space.calls(asked.image, asked.task.outputs))
    entries = {key_of(call): Entry(us=call.macs() / 1000 + 0.1, runs=9) for call in calls[without:]}
    pack = Pack(
        space="inverted_residual" if space is BLOCKS else "hyper_cell",
        settings={},
        image=SIZE,
        classes=asked.task.outputs,
        target="cpu/eager/fp32",
        machine={},
        entries=entries,
    )
    return LatencyTable(pack=pack)


@pytest.mark.slow
@pytest.mark.parametrize("space", [BLOCKS, CELLS])
@pytest.mark.parametrize("kind", ["latency", "params"])
def test_either_space_is_searched_under_any_additive_cost(space: Any, kind: str) -> None:
    cost: Any = table(space) if kind == "latency" else Params()
    strategy = short(autortnet.PAPER_STRATEGY, steps=1, groups={})
    result = finished(strategy, problem(space, cost=cost)).result()
    assert result["unit"] == ("ms" if kind == "latency" else "params")
    assert result["cost"] > 0  # type: ignore[operator]


@pytest.mark.parametrize("space", [BLOCKS, CELLS])
def test_a_pack_that_misses_entries_is_refused_before_any_work(space: Any) -> None:
    with pytest.raises(MissingCost, match="segtailor calibrate"):
        autortnet.PAPER_STRATEGY.check(problem(space, cost=table(space, without=1)))


def test_samples_follow_the_distribution() -> None:
    decisions = BLOCKS.decisions[:1]
    shares = {"block0": [0.5, 0.0, 0.5, *[0.0] * 10]}
    drawn = [row["block0"] for row in sampled_picks(decisions, shares, count=400, seed=1)]
    assert set(drawn) == {0, 2}
    assert 150 < drawn.count(0) < 250


@pytest.mark.parametrize("row", [squeezenas.SMALL, squeezenas.PAPER, autortnet.SMALL, autortnet.PAPER])
def test_recipes_survive_the_way_through_json(row: Any) -> None:
    assert from_json(Gradient, to_json(row.strategy), what="strategy") == row.strategy
    assert from_json(type(row.space), to_json(row.space), what="space") == row.space


def test_autortnet_has_the_published_settings() -> None:
    row = autortnet.PAPER
    fit, logits, cost = row.strategy.fit, row.strategy.logits, row.strategy.cost
    assert (fit.epochs, fit.batch, fit.lr, fit.momentum, fit.weight_decay) == (150, 16, 0.025, 0.9, 1e-3)
    assert fit.lr * fit.schedule.factor(150, total=150, steps_per_epoch=1) == pytest.approx(0.001)
    assert (logits.lr, logits.betas, logits.weight_decay) == (1e-3, (0.5, 0.999), 1e-4)
    assert cost == CostTerm(weight=0.01, form="log", of="sampled")
    values = [row.strategy.temperature.at(epoch, total=150, per_epoch=1) for epoch in (0, 75, 149)]
    assert values == pytest.approx([3.0, 1.515, 0.0498], abs=1e-4)
    assert row.strategy.learning("depth").warmup == pytest.approx(50 / 150)
    assert row.strategy.learning("op").warmup == 0
    assert row.strategy.mode == "soft"
    assert row.strategy.record
    with pytest.raises(Unsupported, match="record"):  # that mode needs to look at each draw
        replace(row.strategy, mode="pair")
    assert isinstance(row.space, HyperCell)
    assert row.space.depths == (5, 10, 10)


def test_squeezenas_has_the_published_settings() -> None:
    strategy = squeezenas.PAPER_STRATEGY
    assert (strategy.temperature.start, strategy.temperature.end) == (5.0, 1.0)
    assert (strategy.updates, strategy.mode, strategy.per_image) == ("joint", "soft", True)
    assert (strategy.remove_below, strategy.choice.samples) == (0.005, 200)
    assert strategy.cost.of == "probabilities"
