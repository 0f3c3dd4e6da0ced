"""LPS-Net's dimensions at equal compute: who may spend what, whole batches only, finalists, a whole run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.lpsnet_dimensions import ALL, ENTRANTS, NAMES, RANDOM, Meter, estimate, finalist, table

from benchmarks import lpsnet_dimensions
from segtailor.core.space import parse_architecture
from segtailor.core.strategy import Candidate, Judged, TrialResult
from segtailor.spaces.published import published
from segtailor.spaces.scalable_path import ScalablePathArchitecture
from segtailor.spaces.scalable_path.space import START_DEPTH, START_WIDTH
from tests.benchmarks.programs import options_of, record_of

NETWORK = published("lpsnet-step0")


def judged(quality: float, cost: float) -> Judged:
    candidate = Candidate(architecture=NETWORK, cost=cost)
    return Judged(candidate=candidate, result=TrialResult(id=0, status="done", quality=quality))


def test_a_meter_takes_whole_batches_until_one_is_too_much() -> None:
    meter = Meter(compute=5.0, work=lambda _: 2.0)
    assert meter.affords([NETWORK, NETWORK])
    assert not meter.affords([NETWORK])
    assert (meter.spent, meter.ended) == (4.0, True)


def test_a_finalist_uses_most_of_the_limit_and_did_best_in_its_trial() -> None:
    rows = [judged(0.9, 10), judged(0.3, 80), judged(0.4, 90)]
    assert finalist(rows, 100).cost == 90
    assert finalist(rows, 1000).cost == 90  # none uses enough of it: the costliest
    assert finalist(rows, 12).quality == 0.9


def test_a_dry_run_counts_trials_and_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = options_of(lpsnet_dimensions.parser_of(), "--limit 500kMACs --trial 3", tmp_path, monkeypatch)
    told = estimate(options).splitlines()
    trials = {
        line.split(" | ")[0].strip("| "): int(line.split(" | ")[1]) for line in told[2 : 2 + len(NAMES)]
    }
    assert trials.keys() == set(NAMES)
    steps = 3 * sum(trials.values()) + len(NAMES) * 2
    assert f"{steps:,} steps in all" in "\n".join(told)


@pytest.mark.slow
def test_entrants_spend_no_more_than_the_first_and_grow_in_their_dimension(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(
        lpsnet_dimensions.parser_of(), "--limit 300kMACs --trial 1 --steps 14", tmp_path, monkeypatch
    )
    record = record_of(lpsnet_dimensions.run_piece, options)
    for name in NAMES:
        row = record[name]
        assert row["compute"] <= record[ALL]["compute"]
        assert row["cost"] <= 300_000
        assert len([key for key in record if key.startswith(f"miou_{name}_")]) == 2
    grown = {name: parse_architecture(record[name]["architecture"]) for name in ENTRANTS}
    for name, arch in grown.items():
        assert isinstance(arch, ScalablePathArchitecture)
        assert name in (ALL, "depth alone") or arch.depth == START_DEPTH
        assert name in (ALL, "width alone") or arch.width == START_WIDTH
    assert record[RANDOM]["used"] >= 0.9
    told = table({"seed-0": record}).splitlines()
    assert [line.split(" | ")[0].strip("| ") for line in told[2:]] == list(NAMES)


def test_the_table_says_which_finalists_end_below_the_limit() -> None:
    row: dict[str, Any] = {
        name: {"cost": 1e6, "unit": "MACs", "used": 0.9, "trials": 4, "compute": 2e12} for name in NAMES
    }
    row["depth alone"] |= {"used": 0.2, "compute": 1e12}
    scores = {f"miou_{name}_0": 0.4 + 0.1 * number for number, name in enumerate(NAMES)}
    told = table({"seed-0": row | scores, "seed-1": row | scores})
    assert "| three dimensions | **40.0** ± 0.0 | 40.0 40.0 | 1 | 90% | - | 4 | 2 | 100% |  |" in told
    assert (
        "| depth alone | **50.0** ± 0.0 | 50.0 50.0 | 1 | 20% (2 ended below) | - | 4 | 1 | 50% | 2 of 2 |"
        in told
    )
