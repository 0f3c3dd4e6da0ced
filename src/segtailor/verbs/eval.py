"""`segtailor eval`: score a trained network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from segtailor.core.codec import Json as JsonValue
from segtailor.core.errors import DataProblem, Unsupported
from segtailor.core.shipped import DATA_PLACEHOLDER, is_shipped
from segtailor.core.task import KIND_FACTS, Task, needs_classes
from segtailor.runs import Context
from segtailor.verbs.options import Count, DryRun, Json, Size
from segtailor.verbs.output import Printer, emit, with_display

if TYPE_CHECKING:
    from segtailor.nets.bundle import Model
    from segtailor.nets.onnx.model import OnnxModel

COLUMNS = {"iou": "IoU"}  # titles of figures per class in tables, where they are not the names


def eval_(
    model: str,
    *,
    data: str,
    split: str = "val",
    batch: Count = 4,
    tile: Size | None = None,
    calibrate: Annotated[bool, Parameter(negative=())] = False,
    context: Annotated[Context, Parameter(name="*")] = Context(),
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Score a trained network on a split of a dataset, whole images at their own size.

    Parameters
    ----------
    model:
        Folder of a bundle, an ONNX file, or the name of shipped weights.
    data:
        A dataset, e.g. `camvid:PATH`.
    split:
        Which split.
    batch:
        Images at a time.
    tile:
        HEIGHTxWIDTH of overlapping tiles in which images are labelled, as `predict --tile` does.
    calibrate:
        Fit the temperature of the bundle's confidence to this split, and store it in the bundle. With --dry-run
        nothing is stored.
    """
    wanted = with_display(context, json=json)
    if calibrate:
        check_calibration(model, write=not dry_run)
    scores = evaluate(model, data, split=split, batch=batch, tile=tile, context=wanted)
    if calibrate:
        scores["calibration"] = calibrate_confidence(
            model, data, split=split, context=wanted, write=not dry_run
        )
    emit(scores, lambda printer: _print(printer, scores), json=json)


def evaluate(
    model: str | Path | Model | OnnxModel,
    data: str,
    *,
    split: str = "val",
    batch: int = 4,
    tile: tuple[int, int] | None = None,
    context: Context | None = None,
) -> dict[str, Any]:
    """Score a trained network on whole images at their own size by the figures of its task, shares as fractions.

    A model is a bundle, an ONNX file (run by ONNX Runtime, one image at a time) or the name of shipped weights. With a
    `tile` (height, width), images are labelled in overlapping tiles, one image at a time; so are splits with pictures
    over 16.7 million pixels.
    """
    import torch

    from segtailor.data.dataset import scaled_as
    from segtailor.data.large import LargePixels, open_samples
    from segtailor.data.locate import locate
    from segtailor.data.tiles import Tiling
    from segtailor.nets.models import load
    from segtailor.nets.onnx.model import OnnxModel
    from segtailor.predicting.labelling import own_tile, scores_of
    from segtailor.training.device import pick_device
    from segtailor.training.evaluate import evaluate as score
    from segtailor.training.evaluate import score_predictions, score_tiles

    context = context or Context()
    trained = load(model) if isinstance(model, str | Path) else model
    dataset = scaled_as(locate(data), trained.preprocessing)
    if dataset.task.kind != trained.task.kind:
        raise DataProblem(
            f"the model is for {trained.task.kind}, the data for {dataset.task.kind}; score it on data of its own kind."
        )
    if dataset.task.outputs != trained.task.outputs:
        raise DataProblem(
            f"the model knows {trained.task.outputs} classes, the data has {dataset.task.outputs}; "
            "score it on data with the same classes."
        )
    provenance = getattr(trained, "provenance", {})
    warnings = _differing_names(trained.task, dataset.task) + _trained_on(provenance, data, split)
    for warning in warnings:
        context.tell(warning)
    pixels = open_samples(dataset, split, context.cache_folder)
    facts = {
        "kind": dataset.task.kind,
        "images": len(pixels),
        "split": split,
        "data": data,
        "warnings": warnings,
    }
    device = pick_device(context.device)
    if isinstance(pixels, LargePixels):  # labelled in tiles of a usual size unless told otherwise
        _move(trained, device)
        tiling = Tiling(tile=tile or own_tile(trained))
        scores = score_tiles(scores_of(trained), pixels, tiling, task=dataset.task)
        return {**scores.document(dataset.task.classes), **facts, "tile": list(tiling.tile)}
    if tile is not None:
        _move(trained, device)
        scores = score_predictions(_tiled(trained, tile), pixels, task=dataset.task)
        return {**scores.document(dataset.task.classes), **facts, "tile": list(tile)}
    if isinstance(trained, OnnxModel):
        scores = score_predictions(trained.predict, pixels, task=dataset.task)
        return {**scores.document(dataset.task.classes), **facts}
    scores = score(
        trained.network.to(device),
        pixels,
        task=dataset.task,
        preprocessing=trained.preprocessing,
        device=torch.device(device),
        batch=batch,
    )
    return {**scores.document(dataset.task.classes), **facts}


