"""`segtailor eval`: score a trained network."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from segtailor.cli.options import Count, Json
from segtailor.cli.output import Printer, emit
from segtailor.cli.surroundings import Where
from segtailor.core.task import KIND_FACTS

COLUMNS = {"iou": "IoU"}  # how figures per class are called for people, where not by their own names


def eval_(
    model: str,
    *,
    data: str,
    split: str = "val",
    batch: Count = 4,
    where: Annotated[Where, Parameter(name="*")] = Where(),
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
    """
    from segtailor.api.training import evaluate

    around = where.surroundings(json=json)
    scores = evaluate(model, data, split=split, batch=batch, surroundings=around)
    emit(scores, lambda printer: _print(printer, scores), json=json)


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


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"
