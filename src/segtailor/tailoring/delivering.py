"""The stages that deliver: recommend, export and prove, quantise if it pays, keep the contract, look at pictures."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from segtailor.core.codec import to_json
from segtailor.core.errors import Unsupported
from segtailor.core.target import parse_target
from segtailor.costs.timers import timer_for
from segtailor.data.cache import open_pixels
from segtailor.data.dataset import Pair
from segtailor.data.locate import locate
from segtailor.nets.bundle import load_bundle
from segtailor.recipes.export import export as export_bundle
from segtailor.recipes.quantise import Int8Settings, quantise
from segtailor.spaces.networks import expand
from segtailor.tailoring.context import OWN, Context
from segtailor.targets.timing import Measurement, check_contract
from segtailor.training.evaluate import LabelledImages, score_predictions
from segtailor.verbs.bench import bench

TRIES = 6  # measurements of the final network, if there is time: a busy moment is no reason to miss a budget,
PAUSE = 1.0  # and as such moments may last, each waits so many seconds longer than the one before it
LOOKS = 3  # at a trained network that misses the budget
HOPELESS = 3.0  # times the budget: no busy moment explains that
TRIVIAL_PICTURES = 200  # on which a network that names one class everywhere is scored
LAYER_SECONDS, MOST_LAYERS = 0.05, 32


def recommend(context: Context) -> dict[str, Any]:
    """Measure all trained networks and recommend the best that keeps the budget.

    One by one, as each will run: threads of several open sessions would wait for each other's cores.
    """
    rows = [dict(context.outcomes["train"]), *context.outcomes["baselines"]["networks"]]
    budget = context.recipe.request.budget_ms
    for row in rows:
        row |= _quietest(context, row)
    keeping = [row for row in rows if row["p95_ms"] <= budget] or [min(rows, key=lambda row: row["p95_ms"])]
    best = max(keeping, key=lambda row: row["miou"])
    others = [row for row in keeping if row["network"] != OWN]
    return {
        "networks": rows,
        "network": best["network"],
        "model": best["model"],
        "miou": best["miou"],
        "worth": best["network"] == OWN,
        "best_ready": max(others, key=lambda row: row["miou"])["network"] if others else None,
        **_learned(context, best),
    }


def _learned(context: Context, best: Mapping[str, Any]) -> dict[str, Any]:
    """Hold a network against one class everywhere: what is not much better must not be delivered."""
    recipe = context.recipe
    if recipe.least_gain is None:
        return {}
    trivial = trivial_miou(recipe.data, context.around.cache)
    if best["miou"] >= trivial + recipe.least_gain * (1 - trivial):
        return {"trivial_miou": trivial}
    asked = recipe.request.seconds
    more = (
        ""
        if asked is None
        else f" Give it more than {asked / 60:g} minutes (--time), or stop other programs."
    )
    return {
        "trivial_miou": trivial,
        "stop": f"Not enough time: after {best['steps']} steps of training the best network reaches "
        f"{100 * best['miou']:.1f} % mIoU, where naming the same class everywhere reaches {100 * trivial:.1f} %."
        f" Nothing was exported.{more}",
    }


def trivial_miou(data: str, cache: Path) -> float:
    """Return the mIoU on validation pictures of naming their most frequent class everywhere."""
    dataset = locate(data)
    pixels = open_pixels(dataset, "val", cache)
    shown = Every(pixels, max(1, len(pixels) // TRIVIAL_PICTURES))
    counts = np.zeros(dataset.task.outputs, dtype=np.int64)
    for index in range(len(shown)):
        labels = shown.pair(index).labels
        counts += np.bincount(labels[labels < len(counts)].ravel(), minlength=len(counts))
    usual = int(counts.argmax())
    scores = score_predictions(
        lambda image: np.full(image.shape[:2], usual, dtype=np.uint8), shown, task=dataset.task
    )
    return float(scores.quality)


class Every(NamedTuple):
    """Every n-th of some pictures."""

    pictures: LabelledImages
    step: int

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Height and width of each."""
        return self.pictures.sizes[:: self.step]

    def __len__(self) -> int:
        return len(self.sizes)

    def pair(self, index: int) -> Pair:
        """Return one sample."""
        return self.pictures.pair(index * self.step)


def _quietest(context: Context, row: Mapping[str, Any]) -> dict[str, float]:
    """Measure a network, again if it misses a budget that it kept before its training: then the machine is busy.

    Weights do not change how long a network takes, so what was measured before counts as well.
    """
    budget = context.recipe.request.budget_ms
    found = _measured_before(context, row["network"])
    for _ in range(LOOKS):
        (one,) = context.time([row["model"]], final=True)
        if found is None or one.p95_ms < found["p95_ms"]:
            found = {"median_ms": one.median_ms, "p95_ms": one.p95_ms}
        if found["p95_ms"] <= budget or one.median_ms > HOPELESS * budget or context.overdue():
            break
    return found or {}


