"""`segtailor export`: write a trained network as a file for a runtime, and check that it computes the same."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from segtailor.core.errors import UserError
from segtailor.core.shipped import DESCRIPTION, bundle_folder, is_shipped
from segtailor.core.target import parse_budget_ms, timed_stages
from segtailor.core.task import KIND_FACTS, Figure
from segtailor.core.text import command, path_argument
from segtailor.runs import Context
from segtailor.verbs.options import CountOrZero, DryRun, Force, Json, Positive, Size, Words
from segtailor.verbs.output import Printer, emit, note, with_display

if TYPE_CHECKING:
    from segtailor.recipes.export import ExportOptions
    from segtailor.recipes.front import KeptFront, KeptNetwork
    from segtailor.recipes.timed import TimedNetwork

INT8_TARGETS = {  # where int8 is measured for kinds of files that can have it, if not said otherwise
    "onnx": "cpu/openvino/int8",
    "ncnn": "cpu/ncnn/int8",
    "litert": "cpu/litert/int8",
}
TIMING_SECONDS = 1.0  # of a network of a run, at least


@dataclass(frozen=True, kw_only=True)
class ExportFlags:
    """Inputs, precision and outputs of the file."""

    image: Size | None = None
    """Size HEIGHTxWIDTH; that of the data it was trained on when left out, 512x1024 where that is unknown."""
    dynamic: Annotated[bool, Parameter(negative=())] = False
    """Accept images of other sizes too (onnx, openvino, exported-program)."""
    precision: Literal["fp32", "fp16", "int8"] = "fp32"
    """Precision inside; inputs and outputs stay single precision. int8 (onnx, ncnn, litert) needs --data, and is kept
    only if it pays."""
    budget: Words | None = None
    """A limit such as 12ms or 60fps: choose the best network that keeps it among those that a run kept."""
    target: str | None = None
    """Where networks are timed for --budget (that of the run when left out), or where int8 is measured beside fp32
    (cpu/openvino/int8 for onnx, cpu/ncnn/int8, cpu/litert/int8 when left out)."""
    tune_steps: CountOrZero = 300
    """Steps of fine-tuning with the rounding of int8 inside, on the training images of --data. It is done only if int8
    is faster but loses more than a point of mIoU. 0 for none."""
    output: Literal["logits", "labels", "depth", "heatmaps"] = "logits"
    """Logits at the network's own stride, or finished results: labels at image size (resize and arg max inside the
    file), depth at image size in metres, heatmaps at a quarter of it."""
    preprocess: Annotated[bool, Parameter(negative=())] = False
    """Normalise inside the file: it reads uint8 pixels (1, height, width, 3)."""
    confidence: Annotated[bool, Parameter(negative=())] = False
    """Add a second output `confidence` to a file of labels: the probability of each label."""
    unsure: Positive | None = None
    """Add the confidence and a third output `unsure` to a file of labels: 255 where the label is less likely than this
    probability, otherwise 0."""
    data: str | None = None
    """Dataset whose validation images the file is checked on; rendered scenes and noise when left out."""
    out: Path | None = None
    """Folder to write to. The bundle itself when left out; with --budget a new folder beside the run."""
    with_example: Annotated[bool, Parameter(negative=())] = False
    """Also write short Python and C++ programs that read a picture and write its labels with the file."""
    force: Force = False


def export_(
    model: str,
    *,
    to: Literal[
        "onnx",
        "openvino",
        "torchscript",
        "exported-program",
        "ncnn",
        "litert",
        "executorch",
        "coreml",
        "tensorrt",
    ] = "onnx",
    flags: Annotated[ExportFlags, Parameter(name="*")] = ExportFlags(),
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Write a trained network as a file for a runtime, run it there, and keep it only if it computes the same.

    With --budget, MODEL is a finished search or tailoring, and the best network that it kept within the budget is
    exported. The exit code is 1 if none keeps it; then nothing is written.

    Parameters
    ----------
    model:
        Folder of a bundle, or the name of shipped weights (give --out for these). With --budget: a run directory.
    to:
        Kind of file.
    """
    from segtailor.recipes.export import plan_export
    from segtailor.recipes.front import is_run

    if flags.budget is not None:
        return _export_within(model, to, flags, dry_run=dry_run, json=json)
    if is_run(model):
        raise UserError(
            f"export: {model} is a run directory. Give the bundle of its network (RUN/weights of a training), or "
            "--budget, e.g. 12ms, to choose among the networks that a search or tailoring kept."
        )
    quantised = flags.precision == "int8"
    if quantised:
        _check_int8(to, flags)
    plan = plan_export(
        model,
        **_options(to, flags),
    )
    if quantised and flags.out is not None and not dry_run:
        _copy_bundle(model, plan.out)
    height, width = plan.graph.image
    if plan.assumed:
        note(
            f"the bundle does not say its image size: {height}x{width} is used; --image HxW chooses another."
        )
    document: dict[str, Any] = (
        {"files": [str(file) for file in plan.files], "image": [height, width]}
        if dry_run
        else plan.carry_out().document()
    )
    if quantised and not dry_run:
        document["int8"] = _int8(str(plan.out), to, flags, with_display(Context(), json=json))
    emit(document, lambda printer: _print(printer, document, dry_run=dry_run), json=json)
    return 0


