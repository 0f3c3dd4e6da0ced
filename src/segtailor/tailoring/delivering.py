"""The stages that deliver: recommend, export and verify, quantise if it pays, check the budget, time layers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from segtailor.core.codec import from_json, to_json
from segtailor.core.errors import DataProblem, RunProblem, Unsupported
from segtailor.core.target import CONVERTED_RUNTIMES, Target, parse_target
from segtailor.costs.timers import timer_for
from segtailor.data.cache import open_pixels
from segtailor.data.dataset import Dataset, Pair
from segtailor.nets.bundle import load_bundle
from segtailor.nets.onnx.metadata import OutputKind
from segtailor.recipes.export import export as export_bundle
from segtailor.recipes.int8_files import exported_files, file_names
from segtailor.recipes.quantise import FP32_FILE, INT8_FILE, Int8Settings, quantise
from segtailor.recipes.timed import crowded
from segtailor.spaces.networks import expand
from segtailor.tailoring.stage import (
    SEARCHED,
    BaselinesOutcome,
    ChosenNetwork,
    ComparedNetwork,
    ContractOutcome,
    ExportOutcome,
    Int8Outcome,
    LayersOutcome,
    ReadyOutcome,
    Recommendation,
    RepeatsOutcome,
    StageContext,
    TimedNetwork,
    TrainedNetwork,
)
from segtailor.targets.benchmark import benchmark
from segtailor.targets.timing import Measurement, check_contract
from segtailor.training.calibrate import calibrate_model
from segtailor.training.device import pick_device
from segtailor.training.evaluate import LabelledImages, score_predictions
from segtailor.verbs.bench import bench

MAX_CONTRACT_TRIES = 6  # measurements of the exported file, as the machine may be busy
PAUSE_SECONDS = 1.0  # before each further try, longer by this than the pause before
MAX_TIMINGS = 3  # of a trained network that misses the budget
HOPELESS_RATIO = 3.0  # median latency over budget that cannot be explained by a busy machine
MAX_TRIVIAL_IMAGES = 200  # on which the prediction of one class everywhere is scored
INT8_IMAGES = 100  # that int8 is scored on
CALIBRATION_IMAGES = 32  # that the temperature of the confidence is fitted to
LAYER_SECONDS, MAX_LAYERS = 0.05, 32  # timing of each layer, and number of layers that are timed
ONNX_RUNTIMES = ("onnxruntime", "openvino", "tensorrt")  # that run the exported ONNX file itself
INT8_RUNTIMES = ("onnxruntime", "openvino", "ncnn", "litert")


def recommend(
    stage: StageContext,
    chosen: ChosenNetwork,
    ready: ReadyOutcome,
    winner: TrainedNetwork,
    baselines: BaselinesOutcome,
    repeats: RepeatsOutcome,
) -> Recommendation:
    """Stage `recommend`: time all trained networks and recommend the best that keeps the budget.

    They are timed one by one, as each will run: threads of several open sessions would wait for each other.
    """
    before: dict[str, TimedNetwork] = {row.network: row for row in (*reversed(ready.networks), chosen)}
    budget = stage.recipe.request.budget_ms
    again = {row.network: row.miou for row in repeats.networks}
    rows = [
        replace(_timed(stage, row, before.get(row.network)), repeated_miou=again.get(row.network))
        for row in (winner, *baselines.networks)
    ]
    keeping = within_budget(rows, budget)
    best = max(keeping, key=lambda row: row.mean_miou)
    others = [row for row in keeping if row.network != SEARCHED]
    recommended = Recommendation(
        networks=tuple(rows),
        network=best.network,
        model=best.model,
        miou=best.miou,
        worth=best.network == SEARCHED,
        best_ready=max(others, key=lambda row: row.mean_miou).network if others else None,
    )
    return _checked(stage, recommended, steps=best.steps)


def within_budget(rows: Sequence[ComparedNetwork], budget_ms: float) -> list[ComparedNetwork]:
    """Return the networks that keep a budget; if there is none, those with half of all runs within it, or the fastest.

    Half of all runs count where other programs interrupt them: then 95 % of runs say nothing about the networks.
    """
    keeping = [row for row in rows if row.p95_ms <= budget_ms]
    if not keeping and any(crowded(row.median_ms, row.p95_ms, limit_ms=budget_ms) for row in rows):
        keeping = [row for row in rows if row.median_ms <= budget_ms]
    return keeping or [min(rows, key=lambda row: row.p95_ms)]


def _timed(stage: StageContext, trained: TrainedNetwork, before: TimedNetwork | None) -> ComparedNetwork:
    """Time a network, again if it misses a budget that it kept before training: then the machine is busy.

    Weights do not change the latency, so the timing before training counts as well.
    """
    budget = stage.recipe.request.budget_ms
    best = None if before is None else (before.median_ms, before.p95_ms)
    for _ in range(MAX_TIMINGS):
        (row,) = stage.time([trained.model], final=True)
        if best is None or row.p95_ms < best[1]:
            best = row.median_ms, row.p95_ms
        if best[1] <= budget or row.median_ms > HOPELESS_RATIO * budget or stage.overdue():
            break
    median_ms, p95_ms = best or (0.0, 0.0)
    return ComparedNetwork(**asdict(trained), median_ms=median_ms, p95_ms=p95_ms)


def _checked(stage: StageContext, best: Recommendation, *, steps: int) -> Recommendation:
    """Compare a network with one class everywhere; one that is not much better must not be delivered."""
    recipe = stage.recipe
    if recipe.least_gain is None:
        return best
    trivial = trivial_miou(stage.dataset, stage.context.cache_folder)
    best = replace(best, trivial_miou=trivial)
    if best.miou >= trivial + recipe.least_gain * (1 - trivial):
        return best
    asked = recipe.request.seconds
    advice = f" Give it more than {asked / 60:g} minutes (--time), or stop other programs." if asked else ""
    return replace(
        best,
        stop=f"Not enough time: after {steps} steps of training the best network reaches {100 * best.miou:.1f} % mIoU, "
        f"where predicting the same class everywhere reaches {100 * trivial:.1f} %. Nothing was exported.{advice}",
    )


def trivial_miou(dataset: Dataset, cache: Path) -> float:
    """Return the mIoU on validation images of predicting their most frequent class everywhere."""
    pixels = open_pixels(dataset, "val", cache)
    images = EveryNth(pixels, max(1, len(pixels) // MAX_TRIVIAL_IMAGES))
    counts = np.zeros(dataset.task.outputs, dtype=np.int64)
    for index in range(len(images)):
        labels = images.pair(index).labels
        counts += np.bincount(labels[labels < len(counts)].ravel(), minlength=len(counts))
    usual = int(counts.argmax())
    scores = score_predictions(
        lambda image: np.full(image.shape[:2], usual, dtype=np.uint8), images, task=dataset.task
    )
    return float(scores.quality)


class EveryNth(NamedTuple):
    """Every n-th of some images."""

    images: LabelledImages
    step: int

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Height and width of each."""
        return self.images.sizes[:: self.step]

    def __len__(self) -> int:
        return len(self.sizes)

    def pair(self, index: int) -> Pair:
        """Return one sample."""
        return self.images.pair(index * self.step)


