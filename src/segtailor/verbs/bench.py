"""`segtailor bench`: how long networks take on targets, measured as deployed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from segtailor.core.plan import MAIN, Shape
from segtailor.core.shipped import is_shipped
from segtailor.core.space import Architecture, family_of
from segtailor.core.target import Includes, Target, parse_budget_ms, parse_target
from segtailor.verbs.options import Classes, Json, Seconds, Size, Words
from segtailor.verbs.output import Printer, emit, note

if TYPE_CHECKING:
    from segtailor.nets.network import Network
    from segtailor.targets.benchmark import OnnxSubject, Subject
    from segtailor.targets.timing import Measurement, TimingSettings

TIMING_SIZE = (512, 1024)  # height and width that networks are timed at unless told otherwise


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
    """Least time to measure each network for: 2 seconds, and at least 50 samples."""


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
    from segtailor.targets.timing import TimingSettings

    limit = None if flags.budget is None else parse_budget_ms(flags.budget)
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
        concerned = f" ({', '.join(names)})" if len(names) < len(documents) else ""
        note(f"warning: {warning}{concerned}")
    for text in dict.fromkeys(text for row in documents for text in row["notes"]):
        note(f"note: {text}")
    return _exit_code(documents)


def bench(
    models: Sequence[str | Path | Architecture | Network],
    targets: Sequence[str | Target],
    *,
    image: tuple[int, int] | None = None,
    includes: Includes = "network",
    classes: int | None = None,
    settings: TimingSettings | None = None,
    channels: int = 3,
) -> list[Measurement]:
    """Measure networks on targets in the form that is deployed, in turns; one row per network and target.

    A model is a published or shipped name, an architecture (file), a bundle folder, an ONNX file, or a built network.
    Those that are built here have `classes` and read images of so many `channels`.
    """
    from segtailor.targets.benchmark import benchmark
    from segtailor.targets.runtime import runtime_for

    parsed = [parse_target(target) if isinstance(target, str) else target for target in targets]
    for place in parsed:
        runtime_for(place)  # refuses what cannot run before any network is built
    subjects = [
        _subject(model, image=image, includes=includes, classes=classes, channels=channels)
        for model in models
    ]
    return benchmark(subjects, parsed, settings)


def _subject(
    model: str | Path | Architecture | Network,
    *,
    image: tuple[int, int] | None,
    includes: Includes,
    classes: int | None,
    channels: int,
) -> Subject | OnnxSubject:
    """Return what is timed for a model as a user names it."""
    from segtailor.core.task import Preprocessing
    from segtailor.deploy.fold import inference_form
    from segtailor.deploy.stages import staged
    from segtailor.nets.bundle import load_bundle
    from segtailor.nets.models import model_place
    from segtailor.nets.network import Network
    from segtailor.spaces.networks import create, expand, published_classes
    from segtailor.spaces.published import is_published
    from segtailor.targets.benchmark import Subject, check_memory, read_onnx

    if isinstance(model, str | Path) and str(model).endswith(".onnx"):
        return read_onnx(Path(model), image=image, includes=includes)
    size, preprocessing, task = image or TIMING_SIZE, Preprocessing(), None
    if isinstance(model, Network):
        network, name = model, family_of(model.architecture)
    elif isinstance(model, str | Path) and not is_published(str(model)) and _is_bundle(model):
        bundle = load_bundle(model_place(model))
        network, preprocessing, name = bundle.network, bundle.preprocessing, Path(model).resolve().name
        task = bundle.task
    else:
        outputs_wanted = published_classes(model) if classes is None else classes
        network = create(model, classes=outputs_wanted, channels=channels)
        if channels != 3:
            preprocessing = Preprocessing(
                mean=(0.5,) * channels, std=(0.25,) * channels, ranges=((0.0, 255.0),) * channels
            )
        name = str(model) if isinstance(model, str | Path) else family_of(model)
    outputs = network.plan.shape(network.plan.outputs[MAIN]).channels
    check_memory(expand(network.architecture, image=size, classes=outputs).deployed())
    module = staged(inference_form(network), includes, preprocessing=preprocessing, image=size, task=task)
    return Subject(
        name=name, module=module, inputs=(Shape(network.plan.image.channels, *size),), includes=includes
    )


def _is_bundle(model: str | Path) -> bool:
    return is_shipped(model) or Path(model).is_dir()


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


def _warnings(documents: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return the names of the rows that each warning concerns."""
    concerned: dict[str, list[str]] = {}
    for row in documents:
        for warning in row["warnings"]:
            concerned.setdefault(warning, []).append(_name(row))
    return concerned


def _exit_code(documents: list[dict[str, Any]]) -> int:
    """Return 1 if a network missed its budget, after naming those that did."""
    missed = [row for row in documents if row.get("met") is False]
    for row in missed:
        note(f"missed: {_name(row)}: p95 {row['p95_ms']:.3f} ms, allowed {row['budget_ms']:g} ms")
    return 1 if missed else 0


def _name(row: dict[str, Any]) -> str:
    return f"{row['network']} on {row['target']}"