def _options(to: str, flags: ExportFlags) -> ExportOptions:
    return {
        "to": to,
        "image": flags.image,
        "dynamic": flags.dynamic,
        "precision": "fp32" if flags.precision == "int8" else flags.precision,
        "output": flags.output,
        "preprocess": flags.preprocess,
        "confidence": flags.confidence,
        "unsure": flags.unsure,
        "data": flags.data,
        "out": flags.out,
        "force": flags.force,
        "example": flags.with_example,
    }


def _export_within(run: str, to: str, flags: ExportFlags, *, dry_run: bool, json: bool) -> int:
    """Choose among the networks of a run by --budget, and export the chosen one."""
    from segtailor.recipes.front import plan_front_export

    if flags.precision == "int8":
        raise UserError(
            "export --budget times networks as --target says; --precision int8 is for a bundle. Leave it out, and "
            "quantise the bundle that this command writes."
        )
    budget_ms = parse_budget_ms(str(flags.budget))
    plan = plan_front_export(run, budget_ms, target=flags.target, **_options(to, flags))
    document: dict[str, Any] = plan.preview() if dry_run else plan.carry_out(partial(_time, plan.front))
    emit(document, lambda printer: _print_choice(printer, document, dry_run=dry_run), json=json)
    if dry_run or document["met"]:
        return 0
    note(
        f"missed: no network of {run} keeps {budget_ms:g} ms on {plan.front.target}: the fastest, "
        f"{document['network']}, takes {document['latency_ms']:.3g} ms, 95 % of runs within "
        f"{document['p95_ms']:.3g} ms. Nothing was written."
    )
    return 1


def _time(front: KeptFront, network: KeptNetwork) -> TimedNetwork:
    """Time a network of a run on its target, from image to labels."""
    from segtailor.recipes.timed import TimedNetwork
    from segtailor.targets.timing import TimingSettings
    from segtailor.verbs.bench import bench

    begin = time.monotonic()
    (row,) = bench(
        [network.bundle],
        [front.target],
        image=front.image,
        includes=timed_stages(front.target),
        settings=TimingSettings(seconds=TIMING_SECONDS),
    )
    making = time.monotonic() - begin - row.warm_up_seconds - row.seconds
    note(f"{network.network}: {row.median_ms:.3g} ms, 95 % of runs within {row.p95_ms:.3g} ms")
    return TimedNetwork(
        network=network.network,
        median_ms=row.median_ms,
        p95_ms=row.p95_ms,
        making_seconds=round(max(making, 0.0), 2),
        min_ms=row.min_ms,
    )


def _print_choice(printer: Printer, document: dict[str, Any], *, dry_run: bool) -> None:
    rows = [
        [
            row["network"],
            f"{100 * row['quality']:.1f}",
            row["evidence"],
            f"{row['params'] / 1e6:.2f} M",
            *("–" if row[name] is None else f"{row[name]:.3f}" for name in ("latency_ms", "p95_ms")),
        ]
        for row in document["considered"]
    ]
    columns = ["network", ">mIoU %", "evidence", ">parameters", ">median ms", ">p95 ms"]
    printer.table(None, columns, rows)
    if dry_run:
        height, width = document["image"]
        printer.say(
            "",
            f"would time them on {document['target']} at {height}x{width}, best first, until one keeps "
            f"{document['budget_ms']:g} ms",
            f"would write {' and '.join(document['files'])}",
        )
        return
    if not document["met"]:
        return
    how = "after its training" if document["evidence"] == "trained" else "by the weights of the search"
    printer.say(
        "",
        f"chosen: {document['network']}, {100 * document['quality']:.1f} % mIoU {how}, {document['p95_ms']:.3g} ms "
        f"(95 % of runs), within {document['budget_ms']:g} ms on {document['target']}",
    )
    _print(printer, document, dry_run=False)
    if "next" in document:
        printer.say(f"it may gain by a short training: {document['next']}")


