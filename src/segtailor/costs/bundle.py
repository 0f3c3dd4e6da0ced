"""Calibrate a board that cannot run this package: write a zip of operators for it, and read the results it returns."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from segtailor.core.atomic import new_file
from segtailor.core.codec import from_json, read_json
from segtailor.core.errors import Unsupported, UserError
from segtailor.core.job import Step
from segtailor.core.ownership import MARK, contains_mark
from segtailor.core.plan import OpCall
from segtailor.core.space import family
from segtailor.core.target import parse_target
from segtailor.costs import board_runner
from segtailor.costs.assembly import CalibrationSubject, Evidence, WholeNetworkTime, assemble
from segtailor.costs.entries import rank_calls
from segtailor.costs.keys import call_of, key_of
from segtailor.costs.measured import distinct_architectures
from segtailor.costs.operator_files import export_operators, level_weights
from segtailor.costs.pack import Entry, Pack
from segtailor.targets.runtime import flag

FORMAT = 1
MAX_RESULTS_BYTES = 64 * 2**20
OPERATORS_PER_EXPORT = 32
is_bundle = contains_mark(MARK.encode(), begins=b"PK")
README = """Operators of a segtailor search space, to be timed on this machine.

    pip install numpy onnxruntime        # nothing else is needed
    python board_runner.py               # writes results.json; stop other programs first

Then, on the machine with segtailor:

    segtailor calibrate --import results.json --out pack.json
"""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What a bundle contains: the most used `operators` (None: all), networks to fit on and to check on."""

    operators: int | None = None
    fit_networks: int = 10
    trust_networks: int = 30
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Contents of a bundle: the file of each call and the picks of each network, first those that are fitted on."""

    space: str
    settings: Mapping[str, Any]
    image: tuple[int, int]
    classes: int
    target: str
    threads: int | None
    spin: bool
    calls: Mapping[str, str]
    networks: Mapping[str, Mapping[str, int]]
    fit_networks: int
    format: int = FORMAT


@dataclass(frozen=True, kw_only=True)
class BoardNetworkTime:
    """Milliseconds of one whole network on the board: fastest run and median."""

    low_ms: float
    median_ms: float


@dataclass(frozen=True, kw_only=True)
class Results:
    """The results file that the runner writes on the board."""

    format: int
    manifest: Manifest
    threads: int | None
    machine: Mapping[str, Any]
    conditions: Mapping[str, Any]
    operators: Mapping[str, Entry]
    networks: Mapping[str, BoardNetworkTime]


def write_bundle(path: Path, subject: CalibrationSubject, selection: Selection) -> Iterator[Step]:
    """Write the zip file, yielding progress; it appears under its name when it is complete."""
    check_target(subject.target)
    ranked = rank_calls(subject.space, subject.shape, subject.classes, seed=selection.seed)
    calls = ranked[: selection.operators]
    with (
        new_file(path, what="bundle") as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as bundle,
    ):
        bundle.comment = MARK.encode()
        yield from _fill(bundle, subject, selection, calls)


def check_target(text: str) -> None:
    """Refuse a target that the runner on the board cannot time."""
    target = parse_target(text)
    if (target.device, target.runtime, target.precision) != ("cpu", "onnxruntime", "fp32"):
        raise Unsupported(
            f"a bundle is timed by ONNX Runtime on the CPU, not {target}; use cpu/onnxruntime/fp32."
        )


def _fill(
    bundle: zipfile.ZipFile, subject: CalibrationSubject, selection: Selection, calls: Sequence[OpCall]
) -> Iterator[Step]:
    files: dict[str, str] = {}
    for first in range(0, len(calls), OPERATORS_PER_EXPORT):
        chunk = calls[first : first + OPERATORS_PER_EXPORT]
        for call, data in zip(chunk, export_operators(chunk), strict=True):
            name = f"operators/{hashlib.sha256(data).hexdigest()[:16]}.onnx"
            if name not in files.values():
                bundle.writestr(name, data)
            files[key_of(call)] = name
        yield Step(phase="operators", done=len(files), total=len(calls))
    networks: dict[str, Mapping[str, int]] = {}
    wanted = selection.fit_networks + selection.trust_networks
    for arch in islice(distinct_architectures(subject.space, seed=selection.seed), wanted):
        name = f"networks/{len(networks):03d}.onnx"
        bundle.writestr(name, _network(subject, arch))
        networks[name] = subject.space.picks(arch)
        yield Step(phase="networks", done=len(networks), total=wanted)
    target = parse_target(subject.target)
    manifest = {
        "format": FORMAT,
        **subject.header(),
        "threads": target.threads,
        "spin": flag(target, "spin", default=True),
        "calls": files,
        "networks": networks,
        "fit_networks": selection.fit_networks,
    }
    bundle.writestr("manifest.json", json.dumps(manifest, indent=1))
    bundle.writestr("board_runner.py", Path(board_runner.__file__).read_text(encoding="utf-8"))
    bundle.writestr("README.txt", README)


def _network(subject: CalibrationSubject, arch: Any) -> bytes:
    from segtailor.deploy.fold import inference_form
    from segtailor.nets.network import Network
    from segtailor.targets.onnx import graph_of

    plan = subject.space.plan(arch, subject.shape, subject.classes).deployed()
    network = inference_form(Network(plan).eval())
    level_weights(network)
    return graph_of(network, parse_target(subject.target), (subject.shape,), pixels=False)


def import_results(path: Path) -> Pack:
    """Turn the runner's results into a device pack."""
    document = read_json(path, what="results of a bundle", limit=MAX_RESULTS_BYTES)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UserError(
            f"{path} is not a results file of format {FORMAT}; take the results.json of the runner."
        )
    results = from_json(Results, document, what=f"results {path}")
    manifest = results.manifest
    space = from_json(family(manifest.space), dict(manifest.settings), what=f"results {path}: settings")
    target = parse_target(manifest.target)
    options = {**target.options, **({"threads": str(results.threads)} if results.threads else {})}
    subject = CalibrationSubject(
        space=space,
        image=manifest.image,
        classes=manifest.classes,
        target=str(type(target)(**{**vars(target), "options": options})),
    )
    measured = {
        call_of(key): results.operators[file]
        for key, file in manifest.calls.items()
        if file in results.operators
    }
    networks = [
        WholeNetworkTime(
            picks=picks, low_ms=results.networks[name].low_ms, median_ms=results.networks[name].median_ms
        )
        for name, picks in manifest.networks.items()
        if name in results.networks
    ]
    split = manifest.fit_networks
    facts = {
        "method": "bundle timed by its own runner",
        "statistic": "fastest of the runs, each kernel by itself",
        **results.conditions,
    }
    return assemble(
        subject,
        Evidence(measured=measured, fit=tuple(networks[:split]), trust=tuple(networks[split:])),
        rank_calls(space, subject.shape, subject.classes),
        machine=results.machine,
        conditions=facts,
    )
