"""Int8 is kept only where it is faster beyond doubt and loses little."""

from typing import Any

import pytest

from segtailor.core.codec import from_json, to_json
from segtailor.core.errors import UserError
from segtailor.deploy.int8_decision import Int8Decision, Reading, decide_int8


def reading(ms: float, miou: float = 0.7, **changes: Any) -> Reading:
    facts = {"target": "cpu/openvino/int8", "p95_ms": 1.1 * ms, "spread": 0.04} | changes
    return Reading(median_ms=ms, miou=miou, **facts)


@pytest.mark.parametrize(
    ("before", "after", "kept", "says"),
    [
        (reading(10), reading(5), True, "50% of the time"),
        (reading(10), reading(5, 0.691), True, "loses 0.90 points"),
        (reading(10), reading(5, 0.71), True, "gains 1.00 points"),
        (
            reading(10),
            reading(16),
            False,
            "not faster on cpu/openvino/int8 (10.00 ms in fp32, 16.00 ms in int8)",
        ),
        (reading(10), reading(10), False, "not faster"),
        (reading(10), reading(9.7), False, "3.0% faster"),
        (reading(10), reading(9.7), False, "within the measurement's spread of 4.0%"),
        (reading(10), reading(9.5), True, "95% of the time"),
        (reading(10), reading(9.5, spread=0.2), False, "spread of 20.0%"),
        (reading(10, spread=0.2), reading(9.5), False, "spread of 20.0%"),
        (reading(10), reading(5, 0.68), False, "loses 2.00 points of mIoU, 1.00 are allowed"),
        (reading(10), reading(5, float("nan")), False, "points of mIoU"),
    ],
)
def test_int8_is_judged_on_speed_and_quality(before: Reading, after: Reading, kept: bool, says: str) -> None:
    found = decide_int8(before, after)
    assert found.kept is kept
    assert says in found.reason
    assert found.reason.count(".") >= 1
    assert found.reason.endswith(".")


def test_both_reasons_against_it_are_given() -> None:
    found = decide_int8(reading(10), reading(20, 0.5))
    assert "not faster" in found.reason
    assert "loses 20.00 points" in found.reason


def test_the_limit_is_the_users() -> None:
    assert decide_int8(reading(10), reading(5, 0.68), limit=0.03).kept
    assert not decide_int8(reading(10), reading(5, 0.699), limit=0.0).kept


@pytest.mark.parametrize("limit", [-0.1, 1.5, float("nan")])
def test_a_limit_that_is_no_share_is_refused(limit: float) -> None:
    with pytest.raises(UserError, match="fraction from 0 to 1"):
        decide_int8(reading(10), reading(5), limit=limit)


def test_a_decision_is_plain_data() -> None:
    decision = Int8Decision(
        target="cpu/openvino/int8",
        kept=True,
        reason="fast.",
        before=reading(10),
        after=reading(5),
        ratio=0.5,
        miou_change=0.0,
        limit=0.01,
        label_agreement=0.99,
        images=4,
        samples=8,
        method="onnxruntime",
        data="synthetic",
        image=(96, 128),
        includes="network",
        source="00",
        file="model.int8.onnx",
    )
    assert from_json(Int8Decision, to_json(decision), what="decision") == decision