def export(stage: StageContext, best: Recommendation) -> ExportOutcome:
    """Stage `export`: write the recommended network for its runtime, from normalised image to labels, and verify it.

    Its confidence is calibrated before, so that probabilities asked for later are honest.
    """
    recipe = stage.recipe
    runtime, model = parse_target(recipe.request.target).runtime, stage.inside(best.model)
    calibrate_delivered(stage, model)
    if (
        runtime in CONVERTED_RUNTIMES
    ):  # whose own file is beside the ONNX file; that comes last: `verify.json` names it first
        output: OutputKind = "logits" if recipe.includes == "network" else "labels"
        export_bundle(model, to=runtime, image=recipe.image, output=output, data=recipe.data)
    exported = export_bundle(model, to="onnx", image=recipe.image, output="labels", data=recipe.data)
    return from_json(ExportOutcome, exported.document(), what="figures of the export", error=RunProblem)


def calibrate_delivered(stage: StageContext, folder: Path) -> None:
    """Fit the temperature of a network's confidence to some validation images; its bundle keeps it, with the errors.

    Tasks without classes have no confidence, and fewer than two labelled images do not calibrate one.
    """
    task = stage.dataset.task
    if task.kind != "segmentation":
        return
    pixels = open_pixels(stage.dataset, "val", stage.context.cache_folder)
    with suppress(DataProblem):
        calibrate_model(
            load_bundle(folder),
            EveryNth(pixels, max(1, len(pixels) // CALIBRATION_IMAGES)),
            classes=task.outputs,
            device=pick_device(stage.context.device),
            split="val",
            data=stage.recipe.data,
            folder=folder,
        )


def decide_int8(stage: StageContext, best: Recommendation) -> Int8Outcome:
    """Stage `int8`: quantise the exported network and keep the result if it pays on the target."""
    recipe = stage.recipe
    target = parse_target(recipe.request.target)
    if not recipe.quantise or target.device != "cpu" or target.runtime not in INT8_RUNTIMES:
        where = f"cpu with {', '.join(INT8_RUNTIMES)}"
        return Int8Outcome(decided=False, kept=False, reason=f"int8 is tried on {where}, not on {target}.")
    try:
        decision = quantise(
            stage.inside(best.model),
            data=recipe.data,
            target=replace(target, precision="int8"),
            image=recipe.image,
            settings=Int8Settings(images=INT8_IMAGES, timing=stage.timing(final=True)),
        )
    except Unsupported as problem:
        return Int8Outcome(decided=False, kept=False, reason=str(problem))
    return from_json(Int8Outcome, {"decided": True, **to_json(decision)}, what="int8", error=RunProblem)


def measure_contract(stage: StageContext, best: Recommendation, int8: Int8Outcome) -> ContractOutcome:
    """Stage `contract`: measure the file that is delivered and compare it with the budget.

    Where int8 does not pay, that is the one in fp32, also for a target in int8.
    """
    request, model = stage.recipe.request, Path(best.model)
    asked = parse_target(request.target)
    target = replace(asked, precision="int8") if int8.kept else asked.unrounded
    tries: list[Measurement] = []
    while len(tries) < MAX_CONTRACT_TRIES:
        time.sleep(PAUSE_SECONDS * len(tries))
        tries += _delivered(stage, model, target)
        hopeless = min(row.median_ms for row in tries) > HOPELESS_RATIO * request.budget_ms
        if check_contract(tries[-1], request.budget_ms).met or stage.overdue() or hopeless:
            break
    fastest = min(tries, key=lambda row: row.p95_ms)
    verdict = check_contract(fastest, request.budget_ms)
    measured = vars(replace(fastest, target=str(target)))
    return ContractOutcome(
        **measured,
        tries_p95_ms=tuple(row.p95_ms for row in tries),
        file=str(model / _file_for(target)),
        met=verdict.met,
        sentence=f"{verdict}{_other_tries(tries)}",
        budget_ms=request.budget_ms,
    )


def _file_for(target: Target) -> str:
    """Return the name of the file of a bundle that a target opens."""
    if target.runtime not in CONVERTED_RUNTIMES:
        return INT8_FILE if target.precision == "int8" else FP32_FILE
    return file_names(target)[0]


def _delivered(stage: StageContext, model: Path, target: Target) -> list[Measurement]:
    """Time the file of a bundle, which has its own size and outputs; eager torch runs the bundle itself."""
    settings = stage.timing(final=True)
    if target.runtime in ONNX_RUNTIMES:
        return bench([model / _file_for(target)], [target], settings=settings)
    if target.runtime in CONVERTED_RUNTIMES:
        with exported_files(model, target) as files:
            return benchmark([files], [target], settings)
    return stage.time([model], final=True)


def _other_tries(tries: Sequence[Measurement]) -> str:
    """Return a sentence about all measurements if there are several."""
    if len(tries) == 1:
        return ""
    times = ", ".join(f"{row.p95_ms:.2f}" for row in tries)
    return f" It was measured {len(tries)} times, as the machine may have been busy: 95 % of runs within {times} ms."


def time_layers(stage: StageContext, best: Recommendation) -> LayersOutcome:
    """Stage `layers`: time the layers of the recommended network (the largest, if there are many) and the network.

    Both before rounding: in int8 the time of a layer depends on what its neighbours are rounded to.
    """
    target = parse_target(stage.recipe.request.target).unrounded
    model = load_bundle(Path(best.model))
    plan = expand(model.architecture, image=stage.recipe.image, classes=model.task.outputs).deployed()
    by_node = {node.name: plan.call(node.name) for node in plan.nodes}
    calls = sorted(dict.fromkeys(by_node.values()), key=lambda call: -call.macs())[:MAX_LAYERS]
    timer, entries = timer_for(target), []
    for first in range(0, len(calls), timer.chunk):
        entries += timer.time(calls[first : first + timer.chunk], seconds=LAYER_SECONDS)
    times = dict(zip(calls, (entry.us / 1000 for entry in entries), strict=True))
    (whole,) = stage.time([best.model], includes="network", target=target)
    layers = {name: times[call] for name, call in by_node.items() if call in times}
    return LayersOutcome(layers=layers, whole_ms=whole.median_ms)
