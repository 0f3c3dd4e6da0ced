"""The device pack: a JSON file with a latency table, the conditions of its measurement, and how well its prices agree.

`LatencyTable` is the cost that looks up prices in a pack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar

from segtailor.core.atomic import write_json
from segtailor.core.codec import Json, from_json, read_json, to_json
from segtailor.core.errors import MissingCost, Unsupported, UserError, unknown
from segtailor.core.plan import OpCall, Plan
from segtailor.core.registry import OPERATORS
from segtailor.core.target import parse_target
from segtailor.core.text import command
from segtailor.costs.keys import describe_call, key_of, split_call
from segtailor.ops.convolutions import HiddenClassifier

FORMAT = 1
MAX_PACK_BYTES = 64 * 2**20  # the largest shipped pack has about 2 MiB
RUNTIME_PACKAGES = {  # whose version changes latencies; of all others it is torch
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "ncnn": "ncnn",
    "litert": "ai-edge-litert",
    "executorch": "executorch",
    "tensorrt": "tensorrt",
}
DISTURBED_RATIO = 1.2  # median over fastest run: beyond this, other programs disturbed a network


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Time of one call in microseconds (the fastest of many runs, so undisturbed by other programs), with its spread.

    `kernels` is the number of kernels that the runtime uses for the call; 0 runs means that the time is estimated.
    """

    us: float
    spread: float = 0.0
    runs: int = 0
    kernels: int = 1