def _measured_before(context: Context, network: str) -> dict[str, float] | None:
    """Return what a network took when it was chosen."""
    rows = [context.outcomes.get("choose", {}), *context.outcomes.get("ready", {}).get("networks", ())]
    found = next((row for row in rows if row.get("network") == network), None)
    return None if found is None else {name: found[name] for name in ("median_ms", "p95_ms")}


def export(context: Context) -> dict[str, Any]:
    """Write the recommended network for its runtime, from normalised pixels to labels, and prove it equal."""
    recipe = context.recipe
    model = context.own(context.outcomes["recommend"]["model"])
    found = export_bundle(model, to="onnx", image=recipe.image, output="labels", data=recipe.data)
    return found.document()


def int8(context: Context) -> dict[str, Any]:
    """Quantise the exported network and keep the result if it pays on the target."""
    recipe = context.recipe
    target = parse_target(recipe.request.target)
    if not recipe.quantise or target.device != "cpu" or target.runtime not in ("onnxruntime", "openvino"):
        return {"decided": False, "kept": False, "reason": f"int8 is tried on processors, not on {target}."}
    try:
        decision = quantise(
            context.own(context.outcomes["recommend"]["model"]),
            data=recipe.data,
            target=replace(target, precision="int8"),
            image=recipe.image,
            settings=Int8Settings(images=100, timing=context.timing(final=True)),
        )
    except Unsupported as problem:
        return {"decided": False, "kept": False, "reason": str(problem)}
    return {"decided": True, **to_json(decision)}


def contract(context: Context) -> dict[str, Any]:
    """Measure the exported file itself and hold it against the budget."""
    recipe, model = context.recipe, Path(context.outcomes["recommend"]["model"])
    kept = bool(context.outcomes["int8"].get("kept"))
    file = model / ("model.int8.onnx" if kept else "model.onnx")
    target = parse_target(recipe.request.target)
    runs_files = target.runtime in ("onnxruntime", "openvino", "tensorrt")
    place = replace(target, precision="int8") if kept else target
    tried: list[Measurement] = []
    while len(tried) < TRIES:
        time.sleep(PAUSE * len(tried))
        tried.append(_measured(context, file if runs_files else model, place=str(place), whole=runs_files))
        if check_contract(tried[-1], recipe.request.budget_ms).met:
            break
        if context.overdue() or min(one.median_ms for one in tried) > HOPELESS * recipe.request.budget_ms:
            break
    best = min(tried, key=lambda one: one.p95_ms)
    verdict = check_contract(best, recipe.request.budget_ms)
    return {
        **to_json(best),
        "tries_p95_ms": [one.p95_ms for one in tried],
        "file": str(file),
        "target": str(place),
        "met": verdict.met,
        "sentence": f"{verdict}{_others(tried)}",
        "budget_ms": recipe.request.budget_ms,
    }


def _others(tried: Sequence[Measurement]) -> str:
    """Say what the other measurements were, where one was not enough."""
    if len(tried) == 1:
        return ""
    told = ", ".join(f"{one.p95_ms:.2f}" for one in tried)
    return f" It was measured {len(tried)} times, as the machine may have been busy: 95 % of runs within {told} ms."


def layers(context: Context) -> dict[str, Any]:
    """Time the layers of the recommended network (of many, the largest) one by one, and the network alone."""
    folder = context.outcomes["recommend"]["model"]
    model = load_bundle(Path(folder))
    whole = expand(model.architecture, image=context.recipe.image, classes=model.task.outputs).deployed()
    by_node = {node.name: whole.call(node.name) for node in whole.nodes}
    calls = sorted(dict.fromkeys(by_node.values()), key=lambda call: -call.macs())[:MOST_LAYERS]
    timer, entries = timer_for(parse_target(context.recipe.request.target)), []
    for first in range(0, len(calls), timer.chunk):
        entries += timer.time(calls[first : first + timer.chunk], seconds=LAYER_SECONDS)
    times = dict(zip(calls, (entry.us / 1000 for entry in entries), strict=True))
    (one,) = context.time([folder], includes="network")
    found = {name: times[call] for name, call in by_node.items() if call in times}
    return {"layers": found, "whole_ms": one.median_ms}


def _measured(context: Context, model: Path, *, place: str, whole: bool) -> Measurement:
    if whole:  # size and stages are those of the file
        (one,) = bench([model], [place], settings=context.timing(final=True))
        return one
    (one,) = context.time([model], final=True)
    return one
