"""The sentence at the top tells of what is delivered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from segtailor.runs import Context
from segtailor.tailoring.context import Context
from segtailor.tailoring.reporting import delivered_miou, verdict
from tests.tailoring.test_job import recipe


def context(
    int8: dict[str, Any], *, network: str = "searched", best_ready: str | None = "lpsnet-s", steps: int = 100
) -> Context:
    rows = [
        {"network": "searched", "miou": 0.4, "steps": 100, "p95_ms": 5.5},
        {"network": "lpsnet-s", "miou": 0.3, "steps": steps, "p95_ms": 3.0},
    ]
    chosen = next(row for row in rows if row["network"] == network)
    outcomes = {
        "recommend": {**chosen, "worth": network == "searched", "networks": rows, "best_ready": best_ready},
        "int8": int8,
        "contract": {"met": True, "p95_ms": 3.0, "budget_ms": 5.0, "target": "cpu/onnxruntime/fp32"},
    }
    return Context(recipe=recipe(), folder=Path("runs"), around=Context(), outcomes=outcomes)


@pytest.mark.parametrize(("kept", "miou"), [(False, 0.4), (True, 0.38)])
def test_the_quality_is_that_of_the_file_which_is_delivered(kept: bool, miou: float) -> None:
    found = context({"kept": kept, "after": {"miou": 0.38}})
    assert delivered_miou(found) == miou
    assert f"{100 * miou:.1f} % mIoU" in verdict(found)
    assert "the best ready network (lpsnet-s) reached 30.0 %" in verdict(found)


def test_a_ready_network_that_wins_is_named_beside_the_searched_one() -> None:
    told = verdict(context({"kept": False}, network="lpsnet-s"))
    assert told.startswith("Use the ready network lpsnet-s: 30.0 % mIoU")
    assert told.endswith("the searched network reached 40.0 % but takes 5.50 ms.")


def test_without_a_ready_network_in_the_budget_that_is_said() -> None:
    assert verdict(context({"kept": False}, best_ready=None)).endswith(
        "no ready network that was tried kept the budget."
    )


@pytest.mark.parametrize("steps", [10, 99, 300])
def test_networks_that_were_not_trained_alike_are_not_compared_in_silence(steps: int) -> None:
    told = verdict(context({"kept": False}, steps=steps))
    assert f"reached 30.0 % after {steps} steps of training against 100, which is no fair comparison." in told


def test_without_time_for_a_ready_network_that_is_said() -> None:
    place = context({"kept": False}, best_ready=None)
    place.outcomes["recommend"]["networks"][:] = place.outcomes["recommend"]["networks"][:1]
    assert verdict(place).endswith("there was no time to train a ready network beside it.")


def test_a_ready_network_in_place_of_all_that_was_found_is_named() -> None:
    place = context({"kept": False}, network="lpsnet-s")
    place.outcomes["recommend"]["networks"][:] = place.outcomes["recommend"]["networks"][1:]
    assert verdict(place).endswith("no network of the search kept the budget.")