def _check_int8(to: str, flags: ExportFlags) -> None:
    from segtailor.core.target import parse_target

    if to not in INT8_TARGETS or flags.dynamic or flags.data is None:
        raise UserError(
            "int8: ranges come from pictures, so give --data, and neither --dynamic nor another kind of file than "
            f"{', '.join(INT8_TARGETS)}."
        )
    runtimes = ("onnxruntime", "openvino") if to == "onnx" else (to,)
    if flags.target is not None and parse_target(flags.target).runtime not in runtimes:
        raise UserError(
            f"int8: {flags.target} does not run the file of --to {to}; give a target such as {INT8_TARGETS[to]}."
        )


def _copy_bundle(model: str, out: Path) -> None:
    """Copy a bundle to where its int8 file will be: the decision is kept with the network that it is about."""
    from segtailor.core.atomic import write_bytes, writing
    from segtailor.nets.bundle import WEIGHTS

    source = bundle_folder(model) if is_shipped(model) else Path(model)
    if out.resolve() == source.resolve():
        return
    contents = {name: (source / name).read_bytes() for name in (DESCRIPTION, WEIGHTS)}
    for name, content in contents.items():
        if (out / name).exists() and (out / name).read_bytes() != content:
            raise UserError(
                f"int8: {out} holds another bundle than {model}. Give that folder as the model, or another --out."
            )
    with writing(out, what="bundle"):
        out.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_bytes(out / name, content, what="bundle")


def _int8(bundle: str, to: str, flags: ExportFlags, context: Context) -> dict[str, Any]:
    from segtailor.core.codec import to_json
    from segtailor.recipes.quantise import Int8Settings, quantise
    from segtailor.recipes.quantise_aware import TuningSettings

    steps, display = flags.tune_steps, context.display
    settings = Int8Settings(tuning=TuningSettings(steps=steps, context=context) if steps else None)
    if display is not None:
        display.open("int8")
    try:
        decision = quantise(
            bundle,
            data=str(flags.data),
            target=flags.target or INT8_TARGETS[to],
            settings=settings,
            progress=None if display is None else display.step,
            force=flags.force,
        )
    finally:
        if display is not None:
            display.close()
    return dict(to_json(decision))


def _headlines() -> list[Figure]:
    return [facts.headline for facts in KIND_FACTS.values()]


def _print(printer: Printer, document: dict[str, Any], *, dry_run: bool) -> None:
    written = " and ".join(document["files"])
    if dry_run:
        height, width = document["image"]
        printer.say(f"would write {written} for images of {height}x{width}")
        return
    if document["equal"] is None:
        printer.say(f"wrote {written}", f"not checked: {document['reason']}")
        return
    headline = next(fact for fact in _headlines() if fact.name == document["headline"])
    worst, drift = document["max_logit_difference"], document[f"{headline.name}_drift"]
    facts = [f"{document['label_agreement']:.3%} of predictions agree with the network"]
    facts += [] if worst is None else [f"logits differ by at most {worst:.2g}"]
    facts += [] if drift is None else [f"{headline.label} moved by {100 * drift:+.2f} points"]
    pictures = f"{document['conditions']['images']} images"
    printer.say(f"wrote {written}", f"checked on {pictures}: {', '.join(facts)}")
    if not document["ran"]:
        printer.say(f"not run by its runtime: {document['reason']}")
    if "programs" in document:
        printer.say(f"programs that use it: {' and '.join(document['programs'])}")
    if "int8" in document:
        printer.say(f"int8: {document['int8']['reason']}")
        tuning = document["int8"]["tuning"]
        if tuning is not None:
            before, after = (f"{100 * tuning[name]:.1f} %" for name in ("miou_before", "miou_after"))
            used = "its file" if tuning["used"] else "the file without it"
            printer.say(
                f"after {tuning['steps']} steps of fine-tuning with rounding, mIoU in int8 is {after}, not {before}; "
                f"{used} is taken"
            )
    first = document["files"][0]
    if first.endswith(".onnx"):
        bench = command("segtailor", "bench", path_argument(first), "--target", "cpu/onnxruntime/fp32")
        printer.say(f"next: {bench}")
