"""Latency from a device pack: additive, corrected by what whole networks showed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from segtailor.core.errors import MissingCost
from segtailor.core.plan import OpCall, Plan
from segtailor.core.registry import OPERATORS
from segtailor.core.text import command
from segtailor.costs.keys import describe, key_of, parts
from segtailor.costs.pack import Entry, Pack


@dataclass(frozen=True, kw_only=True)
class LatencyTable:
    """Milliseconds from a pack. `of(plan)` is exactly the sum of `price` over its calls.

    The correction is a factor and an overhead per kernel, both of which belong to calls; there is no offset per
    network, which would break additivity (and a supernet's expectation) for a few microseconds.
    """

    pack: Pack
    unit: ClassVar[str] = "ms"

    def price(self, call: OpCall) -> float:
        """Return the corrected milliseconds of one call."""
        correction = self.pack.correction
        found = self.entries(call)
        us = correction.slope * sum(entry.us for entry in found)
        return (us + correction.per_kernel_us * sum(entry.kernels for entry in found)) / 1000

    def of(self, plan: Plan) -> float:
        """Return the corrected milliseconds of what inference runs."""
        return sum(map(self.price, plan.calls))

    def entries(self, call: OpCall) -> list[Entry]:
        """Return the entries that make up a call: its own, or those of its parts."""
        entries = self.pack.entries
        own = entries.get(key_of(call))
        if own is not None:
            return [own]
        found = []
        for part in () if self._free(call) else parts(call):
            if self._free(part):
                continue
            entry = entries.get(key_of(part))
            if entry is None:
                raise self._missing(call)
            found.append(entry)
        return found

    def _free(self, call: OpCall) -> bool:
        return OPERATORS.name_of(type(call.op)) in self.pack.free

    def _missing(self, call: OpCall) -> MissingCost:
        pack = self.pack
        image = "x".join(map(str, pack.image))
        measure = command(
            *("segtailor", "calibrate", "--space", pack.space, "--target", pack.target),
            *("--image", image, "--classes", pack.classes),
        )
        single = {name: value for name, value in pack.settings.items() if isinstance(value, str | int)}
        settings = ", ".join(f"{name}={value}" for name, value in single.items())
        return MissingCost(
            f"the latency table has no entry for {describe(call)}. Either the network is not of space "
            f"'{pack.space}' ({settings or 'as it is'}) at {image} with {pack.classes} classes, or "
            f"calibration ended early. Measure it with: {measure}; --set NAME=VALUE there has "
            "other settings of the space."
        )
