"""Costs that need no device: multiply-accumulates, parameters, peak activation memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from segtailor.core.errors import UserError
from segtailor.core.plan import IMAGE, OpCall, Plan, Shape


@dataclass(frozen=True, kw_only=True)
class Macs:
    """Multiply-accumulates of what inference runs; additive."""

    unit: ClassVar[str] = "MACs"

    def price(self, call: OpCall) -> float:
        """Return the multiply-accumulates of one call."""
        return call.macs()

    def of(self, plan: Plan) -> float:
        """Return the multiply-accumulates of the deployed plan."""
        return sum(map(self.price, plan.calls))


@dataclass(frozen=True, kw_only=True)
class Params:
    """Learnable values of what inference runs, in inference form; additive."""

    unit: ClassVar[str] = "params"

    def price(self, call: OpCall) -> float:
        """Return the learnable values of one call."""
        return call.params()

    def of(self, plan: Plan) -> float:
        """Return the learnable values of the deployed plan."""
        return sum(map(self.price, plan.calls))


@dataclass(frozen=True, kw_only=True)
class ActivationMemory:
    """Peak bytes of live feature maps while the deployed plan runs in order; not additive.

    A map is live from the node that writes it to its last reader; inputs and output of a running node are live
    together. The image is live until its last reader, the main output until the end. Scratch memory inside an operator
    depends on the runtime and is not counted.
    """

    bytes_per_value: int = 4
    unit: ClassVar[str] = "bytes"

    def __post_init__(self) -> None:
        if self.bytes_per_value < 1:
            raise UserError(f"bytes_per_value={self.bytes_per_value}; a value takes at least 1 byte.")

    def of(self, plan: Plan) -> float:
        """Return the peak in bytes."""
        return self.bytes_per_value * max(live_values(plan))


def live_values(plan: Plan) -> list[int]:
    """Return the number of live values while each node of the deployed plan runs (the image's, if there is none)."""
    deployed = plan.deployed()
    outputs = set(deployed.outputs.values())
    last_reader = {name: index for index, node in enumerate(deployed.nodes) for name in node.inputs}
    alive = {IMAGE: values(deployed.image)}
    counts = []
    for index, node in enumerate(deployed.nodes):
        alive[node.name] = values(deployed.shape(node.name))
        counts.append(sum(alive.values()))
        for name in {*node.inputs, node.name}:
            if last_reader.get(name, -1) <= index and name not in outputs:
                alive.pop(name, None)
    return counts or [values(deployed.image)]


def values(shape: Shape) -> int:
    """Return the number of values of a feature map."""
    return shape.channels * shape.height * shape.width
