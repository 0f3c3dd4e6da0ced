"""Parts of a recipe as plain data: a registered name with its settings, a cost, an executor; and how each is built."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from segtailor.core.codec import from_json, to_json
from segtailor.core.cost import Cost
from segtailor.core.errors import UserError, unknown
from segtailor.core.memory import check_memory
from segtailor.core.ranges import check_whole
from segtailor.core.registry import Registry
from segtailor.core.strategy import Executor
from segtailor.core.target import parse_budget_ms, parse_target
from segtailor.core.trust import refuse_reach
from segtailor.costs import (
    ActivationMemory,
    LatencyTable,
    Macs,
    Params,
    Use,
    read_pack,
    shipped_pack,
    shipped_packs,
)
from segtailor.costs.measured import MeasuredLatency
from segtailor.costs.pack import refuse_other
from segtailor.strategies import EXECUTORS, Processes, Ray, Serial
from segtailor.targets.runtime import runtime_for
from segtailor.targets.timing import TimingSettings

T = TypeVar("T")
MOST_WORKERS = 10_000  # of a cluster
SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
UNITS = {"macs": "MACs", "params": "params", "memory": "bytes", "latency": "ms"}


@dataclass(frozen=True, kw_only=True)
class Part:
    """A space or strategy: the name it is registered under and all of its settings."""

    kind: str
    settings: dict[str, Any] = field(default_factory=dict)

    def build(self, registry: Registry[type[T]]) -> T:
        """Return what the name and settings stand for."""
        what = f"settings of {registry.kind} '{self.kind}'"
        return from_json(registry.get(self.kind), self.settings, what=what)


def part(registry: Registry[type[T]], kind: str, **settings: Any) -> Part:
    """Describe a part completely: defaults are written out, so that they can be read and changed."""
    known = registry.get(kind)(**settings)
    return Part(kind=kind, settings=to_json(known))


@dataclass(frozen=True, kw_only=True)
class CostSpec:
    """What a network costs. A latency comes from a device pack, or is measured on a target of this machine.

    A pack is a file, or the name of one that is shipped. `seconds` is how long each network is measured at least.
    `force` takes a pack that was made for something else.
    """

    kind: Literal["macs", "params", "memory", "latency"] = "macs"
    target: str | None = None
    pack: str | None = None
    seconds: float = 0.5
    force: bool = False

    def __post_init__(self) -> None:
        if self.kind == "latency" and self.target is None and self.pack is None:
            raise UserError(
                "cost: a latency needs a target to measure on (--target cpu/onnxruntime/fp32) or a device pack "
                "(--pack FILE)."
            )
        if self.kind != "latency" and (self.target or self.pack):
            raise UserError(f"cost: {self.kind} depends on no device; leave target and pack out.")

    @property
    def unit(self) -> str:
        """The unit of the cost and of its budget."""
        return UNITS[self.kind]

    @property
    def measured(self) -> bool:
        """Whether networks are timed on this machine."""
        return self.kind == "latency" and self.pack is None

    def build(self, use: Use, *, table: Path | None = None) -> Cost:
        """Return the cost; `table` is a copy of the pack that wins where it exists."""
        counted: dict[str, Cost] = {"macs": Macs(), "params": Params(), "memory": ActivationMemory()}
        if self.kind in counted:
            return counted[self.kind]
        if self.pack is not None:
            kept = table is not None and table.exists()
            if self.pack in shipped_packs() and not kept:
                pack = shipped_pack(self.pack)
                if not self.force:
                    refuse_other(pack, use, what=f"device pack {self.pack}")
                return LatencyTable(pack=pack)
            file = table if table is not None and kept else Path(self.pack)
            return LatencyTable(pack=read_pack(file, use=use, force=self.force))
        target = parse_target(str(self.target))
        runtime_for(target)  # refuses what cannot run here
        return MeasuredLatency(target=target, settings=TimingSettings(runs=10, seconds=self.seconds))


def parse_limit(text: str, spec: CostSpec) -> float:
    """Read a budget in the unit of a cost: `12ms`, `60fps`, or for counted costs `300M`, `1.5GMACs`."""
    if spec.kind == "latency":
        return parse_budget_ms(text)
    form = rf"([+-]?\d{{1,30}}(?:\.\d{{1,30}})?)\s*([kmgt]?)\s*(?:{spec.unit})?"
    match = re.fullmatch(form, text.strip(), re.IGNORECASE)
    if match is not None and float(match[1]) <= 0:
        raise UserError(
            f"budget '{text}' is not above zero: write for example 300M{spec.unit}, or add --target (or --pack) for "
            "a budget in milliseconds."
        )
    if match is None:
        raise UserError(
            f"budget '{text}' does not fit a cost in {spec.unit}: write for example 300M{spec.unit}, or add --target "
            "(or --pack) for a budget in milliseconds."
        )
    return float(match[1]) * SCALES[match[2].lower()]


WORKER_MEMORY = 300 * 2**20  # bytes: of a process that has imported torch and computed nothing yet


@dataclass(frozen=True, kw_only=True)
class ExecutorSpec:
    """Where trials run; `workers` at once, by default one per accelerator or core. The rest is for Ray."""

    kind: str = "serial"
    workers: int | None = None
    retries: int = 2
    timeout: float | None = None
    address: str | None = None
    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in EXECUTORS:
            raise unknown("executor", self.kind, EXECUTORS.names())
        if self.workers is not None:
            most = MOST_WORKERS if self.kind == "ray" else max(16, 4 * (os.cpu_count() or 1))
            check_whole("workers", self.workers, least=1, most=most)
        if self.kind == "serial" and (self.workers or 1) > 1:
            raise UserError(
                f"workers: the executor 'serial' has one, {self.workers} were asked; use --executor processes or ray."
            )

    def build(self, device: str, *, trusted: bool = True) -> Executor:
        """Return the executor; of several accelerators each worker gets its own in turn."""
        if self.kind == "ray" and self.address is not None:
            refuse_reach(f"send work to the Ray cluster at '{self.address}'", trusted=trusted)
        if self.kind == "serial":
            return Serial(device=device)
        places = _places(device)
        count = self.workers or len(places)
        if self.kind == "ray":
            return Ray(
                address=self.address,
                workers=count,
                cpus=self.cpus,
                gpus=self.gpus,
                device=device,
                retries=self.retries,
            )
        check_memory(
            count * WORKER_MEMORY,
            what=f"starting {count} processes for trials",
            remedy="Choose fewer (--set executor.workers=2).",
        )
        devices = tuple(places[index % len(places)] for index in range(count))
        return Processes(devices=devices, retries=self.retries, timeout=self.timeout)


def _places(device: str) -> list[str]:
    """Name the devices of the kind asked for: every accelerator, or the processor once per core."""
    kind = torch.device(device).type
    if kind == "cpu":
        return [device] * (os.cpu_count() or 1)
    return [f"{kind}:{index}" for index in range(max(1, torch.accelerator.device_count()))]
