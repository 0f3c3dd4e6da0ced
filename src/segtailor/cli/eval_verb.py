"""`segtailor eval`: score a trained network."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from segtailor.cli.options import Json
from segtailor.cli.output import emit, table
from segtailor.cli.surroundings import Where


def eval_(
    model: str,
    /,
    *,
    data: str,
    split: str = "val",
    batch: int = 4,
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
    emit(scores, lambda console: _print(console, scores), json=json)


def _print(console: Console, scores: dict[str, Any]) -> None:
    rows = [
        [name, _percent(row.get("iou")), _percent(row.get("accuracy"))]
        for name, row in scores["per_class"].items()
    ]
    console.print(table(None, ["class", ">IoU %", ">accuracy %"], rows))
    console.print(
        f"\nmIoU {_percent(scores['miou'])} %  fwIoU {_percent(scores['fwiou'])} %  "
        f"mean accuracy {_percent(scores['mean_accuracy'])} %  pixel accuracy {_percent(scores['pixel_accuracy'])} %  "
        f"on {scores['images']} images of {scores['split']}"
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"
