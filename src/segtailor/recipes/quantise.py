"""Decide on int8: quantise an exported bundle, measure it beside fp32 on one runtime in one run, keep what pays.

Where rounding a trained network loses too much, it is fine-tuned with the rounding inside, and the better one is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from segtailor.core.atomic import write_bytes, write_json
from segtailor.core.codec import to_json
from segtailor.core.errors import DataProblem, Unsupported, UserError
from segtailor.core.job import Step
from segtailor.core.ownership import refuse_overwrite
from segtailor.core.target import Target, parse_target
from segtailor.core.task import needs_classes
from segtailor.core.text import command, path_argument
from segtailor.data.cache import open_pixels
from segtailor.data.dataset import Dataset, scaled_as
from segtailor.data.locate import locate
from segtailor.deploy.export import IMAGE
from segtailor.deploy.formats import DECISION_FILE, INT8_FILES
from segtailor.deploy.quantise import (
    MIOU_LIMIT,
    Feeds,
    GraphForm,
    Int8Decision,
    Int8Tuning,
    Method,
    Reading,
    SampledImages,
    check_limit,
    check_method,
    decide_int8,
    quantise_onnx,
    sample_images,
)
from segtailor.deploy.stages import staged
from segtailor.nets.bundle import Model, load_bundle
from segtailor.nets.network import Network
from segtailor.nets.onnx.graph import onnx_bytes
from segtailor.nets.onnx.int8 import read_fp32, with_metadata_of
from segtailor.recipes.quantise_aware import TuningSettings, tune
from segtailor.targets.benchmark import OnnxSubject, compile_entry, read_onnx
from segtailor.targets.runtime import Compiled, runtime_for
from segtailor.targets.timing import Measurement, TimingSettings, measure_all
from segtailor.tasks.segmentation.metrics import Confusion

FP32_FILE, INT8_FILE = "model.onnx", "model.int8.onnx"
INT8_TARGET = "cpu/openvino/int8"

Progress = Callable[[Step], None]


@dataclass(frozen=True, kw_only=True)
class Int8Settings:
    """How to quantise and to judge.

    `limit` is the mIoU that may be lost. `samples` pictures of `train_split` give the ranges; `images` of `val_split`
    are scored (all if None). Both are spread evenly over their split, by `seed`. With `tuning`, a network that loses
    more than `limit` is fine-tuned on `train_split`.
    """

    limit: float = MIOU_LIMIT
    samples: int = 64
    images: int | None = None
    method: Method = "onnxruntime"
    train_split: str = "train"
    val_split: str = "val"
    seed: int = 0
    timing: TimingSettings = field(default_factory=TimingSettings)
    tuning: TuningSettings | None = None

    def __post_init__(self) -> None:
        check_limit(self.limit)
        for name, value in (("samples", self.samples), ("images", self.images)):
            if value is not None and value < 1:
                raise UserError(f"int8: {name}={value} is too few; use 1 or more.")


def quantise(
    bundle: str | Path,
    *,
    data: str,
    target: str | Target = INT8_TARGET,
    image: tuple[int, int] | None = None,
    settings: Int8Settings | None = None,
    progress: Progress | None = None,
    force: bool = False,
) -> Int8Decision:
    """Quantise the exported `model.onnx` of a bundle with pictures of a dataset, and keep the result if it pays.

    Latency, mIoU and label agreement are those of both files on one runtime, timed in turns. `int8.json` tells the
    decision; `model.int8.onnx` is there only if int8 is kept. `image` (height, width) must be the exported size.
    Files under these names that are not ours are replaced only by `force`.
    """
    chosen, folder = settings or Int8Settings(), Path(bundle)
    place = _int8_target(target)
    check_method(chosen.method)
    refuse_overwrite([(folder / name, ours) for name, ours in INT8_FILES.items()], force=force)
    model, fp32 = load_bundle(folder), _exported(folder, image)
    dataset = _dataset(data, model)
    form = GraphForm(
        image=(fp32.inputs[0].height, fp32.inputs[0].width),
        pixels=fp32.includes == "end-to-end",
        align_corners=model.network.plan.align_corners,
        preprocessing=model.preprocessing,
    )
    samples = sample_images(dataset, chosen.train_split, count=chosen.samples, seed=chosen.seed)
    scored = sample_images(dataset, chosen.val_split, count=chosen.images, seed=chosen.seed)

    def rounded(source: OnnxSubject) -> RoundedFile:
        feeds = Feeds(samples, form, name=IMAGE, seen=_counter("calibrate", len(samples), progress))
        what = f"ONNX file {folder / FP32_FILE}"
        data = quantise_onnx(source.data, feeds, method=chosen.method, what=what)
        int8 = replace(fp32, name=INT8_FILE, data=data)
        seen = _counter("score", len(scored), progress)
        return RoundedFile(
            int8, _measure((fp32, int8), place, form=form, scored=scored, settings=chosen, seen=seen)
        )

    best, tuning = rounded(fp32), None
    if chosen.tuning is not None and (chosen.tuning.always or worth_tuning(best.rivals, chosen.limit)):
        tuned = tune(
            model,
            open_pixels(dataset, chosen.train_split, chosen.tuning.context.cache_folder),
            chosen.tuning,
            seed=chosen.seed,
            progress=progress,
        )
        other = rounded(replace(fp32, data=_with_network(model, tuned.network, fp32)))
        better = other.rivals.after.miou > best.rivals.after.miou
        tuning = Int8Tuning(
            steps=tuned.steps,
            seconds=tuned.seconds,
            miou_before=best.rivals.after.miou,
            miou_after=other.rivals.after.miou,
            used=better,
        )
        best = other if better else best
    decision = _decision(best.rivals, settings=chosen, samples=len(samples), data=data, fp32=fp32)
    decision = replace(decision, tuning=tuning)
    store(folder, decision, best.int8.data)
    return decision


class RoundedFile(NamedTuple):
    """An int8 file, and what was measured on it beside fp32."""

    int8: OnnxSubject
    rivals: Rivals


def worth_tuning(rivals: Rivals, limit: float) -> bool:
    """Tell whether int8 loses too much and is faster: a slower file would not be kept, however good."""
    loses = not rivals.before.miou - rivals.after.miou <= limit
    return loses and rivals.after.median_ms < rivals.before.median_ms


def _with_network(model: Model, network: Network, fp32: OnnxSubject) -> bytes:
    """Return the exported file with another network of the same form inside."""
    source = read_fp32(fp32.data)
    confident = len(source.graph.output) > 1
    module = staged(
        network,
        fp32.includes,
        preprocessing=model.preprocessing,
        image=(fp32.inputs[0].height, fp32.inputs[0].width),
        task=model.task,
        temperature=model.temperature if confident else None,
    ).requires_grad_(False)
    names = [output.name for output in source.graph.output]
    data = onnx_bytes(
        module,
        tuple(map(torch.from_numpy, fp32.arrays)),
        names=(IMAGE,),
        output=names if confident else names[0],
    )
    return with_metadata_of(read_fp32(data), source)


class Rivals(NamedTuple):
    """What was measured on both networks."""

    before: Reading
    after: Reading
    label_agreement: float
    measurements: tuple[Measurement, ...]
    images: int


def _int8_target(target: str | Target) -> Target:
    place = parse_target(target) if isinstance(target, str) else target
    if place.precision != "int8":
        raise Unsupported(
            f"target {place}: int8 is judged on an int8 target; write {replace(place, precision='int8')}."
        )
    for each in (place, replace(place, precision="fp32")):
        if not hasattr(runtime_for(each), "compile_onnx"):
            raise Unsupported(f"target {each}: the runtime cannot run ONNX files; use {INT8_TARGET}.")
    return place


def _exported(folder: Path, image: tuple[int, int] | None) -> OnnxSubject:
    file = folder / FP32_FILE
    if not file.is_file():
        raise UserError(
            f"{folder} holds no {FP32_FILE} to quantise; export it first: "
            + command("segtailor", "export", path_argument(folder), "--to", "onnx")
        )
    return read_onnx(file, image=image)


def _dataset(data: str, model: Model) -> Dataset:
    dataset = scaled_as(locate(data), model.preprocessing)
    needs_classes(dataset.task, "int8")
    if dataset.task.outputs != model.task.outputs:
        raise DataProblem(
            f"the model knows {model.task.outputs} classes, the data has {dataset.task.outputs}; "
            "quantise it with data of the same classes."
        )
    return dataset


def _measure(
    subjects: tuple[OnnxSubject, OnnxSubject],
    target: Target,
    *,
    form: GraphForm,
    scored: SampledImages,
    settings: Int8Settings,
    seen: Callable[[int], None],
) -> Rivals:
    places = (replace(target, precision="fp32"), target)
    with ExitStack() as stack:
        entrants = [
            compile_entry(subject, place, stack) for subject, place in zip(subjects, places, strict=True)
        ]
        both = (entrants[0].compiled, entrants[1].compiled)
        mious, agreement = _score(both, form=form, scored=scored, seen=seen)
        measurements = measure_all(entrants, settings.timing)
    before, after = map(_reading, measurements, mious)
    return Rivals(before, after, agreement, tuple(measurements), len(scored))


def _score(
    both: tuple[Compiled, Compiled], *, form: GraphForm, scored: SampledImages, seen: Callable[[int], None]
) -> tuple[list[float], float]:
    """Return the mIoU of each, and the share of pixels on which they agree."""
    classes = scored.task.outputs
    confusions = [Confusion(classes) for _ in both]
    same = pixels = 0
    for index in range(len(scored)):
        pair = scored[index]
        size = (pair.labels.shape[0], pair.labels.shape[1])
        truth, given = torch.from_numpy(np.array(pair.labels))[None], form.read(pair.image)
        found = [torch.from_numpy(form.found(each.outputs(given), size, scored.task))[None] for each in both]
        for confusion, labels in zip(confusions, found, strict=True):
            confusion.add(labels, truth)
        same += int((found[0] == found[1]).sum())
        pixels += truth.numel()
        seen(index + 1)
    return [confusion.scores().miou for confusion in confusions], same / pixels


def _reading(measurement: Measurement, miou: float) -> Reading:
    return Reading(
        target=measurement.target,
        median_ms=measurement.median_ms,
        p95_ms=measurement.p95_ms,
        spread=measurement.spread,
        miou=miou,
    )


def _decision(
    rivals: Rivals, *, settings: Int8Settings, samples: int, data: str, fp32: OnnxSubject
) -> Int8Decision:
    verdict = decide_int8(rivals.before, rivals.after, limit=settings.limit)
    warnings = dict.fromkeys(text for row in rivals.measurements for text in row.warnings)
    return Int8Decision(
        target=rivals.after.target,
        kept=verdict.kept,
        reason=verdict.reason,
        before=rivals.before,
        after=rivals.after,
        ratio=rivals.after.median_ms / rivals.before.median_ms,
        miou_change=rivals.after.miou - rivals.before.miou,
        limit=settings.limit,
        label_agreement=rivals.label_agreement,
        images=rivals.images,
        samples=samples,
        method=settings.method,
        data=data,
        image=(fp32.inputs[0].height, fp32.inputs[0].width),
        includes=fp32.includes,
        source=sha256(fp32.data).hexdigest()[:16],
        file=INT8_FILE if verdict.kept else None,
        warnings=tuple(warnings),
    )


def store(folder: Path, decision: Int8Decision, data: bytes) -> None:
    """Write the file before the decision that names it; where int8 does not pay, an older file goes away after it."""
    if decision.kept:
        write_bytes(folder / INT8_FILE, data, what="int8 ONNX file")
    write_json(folder / DECISION_FILE, to_json(decision), what="decision on int8")
    if not decision.kept:
        (folder / INT8_FILE).unlink(missing_ok=True)


def _counter(phase: str, total: int, progress: Progress | None) -> Callable[[int], None]:
    def seen(done: int) -> None:
        if progress is not None:
            progress(Step(phase=phase, done=done, total=total))

    return seen
