"""`segtailor bench`: how long networks take on targets, measured as deployed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from segtailor.cli.options import Classes, Force, Json, Seconds, Size, Words
from segtailor.cli.output import Printer, emit, note
from segtailor.core.target import Includes, parse_budget_ms

OPERATOR_SECONDS = 0.3


@dataclass(frozen=True, kw_only=True)
class BenchFlags:
    """What to time, and how."""

    image: Size | None = None
    """Size HEIGHTxWIDTH; 512x1024 when left out. An ONNX file has its own."""
    includes: Includes = "network"
    """What is timed: the network, also arg max, also the resize to the image's size, or all from host to host."""
    classes: Classes | None = None
    """Output channels of networks without trained weights; the published number when left out."""
    budget: Words | None = None
    """A limit such as 12ms or 60fps; if the 95th percentile misses it, the exit code is 1."""
    seconds: Seconds | None = None
    """Least time to measure for, each: 2 for a network (and at least 50 samples), 0.3 for an operator of a study."""
    study: str | None = None
    """Instead of networks, time the operators of a paper's table or figure (see `segtailor list studies`)."""
    out: Path | None = None
    """With a study: folder for its figures and chart."""
    force: Force = False


def bench_(
    *models: str,
    target: Annotated[tuple[str, ...], Parameter(negative=())] = ("cpu/onnxruntime/fp32",),
    flags: Annotated[BenchFlags, Parameter(name="*")] = BenchFlags(),
    json: Json = False,
) -> int:
    """Measure how long networks take on targets, in turns, in the form that is deployed.

    Parameters
    ----------
    models:
        Published names, architecture files, bundles, ONNX files or shipped weights.
    target:
        Device, runtime and precision, e.g. cpu/onnxruntime/fp32?threads=2; may be given several times.
    """
    if flags.study is not None:
        return _study(flags, target, json=json)
    limit = None if flags.budget is None else parse_budget_ms(flags.budget)
    from segtailor.api.timing import bench
    from segtailor.targets.timing import TimingSettings

    settings = TimingSettings() if flags.seconds is None else TimingSettings(seconds=flags.seconds)
    rows = bench(
        models, target, image=flags.image, includes=flags.includes, classes=flags.classes, settings=settings
    )
    documents = [row.document() | _verdict(row, limit) for row in rows]
    emit(
        documents[0] if len(documents) == 1 else documents,
        lambda printer: _print(printer, documents),
        json=json,
    )
    for warning, names in _warnings(documents).items():
        whom = f" ({', '.join(names)})" if len(names) < len(documents) else ""
        note(f"warning: {warning}{whom}")
    for text in dict.fromkeys(text for row in documents for text in row["notes"]):
        note(f"note: {text}")
    return _missed(documents)


def _study(flags: BenchFlags, targets: Sequence[str], *, json: bool) -> int:
    """Run a study on each target and print its rows."""
    from segtailor.api.studies import study as run

    name, out, seconds = flags.study or "", flags.out, flags.seconds or OPERATOR_SECONDS
    documents = []
    for target in targets:
        folder = out if out is None or len(targets) == 1 else out / target.replace("/", "-").replace("?", "-")
        documents.append(run(name, target, out=folder, seconds=seconds, force=flags.force))
    emit(
        documents[0] if len(documents) == 1 else documents,
        lambda printer: _print_study(printer, documents),
        json=json,
    )
    return 0


def _print_study(printer: Printer, documents: list[dict[str, Any]]) -> None:
    for document in documents:
        rows = [
            [row["series"], row["label"], f"{row['ms']:.4f}", f"{row['macs'] / 1e6:.1f}", f"{row['gmacs_per_ms']:.3f}",
             "-" if row["published_ms"] is None else f"{row['published_ms']:.2f}"]
            for row in document["rows"]
        ]  # fmt: skip
        title = f"{document['title']} on {document['target']}"
        printer.table(title, ["series", "case", ">ms", ">MMACs", ">GMACs/ms", ">published ms"], rows)
        for granularity, span in document["spans_ms"].items():
            printer.say(f"span by {granularity}: {span:.4f} ms per layer")
        printer.say(document["source"])


def _missed(documents: list[dict[str, Any]]) -> int:
    """Name those that missed their budget; return the exit code."""
    missed = [row for row in documents if row.get("met") is False]
    for row in missed:
        note(f"missed: {_name(row)}: p95 {row['p95_ms']:.3f} ms, allowed {row['budget_ms']:g} ms")
    return 1 if missed else 0


def _warnings(documents: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Collect whom each warning concerns; what concerns the machine concerns all."""
    found: dict[str, list[str]] = {}
    for row in documents:
        for warning in row["warnings"]:
            found.setdefault(warning, []).append(_name(row))
    return found


def _name(row: dict[str, Any]) -> str:
    return f"{row['network']} on {row['target']}"


def _verdict(row: Any, limit: float | None) -> dict[str, Any]:
    if limit is None:
        return {}
    from segtailor.targets.timing import check_contract

    return {"budget_ms": limit, "met": check_contract(row, limit).met}


def _print(printer: Printer, documents: list[dict[str, Any]]) -> None:
    rows = []
    for row in documents:
        times = [f"{row[name]:.3f}" for name in ("median_ms", "p95_ms")]
        rows.append([row["network"], row["target"], *times, f"{row['fps']:.1f}", f"{row['spread']:.0%}"])
    columns = ["network", "target", ">median ms", ">p95 ms", ">fps", ">spread"]
    printer.table(None, columns, rows)
    machine = documents[0]["machine"]
    sizes = " and ".join(sorted({f"{row['inputs'][0][1]}x{row['inputs'][0][2]}" for row in documents}))
    included = " and ".join(sorted({str(row["includes"]) for row in documents}))
    hardware = ", ".join([machine["cpu"], f"{machine['cores']} cores", *machine["gpus"]])
    printer.say("", f"{included} at {sizes}, batch 1, on {hardware}")
