"""Operator calls as text, and the parts that a table holds."""

from __future__ import annotations

import json

import pytest

import segtailor.spaces  # noqa: F401 - registers the families
from segtailor import tables
from segtailor.core.errors import UserError
from segtailor.core.plan import OpCall, Shape
from segtailor.core.registry import SPACES
from segtailor.costs.keys import call_of, describe_call, key_of, split_call
from segtailor.ops import Concat, Conv, Resize, Sum

IMAGE = Shape(3, 96, 128)
CONV = OpCall(op=Conv(), inputs=(Shape(8, 4, 4),), channels=16, stride=2)


@pytest.mark.parametrize("name", [name for name in tables.SPACES if name != "scalable_path"])
def test_every_call_of_every_space_survives_the_round_trip(name: str) -> None:
    calls = list(SPACES.get(name)().calls(IMAGE, 4))
    assert calls
    for call in calls:
        for part in (call, *split_call(call)):
            assert call_of(key_of(part)) == part
    assert len({key_of(call) for call in calls}) == len(calls)


def test_a_key_says_everything_that_a_time_depends_on() -> None:
    others = [
        OpCall(op=Conv(), inputs=CONV.inputs, channels=16, stride=1),
        OpCall(op=Conv(), inputs=CONV.inputs, channels=17, stride=2),
        OpCall(op=Conv(), inputs=(Shape(8, 4, 5),), channels=16, stride=2),
        OpCall(op=Conv(dilation=2), inputs=CONV.inputs, channels=16, stride=2),
        OpCall(op=Conv(activation="none"), inputs=CONV.inputs, channels=16, stride=2),
    ]
    assert len({key_of(call) for call in (CONV, *others)}) == 1 + len(others)


@pytest.mark.parametrize(
    "change",
    [
        {"channels": 0},
        {"channels": True},
        {"channels": 10**9},
        {"stride": "2"},
        {"inputs": []},
        {"inputs": [[8, 4]]},
        {"op": {"kind": "nonsense"}},
        {"op": {"kind": "conv", "colour": "red"}},
        {"op": {"kind": "conv", "kernel": "3"}},
        {"op": "conv"},
    ],
)
def test_a_damaged_key_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(UserError):
        call_of(json.dumps({**json.loads(key_of(CONV)), **change}))


@pytest.mark.parametrize("text", ["", "null", "[]", "{", "[" * 5000])
def test_text_that_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="not an operator call"):
        call_of(text)


def test_joining_different_sizes_is_resizing_then_joining_equals() -> None:
    fine, coarse = Shape(8, 12, 16), Shape(8, 6, 8)
    call = OpCall(op=Sum(align_corners=True), inputs=(fine, coarse, fine), channels=8)
    resize, join = split_call(call)
    assert resize.op == Resize(align_corners=True)
    assert resize.output() == fine
    assert join == OpCall(op=Sum(), inputs=(fine, fine, fine), channels=8)


def test_joining_like_a_coarser_map_resizes_the_finer_one() -> None:
    first, second = Shape(4, 6, 8), Shape(8, 12, 16)
    resize, join = split_call(OpCall(op=Concat(like=1), inputs=(first, second), channels=12))
    assert resize.inputs[0] == first
    assert join.inputs == (Shape(4, 12, 16), second)
    assert join.output() == Shape(12, 12, 16)


def test_a_resize_depends_on_the_size_of_its_model_only() -> None:
    source = Shape(4, 6, 8)
    calls = [OpCall(op=Resize(), inputs=(source, Shape(width, 12, 16)), channels=4) for width in (1, 7, 512)]
    assert len({split_call(call) for call in calls}) == 1


def test_other_operators_are_their_own_part() -> None:
    assert split_call(CONV) == (CONV,)


def test_parts_make_large_families_small() -> None:
    space = SPACES.get("scalable_path")(width_steps=(1, 2), ratios=("0", "1/2", "3/4", "1"))
    calls = list(space.calls(IMAGE, 4))
    distinct = {part for call in calls for part in split_call(call)}
    assert len(distinct) < len(calls)


def test_messages_name_operator_and_shapes() -> None:
    assert "conv(kernel=3" in describe_call(CONV)
    assert "8x4x4 to 16 channels at stride 2" in describe_call(CONV)
