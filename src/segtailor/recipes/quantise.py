"""Decide on int8: quantise an exported bundle, measure it beside fp32 on one runtime in one run, keep what pays.

Where rounding a trained network loses too much, it is fine-tuned with the rounding inside, and the better one is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch

from segtailor.core.atomic import write_bytes, write_json
from segtailor.core.codec import to_json
from segtailor.core.errors import DataProblem, Unsupported, UserError
from segtailor.core.job import Step
from segtailor.core.ownership import refuse_overwrite
from segtailor.core.target import Target, parse_target
from segtailor.core.task import needs_classes
from segtailor.data.cache import open_pixels
from segtailor.data.dataset import Dataset, scaled_as
from segtailor.data.locate import locate
from segtailor.deploy.formats import INT8_FILES, decision_file
from segtailor.deploy.quantise import (
    MIOU_LIMIT,
    GraphForm,
    Int8Decision,
    Int8Tuning,
    Method,
    Reading,
    SampledImages,
    check_limit,
    decide_int8,
    sample_images,
)
from segtailor.nets.bundle import Model, load_bundle
from segtailor.nets.mobile.converter import Int8Converter
from segtailor.recipes.int8_files import FP32_FILE as FP32_FILE
from segtailor.recipes.int8_files import INT8_FILE as INT8_FILE
from segtailor.recipes.int8_files import ConvertedFiles, Int8Files, OnnxFiles
from segtailor.recipes.quantise_aware import TuningSettings, tune
from segtailor.targets.benchmark import FilesSubject, OnnxSubject, compile_entry
from segtailor.targets.mobile import MobileRuntime
from segtailor.targets.runtime import Compiled, runtime_for
from segtailor.targets.timing import Measurement, TimingSettings, measure_all
from segtailor.tasks.segmentation.metrics import Confusion

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
    """Quantise an exported file of a bundle with pictures of a dataset, and keep the result if it pays.

    The target says which file: `model.onnx`, or ncnn's or LiteRT's own ones. Latency, mIoU and label agreement are
    those of both precisions on one runtime, timed in turns. `int8.json` (`int8.ncnn.json`, `int8.litert.json`) tells
    the decision; `model.int8.onnx` (`model.int8.ncnn.param` and `.bin`, `model.int8.tflite`) is there only if int8 is
    kept. `image` (height, width) must be the exported size. Files under these names that are not ours are replaced
    only by `force`.
    """
    chosen, folder = settings or Int8Settings(), Path(bundle)
    place = _int8_target(target)
    with TemporaryDirectory(prefix="segtailor-int8-") as scratch:
        files = _files(folder, place, image=image, method=chosen.method, scratch=Path(scratch))
        names = INT8_FILES[files.to]
        refuse_overwrite([(folder / name, ours) for name, ours in names.items()], force=force)
        model = load_bundle(folder)
        found, contents = _decided(files, model, place, data=data, settings=chosen, progress=progress)
        decision = replace(found, file=next(iter(contents)) if found.kept else None)
        store(folder, decision, contents, to=files.to)
    return decision


def _decided(
    files: Int8Files[Any],
    model: Model,
    place: Target,
    *,
    data: str,
    settings: Int8Settings,
    progress: Progress | None,
) -> tuple[Int8Decision, Mapping[str, bytes]]:
    """Round, measure, tune where that may help; return the decision and the int8 files as they are kept."""
    dataset, fp32 = _dataset(data, model), files.fp32
    form = GraphForm(
        image=(fp32.inputs[0].height, fp32.inputs[0].width),
        pixels=files.pixels,
        align_corners=model.network.plan.align_corners,
        preprocessing=model.preprocessing,
    )
    samples = sample_images(dataset, settings.train_split, count=settings.samples, seed=settings.seed)
    scored = sample_images(dataset, settings.val_split, count=settings.images, seed=settings.seed)

    def rounded(source: OnnxSubject | FilesSubject) -> RoundedFile:
        int8 = files.rounded(source, samples, form, _counter("calibrate", len(samples), progress))
        seen = _counter("score", len(scored), progress)
        return RoundedFile(
            int8, _measure((fp32, int8), place, form=form, scored=scored, settings=settings, seen=seen)
        )

    best, tuning, settled = rounded(fp32), None, settings.tuning
    if settled is not None and (settled.always or worth_tuning(best.rivals, settings.limit)):
        tuned = tune(
            model,
            open_pixels(dataset, settings.train_split, settled.context.cache_folder),
            settled,
            rounding=files.rounding,
            seed=settings.seed,
            progress=progress,
        )
        other = rounded(files.with_network(model, tuned.network))
        better = other.rivals.after.miou > best.rivals.after.miou
        tuning = Int8Tuning(
            steps=tuned.steps,
            seconds=tuned.seconds,
            miou_before=best.rivals.after.miou,
            miou_after=other.rivals.after.miou,
            used=better,
        )
        best = other if better else best
    decision = _decision(best.rivals, settings=settings, samples=len(samples), data=data, files=files)
    return replace(decision, tuning=tuning), files.contents(best.int8)


class RoundedFile(NamedTuple):
    """An int8 file, and what was measured on it beside fp32."""

    int8: OnnxSubject | FilesSubject
    rivals: Rivals


def worth_tuning(rivals: Rivals, limit: float) -> bool:
    """Tell whether int8 loses too much and is faster: a slower file would not be kept, however good."""
    loses = not rivals.before.miou - rivals.after.miou <= limit
    return loses and rivals.after.median_ms < rivals.before.median_ms


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
        runtime = runtime_for(each)
        if not hasattr(runtime, "compile_onnx") and not hasattr(runtime, "compile_files"):
            raise Unsupported(f"target {each}: the runtime runs no files in int8; use {INT8_TARGET}.")
    return place


def _files(
    folder: Path, place: Target, *, image: tuple[int, int] | None, method: str, scratch: Path
) -> Int8Files[Any]:
    """Return the files of a bundle that the target runs."""
    runtime = runtime_for(place)
    if not isinstance(runtime, MobileRuntime):
        return OnnxFiles(folder, image, method)
    if method != "onnxruntime":
        raise Unsupported(f"target {place}: {method} quantises ONNX files; leave the method out.")
    converter = runtime.converter()
    if not isinstance(converter, Int8Converter):
        raise Unsupported(f"target {place}: {converter.name} has no int8 here; use {INT8_TARGET}.")
    return ConvertedFiles(folder, image, converter, scratch)


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
    subjects: tuple[OnnxSubject | FilesSubject, OnnxSubject | FilesSubject],
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
    rivals: Rivals, *, settings: Int8Settings, samples: int, data: str, files: Int8Files[Any]
) -> Int8Decision:
    fp32 = files.fp32
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
        method=files.method,
        data=data,
        image=(fp32.inputs[0].height, fp32.inputs[0].width),
        includes=fp32.includes,
        source=files.fingerprint,
        file=None,
        warnings=tuple(warnings),
    )


def store(folder: Path, decision: Int8Decision, contents: Mapping[str, bytes], *, to: str = "onnx") -> None:
    """Write the files before the decision that names them; where int8 does not pay, older ones go away after it."""
    if decision.kept:
        for name, data in contents.items():
            write_bytes(folder / name, data, what="int8 file")
    write_json(folder / decision_file(to), to_json(decision), what="decision on int8")
    if not decision.kept:
        for name in contents:
            (folder / name).unlink(missing_ok=True)


def _counter(phase: str, total: int, progress: Progress | None) -> Callable[[int], None]:
    def seen(done: int) -> None:
        if progress is not None:
            progress(Step(phase=phase, done=done, total=total))

    return seen