@dataclass(frozen=True, kw_only=True)
class Correction:
    """Fitted on whole networks: a call costs `slope` times its entry, plus `per_kernel_us` for each kernel."""

    slope: float = 1.0
    per_kernel_us: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Price and measured times of one whole network."""

    fingerprint: str
    predicted_ms: float
    measured_ms: float
    median_ms: float

    @property
    def disturbed(self) -> bool:
        """Whether other programs disturbed it: half of its runs are much slower than the fastest."""
        return self.median_ms > DISTURBED_RATIO * self.measured_ms


@dataclass(frozen=True, kw_only=True)
class Trust:
    """How prices agree with random networks that the correction was not fitted on; `mape` is a fraction."""

    pearson: float
    spearman: float
    mape: float
    networks: tuple[Checked, ...]


@dataclass(frozen=True, kw_only=True)
class Pack:
    """A latency table and everything it depends on. Operators in `free` cost nothing in this table."""

    space: str
    settings: Mapping[str, Any]
    image: tuple[int, int]
    classes: int
    target: str
    machine: Mapping[str, Any]
    entries: Mapping[str, Entry]
    conditions: Mapping[str, Any] = field(default_factory=dict)
    free: tuple[str, ...] = ()
    correction: Correction = Correction()
    trust: Trust | None = None
    source: str = ""
    format: int = FORMAT

    def summary(self) -> dict[str, Json]:
        """Return the most important figures."""
        estimated = sum(not entry.runs for entry in self.entries.values())
        trust = self.trust
        return {
            "entries": len(self.entries),
            "estimated": estimated,
            "pearson": trust.pearson if trust else None,
            "spearman": trust.spearman if trust else None,
            "mape": trust.mape if trust else None,
            "networks": len(trust.networks) if trust else 0,
            "disturbed": sum(one.disturbed for one in trust.networks) if trust else 0,
            "warnings": [str(text) for text in self.conditions.get("warnings", ())],
        }

    def document(self) -> dict[str, Json]:
        """Return the JSON document."""
        return to_json(self)  # type: ignore[no-any-return]

    def write(self, path: Path) -> None:
        """Write the pack file, completely or not at all."""
        write_json(path, self.document(), what="device pack")


@dataclass(frozen=True, kw_only=True)
class Use:
    """What a pack is needed for; fields that are None are not compared."""

    space: str | None = None
    image: tuple[int, int] | None = None
    classes: int | None = None
    target: str | None = None
    machine: Mapping[str, Any] | None = None

    def differences(self, pack: Pack) -> list[str]:
        """List the differences between `pack` and this use, one line each."""
        differences = []
        for name in ("space", "image", "classes"):
            wanted, had = getattr(self, name), getattr(pack, name)
            if wanted is not None and wanted != had:
                differences.append(f"{name}: the pack has {_text(had)}, wanted is {_text(wanted)}")
        if self.target is not None and parse_target(self.target) != parse_target(pack.target):
            differences.append(f"target: the pack has {pack.target}, wanted is {self.target}")
        if self.machine is not None:
            differences += _machine_differences(pack, self.machine)
        return differences


@dataclass(frozen=True, kw_only=True)
class LatencyTable:
    """Milliseconds from a pack, with its correction. `of(plan)` is exactly the sum of `price` over its calls.

    The correction is a factor and an overhead per kernel, which both belong to calls. There is no offset per network:
    it would gain a few microseconds and break additivity, which supernets need for their expected latency.
    """

    pack: Pack
    unit: ClassVar[str] = "ms"

    def price(self, call: OpCall) -> float:
        """Return the corrected milliseconds of one call."""
        correction = self.pack.correction
        entries = self.entries(call)
        us = correction.slope * sum(entry.us for entry in entries)
        return (us + correction.per_kernel_us * sum(entry.kernels for entry in entries)) / 1000

    def of(self, plan: Plan) -> float:
        """Return the corrected milliseconds of the deployed plan."""
        return sum(map(self.price, plan.calls))

    def entries(self, call: OpCall) -> list[Entry]:
        """Return the entries that make up a call: its own, or those of its parts."""
        whole = self.pack.entries.get(key_of(call)) or self._other_classes(call)
        if whole is not None:
            return [whole]
        entries = []
        for part in () if self._free(call) else split_call(call):
            if self._free(part):
                continue
            entry = self.pack.entries.get(key_of(part))
            if entry is None:
                raise self._missing(call)
            entries.append(entry)
        return entries

    def _other_classes(self, call: OpCall) -> Entry | None:
        """Return the price of a classifier with another number of classes: that of the pack's, in proportion to MACs.

        Only its last 1x1 convolution depends on the classes, so the entry is off by little.
        """
        if not isinstance(call.op, HiddenClassifier) or call.channels == self.pack.classes:
            return None
        known = replace(call, channels=self.pack.classes)
        entry = self.pack.entries.get(key_of(known))
        return None if entry is None else replace(entry, us=entry.us * call.macs() / known.macs())

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
            f"the latency table has no entry for {describe_call(call)}. Either the network is not of space "
            f"'{pack.space}' ({settings or 'as it is'}) at {image} with {pack.classes} classes, or "
            f"calibration ended early. Measure it with: {measure}; --set NAME=VALUE there has "
            "other settings of the space."
        )


def read_pack(path: Path, *, use: Use | None = None, force: bool = False) -> Pack:
    """Read a pack file; one that was made for something else is refused unless `force`."""
    document = read_json(path, what="device pack", limit=MAX_PACK_BYTES)
    pack = parse_pack(document, what=f"device pack {path}")
    if use is not None and not force:
        refuse_other(pack, use, what=f"device pack {path}")
    return pack


def parse_pack(document: Any, *, what: str) -> Pack:
    """Validate a pack document."""
    if not isinstance(document, dict):
        raise UserError(f"{what}: expected a JSON object with 'format' and 'entries'. Is it the right file?")
    if document.get("format") != FORMAT:
        raise UserError(
            f"{what}: format is {document.get('format')!r}, this version reads format {FORMAT}. "
            "Calibrate again with `segtailor calibrate`, or use the version that wrote it."
        )
    pack = from_json(Pack, document, what=what)
    parse_target(pack.target)
    for key, entry in pack.entries.items():
        if not 0 <= entry.us < 1e9 or entry.kernels < 0:  # also refuses nan
            raise UserError(f"{what}: entry {key[:100]} takes {entry.us} us; calibrate again.")
    return pack


def refuse_other(pack: Pack, use: Use, *, what: str) -> None:
    """Raise if the pack was made for another machine, space, target or size, naming every difference."""
    differences = use.differences(pack)
    if differences:
        raise Unsupported(
            f"{what} does not fit: {'; '.join(differences)}. Calibrate for this use with `segtailor calibrate`, "
            "or add --force (force=True) if the prices are meant all the same."
        )


def shipped_packs() -> tuple[str, ...]:
    """Return the names of the packs that come with the package."""
    folder = resources.files("segtailor.costs") / "packs"
    return tuple(
        sorted(file.name.removesuffix(".json") for file in folder.iterdir() if file.name.endswith(".json"))
    )


def shipped_pack(name: str) -> Pack:
    """Return a pack that comes with the package, e.g. `fasterseg-1080ti`."""
    if name not in shipped_packs():
        raise unknown("shipped device pack", name, shipped_packs())
    with resources.as_file(resources.files("segtailor.costs") / "packs" / f"{name}.json") as path:
        return read_pack(path)


def _machine_differences(pack: Pack, here: Mapping[str, Any]) -> list[str]:
    """Compare hardware, and of the software only the package that runs the target."""
    names = ["cpu", "cores", "system"] if pack.target.startswith("cpu") else ["gpus", "driver"]
    pairs = [(name, pack.machine.get(name), here.get(name)) for name in names]
    runtime = parse_target(pack.target).runtime
    package = RUNTIME_PACKAGES.get(runtime, "torch")
    then, now = (machine.get("versions", {}).get(package) for machine in (pack.machine, here))
    pairs.append((package, then, now))
    return [
        f"{name}: measured on {_text(then)}, this machine has {_text(now)}"
        for name, then, now in pairs
        if to_plain(then) != to_plain(now)
    ]


def to_plain(value: Any) -> Any:
    """Return lists for tuples, so that what was read from a file compares equal."""
    return list(value) if isinstance(value, tuple) else value


def _text(value: Any) -> str:
    if isinstance(value, tuple) and len(value) == 2:
        return f"{value[0]}x{value[1]}"
    return str(value)