def calibrate_confidence(
    model: str | Path | Model,
    data: str,
    *,
    split: str = "val",
    context: Context | None = None,
    write: bool = True,
) -> dict[str, Any]:
    """Fit the temperature of a bundle's confidence to the labelled pixels of a split, and `write` it into the bundle.

    The expected calibration error after it is measured on images that the temperature was not fitted to.
    """
    from segtailor.data.cache import open_pixels
    from segtailor.data.dataset import scaled_as
    from segtailor.data.locate import locate
    from segtailor.nets.bundle import Model
    from segtailor.nets.models import load, model_place
    from segtailor.training.calibrate import calibrate_model
    from segtailor.training.device import pick_device

    context = context or Context()
    check_calibration(model, write=write)
    trained = load(model) if isinstance(model, str | Path) else model
    if not isinstance(trained, Model):
        raise Unsupported(
            "calibrate: a bundle keeps the temperature, an ONNX file cannot; calibrate the bundle and export again."
        )
    needs_classes(trained.task, "calibrating confidence")
    dataset = scaled_as(locate(data), trained.preprocessing)
    return calibrate_model(
        trained,
        open_pixels(dataset, split, context.cache_folder),
        classes=dataset.task.outputs,
        device=pick_device(context.device),
        split=split,
        data=data,
        folder=model_place(model) if write and isinstance(model, str | Path) else None,
    )


def check_calibration(model: str | Path | Model, *, write: bool) -> None:
    """Refuse to change weights that come with the package."""
    if write and isinstance(model, str) and is_shipped(model):
        raise Unsupported(
            f"calibrate: '{model}' is part of the package and is not changed; copy its folder and give that, or add "
            "--dry-run."
        )


def _move(model: Model | OnnxModel, device: Any) -> None:
    """Move the network of a bundle; ONNX files run on the CPU."""
    from segtailor.nets.bundle import Model

    if isinstance(model, Model):
        model.network.to(device)


def _tiled(model: Model | OnnxModel, tile: tuple[int, int]) -> Callable[[Any], Any]:
    """Return the function that labels an image in tiles."""
    from segtailor.data.parts import WholeRows
    from segtailor.data.tiles import Tiling, label_in_tiles
    from segtailor.predicting.labelling import scores_of

    needs_classes(model.task, "a prediction in tiles")
    tiling, scores, classes = Tiling(tile=tile), scores_of(model), model.task.outputs
    return lambda image: label_in_tiles(WholeRows(pixels=image), scores, tiling, classes=classes)


def _differing_names(model: Task, data: Task) -> list[str]:
    """Warn if class names of model and data differ: the figures may compare different things."""
    pairs = [
        (ours, theirs) for ours, theirs in zip(model.classes, data.classes, strict=True) if ours != theirs
    ]
    if not pairs:
        return []
    shown = "; ".join(f"'{ours}' of the model is '{theirs}' in the data" for ours, theirs in pairs[:3])
    more = f"; and {len(pairs) - 3} more" if len(pairs) > 3 else ""
    return [f"class names differ, compared by position ({shown}{more}): is this the data it was trained for?"]


def _trained_on(provenance: Mapping[str, JsonValue], data: str, split: str) -> list[str]:
    """Warn if a model was trained on the images that it is scored on, as far as the names of splits tell."""
    from segtailor.data.splits import split_parts

    trained, used = str(provenance.get("data", "")), str(provenance.get("train_split", ""))
    shared = set(split_parts(used)) & set(split_parts(split))
    if not used or not shared or not _same_data(trained, data):
        return []
    return [
        f"the model was trained on split '{used}' of {trained}: these figures are of images that it has seen and say "
        "nothing about new ones; score it on a split that it has not seen."
    ]


def _same_data(trained: str, data: str) -> bool:
    """Tell whether two texts name one dataset; shipped weights say PATH instead of the folder of the data."""
    (name, _, rest), (other, _, others) = trained.partition(":"), data.partition(":")
    (place, _, options), (_, _, asked) = rest.partition("?"), others.partition("?")
    return trained == data or (place == DATA_PLACEHOLDER and (name, options) == (other, asked))


def _print(printer: Printer, scores: dict[str, Any]) -> None:
    parts: dict[str, dict[str, float | None]] = scores.get("per_class", {})
    if parts:
        columns = list(next(iter(parts.values())))
        rows = [[name, *(_percent(row.get(column)) for column in columns)] for name, row in parts.items()]
        heads = [f">{COLUMNS.get(column, column)} %" for column in columns]
        printer.table(None, ["name", *heads], rows)
        printer.say("")
    figures = [item for item in KIND_FACTS[scores["kind"]].figures if item.name in scores]
    told = "  ".join(f"{item.label} {item.told(scores[item.name])}" for item in figures)
    printer.say(f"{told}  on {scores['images']} images of {scores['split']}")
    if "calibration" in scores:
        found = scores["calibration"]
        printer.say(
            f"confidence: temperature {found['temperature']:.3f}; expected calibration error "
            f"{100 * found['ece_before']:.2f} % before, {100 * found['ece_after']:.2f} % after"
        )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"
