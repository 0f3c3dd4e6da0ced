"""FasterSeg's collapse at matched latency: the bisection, what is counted and told, a whole run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.fasterseg_collapse import (
    COMMON,
    DECOUPLED,
    KINDS,
    NONE,
    estimate,
    figures,
    matched,
    table,
    weighed,
)

from benchmarks import fasterseg_collapse
from segtailor.costs import Macs
from segtailor.spaces.multi_resolution import BranchCell, MultiResolutionArchitecture
from segtailor.systems import fasterseg
from tests.benchmarks.programs import options_of, record_of


def found(weight: float, latency: float, *, matched: bool = True) -> dict[str, Any]:
    left = {"cells": 8, "ratio": 6, "expected_width": 6.5, "skip_share": 0.2, "work_left": 0.4}
    return {"weight": weight, "latency": latency, "matched": matched, **left}


def test_weights_are_bisected_until_the_latency_is_met() -> None:
    tried = matched(
        lambda _, weight: {"weight": weight, "latency": 1 / weight},
        2.0,
        weights=(0.01, 100.0),
        searches=20,
        tolerance=0.05,
    )
    assert [row["weight"] for row in tried[:2]] == pytest.approx([1.0, 0.1])
    assert tried[-1]["weight"] == pytest.approx(0.5, rel=0.05)
    assert len(tried) < 10


def test_the_number_of_searches_is_bounded_where_the_latency_jumps() -> None:
    tried = matched(
        lambda number, weight: {"weight": weight, "latency": 1.0 if weight > 0.3 else 3.0, "number": number},
        2.0,
        weights=(0.01, 100.0),
        searches=4,
        tolerance=0.05,
    )
    assert [row["number"] for row in tried] == [0, 1, 2, 3]


def test_terms_differ_in_what_they_charge_and_nothing_changes_their_weight() -> None:
    common, decoupled = weighed(COMMON, 0.5), weighed(DECOUPLED, 0.5)
    assert (
        (common.cost.weight, common.cost.window)
        == (decoupled.cost.weight, decoupled.cost.window)
        == (0.5, None)
    )
    assert (common.cost.shares, decoupled.cost.shares) == ("given", "balanced")
    assert {common.learning(group).cost for group in ("op", "path", "width")} == {1.0}
    assert len(common.roles) == 1
    assert weighed(NONE, 0.0).cost.weight == 0


def test_cells_of_both_branches_count_once() -> None:
    first, last = BranchCell(operator="conv", ratio=4, stride=2), BranchCell(operator="conv", ratio=8)
    end = BranchCell(operator="conv", ratio=8, stride=2)
    arch = MultiResolutionArchitecture(branches=((first, end), (first, last)))
    assert figures(arch) == {"cells": 3, "ratio": pytest.approx(20 / 3)}


def test_without_a_match_the_table_says_so_instead_of_comparing() -> None:
    row = {
        "latency": 1.0,
        NONE: found(0.0, 2.0, matched=False),
        DECOUPLED: found(0.3, 1.01),
        COMMON: found(0.2, 0.5, matched=False),
        f"{COMMON}_0": {},
        f"miou_{NONE}_0": 0.5,
        f"miou_{DECOUPLED}_0": 0.4,
    }
    told = table({"seed-0": row})
    assert (
        "| 0 | one common term | 0.2 | 0.5 | 1, missed | 1 | 8 | 6 | 6.5 | 20 | 40 | not comparable |" in told
    )
    assert "Both terms reached the latency in 0 of 1 seeds." in told
    assert "seed-0: one common term did not reach 1 ms; the closest network has 0.5 ms (weight 0.2)" in told
    both = row | {COMMON: found(0.2, 0.97), f"miou_{COMMON}_0": 0.3}
    told = table({"seed-0": both})
    assert "decoupled terms: mIoU **40.0**, 8 cells, mean ratio 6, 1.01 ms." in told
    assert "Decoupled terms ahead in 1 of 1." in told


def test_a_dry_run_counts_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "--steps 10 --ahead 5 --searches 3"
    options = options_of(fasterseg_collapse.parser_of(), words, tmp_path, monkeypatch)
    assert "at most 81 steps" in estimate(options)  # 5 + 7 x 10 + 6 x 1


@pytest.mark.slow
def test_a_seed_is_matched_trained_and_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = fasterseg.SMALL.space  # narrower than what the shipped table has prices for
    monkeypatch.setattr(fasterseg_collapse, "SPACE", space)
    monkeypatch.setattr(
        fasterseg_collapse,
        "latency_problem",
        lambda bench, recipe, *, seed: bench.problem(recipe, Macs(), seed=seed, budget=0.75),
    )
    words = "--steps 1 --ahead 1 --searches 1 --tolerance 0.9"
    options = options_of(fasterseg_collapse.parser_of(), words, tmp_path, monkeypatch)
    record = record_of(fasterseg_collapse.run_piece, options)
    for kind in KINDS:
        assert record[kind]["architecture"] == record[f"{kind}_0"]["architecture"]
        assert len([key for key in record if key.startswith(f"miou_{kind}_")]) == 2
    assert [file.name for file in options.out.iterdir()] == ["seed-0.json"]
    assert "Both terms reached the latency in 1 of 1 seeds." in table({"seed-0": record})
