"""Operator calls as text, which is the key in every cost table, and back."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache

from segtailor.core.codec import canonical, from_json, to_json
from segtailor.core.errors import UserError
from segtailor.core.plan import OpCall, Shape
from segtailor.core.registry import OPERATORS
from segtailor.ops import Concat, Resize, Sum

MAX_SIZE = 2**20  # channels, height, width or stride of a call that is read from a file


@lru_cache(maxsize=2**16)
def key_of(call: OpCall) -> str:
    """Return the canonical JSON of a call: operator with all its fields, input shapes, channels, stride."""
    kind = OPERATORS.name_of(type(call.op))
    return canonical(
        {
            "op": {"kind": kind, **to_json(call.op)},
            "inputs": [list(shape) for shape in call.inputs],
            "channels": call.channels,
            "stride": call.stride,
        }
    )


def call_of(key: str) -> OpCall:
    """Read a key; raise if it is not a call that its operator accepts."""
    try:
        data = json.loads(key)
        fields = dict(data["op"])
        kind = fields.pop("kind")
        inputs = tuple(Shape(*map(_number, shape)) for shape in data["inputs"])
        channels, stride = _number(data["channels"]), _number(data["stride"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"'{key[:100]}' is not an operator call; write the file again.") from None
    op = from_json(OPERATORS.get(kind), fields, what=f"operator '{kind}'")
    call = OpCall(op=op, inputs=inputs, channels=channels, stride=stride)
    if not inputs or min(call.output()) < 1:
        raise UserError(f"'{key[:100]}' is an operator call without input or output; write the file again.")
    return call


def split_call(call: OpCall) -> tuple[OpCall, ...]:
    """Split a call into calls that a table holds: a join of different sizes becomes resizes and a join of equal sizes.

    A family that joins any two sizes has a number of joins that is quadratic or worse; this leaves a few. Runtimes
    execute these parts anyway.
    """
    if isinstance(call.op, Resize):
        source, like = call.inputs
        return (replace(call, inputs=(source, like._replace(channels=1)), channels=source.channels),)
    if not isinstance(call.op, Sum | Concat):
        return (call,)
    like = call.inputs[call.op.like]
    resize = Resize(align_corners=call.op.align_corners)
    resizes = [
        OpCall(op=resize, inputs=(shape, like._replace(channels=1)), channels=shape.channels)
        for shape in call.inputs
        if shape[1:] != like[1:]
    ]
    equal = tuple(like._replace(channels=shape.channels) for shape in call.inputs)
    join = replace(call, op=type(call.op)(), inputs=equal)  # settings have no effect on equal sizes
    return (*resizes, join) if len(equal) > 1 else tuple(resizes)


def describe_call(call: OpCall) -> str:
    """Describe a call in words, for messages."""
    kind = OPERATORS.name_of(type(call.op))
    fields = ", ".join(f"{name}={value}" for name, value in to_json(call.op).items())
    maps = " + ".join("x".join(map(str, shape)) for shape in call.inputs)
    return f"{kind}({fields}) on {maps} to {call.channels} channels at stride {call.stride}"


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SIZE:
        raise ValueError(value)
    return value
