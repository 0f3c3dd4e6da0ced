"""`segtailor data curve`: estimate how much more images would help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from segtailor.core.atomic import write_json, write_text
from segtailor.core.errors import DataProblem
from segtailor.core.ownership import has_fields, is_drawing, marked_svg, refuse_overwrite
from segtailor.core.task import needs_classes
from segtailor.runs import Context
from segtailor.verbs.options import Count, DryRun, Force, Json, Seed
from segtailor.verbs.output import Printer, emit, emit_planned, with_display

if TYPE_CHECKING:
    from segtailor.recipes.learning_curve import CurveEstimate, CurvePoint, LearningCurve

MAX_PIXELS = 200 * 256  # of the pictures that networks get here
MORE = (1, 2, 4)  # times the images at hand, for which quality is estimated


@dataclass(frozen=True, kw_only=True)
class CurveFlags:
    """The trainings."""

    sizes: Count = 4
    """How many numbers of images: the most that the steps can make use of, a half, a quarter, ..."""
    repeats: Count = 2
    """Trainings for each number, on different images."""
    steps: Count = 120
    """Training steps of each network; the same for every number of images. A step can make use of one image: the
    largest subset has as many, so that each is seen eight times."""
    network: str | None = None
    """Network that is trained, by name or file; a part of EfficientNet-Lite0 when left out."""
    seed: Seed = 0
    """Random seed of subsets and trainings."""


def curve_(
    dataset: str,
    /,
    *,
    out: Path = Path("curve"),
    flags: Annotated[CurveFlags, Parameter(name="*")] = CurveFlags(),
    context: Annotated[Context, Parameter(name="*")] = Context(),
    force: Force = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Train briefly on parts of the training split, score on `val`, and estimate what more images would bring.

    Writes `curve.json` and `curve.svg`. The figures are of short trainings of a small network on small pictures: their
    slope tells how much images help, not how good a full training gets.

    Parameters
    ----------
    dataset:
        For example `folder:PATH`, `camvid:PATH`, or a YAML file.
    out:
        Folder for the result.
    """
    files = [out / "curve.json", out / "curve.svg"]
    if dry_run:
        emit_planned(out, files, json=json)
        return
    found = curve(dataset, out, settings=flags, context=with_display(context, json=json), force=force)
    emit(found, lambda printer: _print(printer, found), json=json)


def curve(
    dataset: str,
    out: str | Path,
    *,
    settings: CurveFlags | None = None,
    context: Context | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Train on subsets of the training split, fit a learning curve, and write it as JSON and SVG.

    A subset is chosen by groups (recordings, folders), as more data would be collected.
    """
    from segtailor.data.cache import open_pixels
    from segtailor.data.dataset import preprocessing_of
    from segtailor.data.locate import locate
    from segtailor.data.subset import grouped_subset, take
    from segtailor.recipes.learning_curve import (
        CurvePoint,
        estimates,
        fit_curve,
        largest_subset,
        subset_sizes,
    )
    from segtailor.recipes.short_training import ShortTraining, train_briefly
    from segtailor.training.device import pick_device
    from segtailor.training.evaluate import evaluate

    wanted, context, folder = settings or CurveFlags(), context or Context(), Path(out)
    kinds = [(folder / "curve.json", has_fields("curve", "points")), (folder / "curve.svg", is_drawing)]
    refuse_overwrite(kinds, force=force)
    data = locate(dataset)
    needs_classes(data.task, "data curve")
    if "val" not in data.splits:
        raise DataProblem("a curve needs a split 'val' to score on; for a folder, give e.g. ?val=0.2.")
    pixels = open_pixels(data, "train", context.cache_folder)
    validation = open_pixels(data, "val", context.cache_folder)
    largest = largest_subset(len(pixels), steps=wanted.steps, batch=ShortTraining().batch)
    if largest < len(pixels):
        context.tell(
            f"trainings of {wanted.steps} steps can make use of {largest} of {len(pixels)} images, so subsets go up to "
            "these; --steps gives more."
        )
    sizes = subset_sizes(largest, count=wanted.sizes)
    scored = take(validation, range(len(validation)), max_pixels=MAX_PIXELS)
    device, points = pick_device(context.device), []
    for size in sizes:
        for repeat in range(wanted.repeats):
            seed = wanted.seed + repeat
            chosen = grouped_subset(pixels.names, size, seed=seed)
            short = ShortTraining(network=wanted.network, steps=wanted.steps, seed=seed)
            model = train_briefly(
                take(pixels, chosen, max_pixels=MAX_PIXELS),
                short,
                device=device,
                preprocessing=preprocessing_of(data),
                trusted=context.trusted,
            )
            scores = evaluate(
                model.network, scored, task=data.task, preprocessing=model.preprocessing, device=device
            )
            points.append(CurvePoint(images=size, seed=seed, quality=scores.quality))
            context.tell(f"{size} images, seed {seed}: mIoU {100 * scores.quality:.1f} %")
    found = fit_curve(points)
    expected = estimates(points, [factor * len(pixels) for factor in MORE], seed=wanted.seed)
    folder.mkdir(parents=True, exist_ok=True)
    facts: dict[str, Any] = {
        "out": str(folder),
        "files": [str(path) for path, _ in kinds],
        "images": len(pixels),
        "largest_subset": largest,
        "figure": "miou",
        "points": [asdict(point) for point in points],
        "curve": asdict(found),
        "estimates": [asdict(one) for one in expected],
    }
    write_json(folder / "curve.json", facts, what="learning curve")
    drawing = marked_svg(draw_curve(points, found, expected))
    write_text(folder / "curve.svg", drawing, what="drawing of the learning curve")
    return facts


def draw_curve(points: Sequence[CurvePoint], found: LearningCurve, expected: Sequence[CurveEstimate]) -> str:
    """Return the content of an SVG file: trainings as dots, the curve, and the expected range as lines."""
    from segtailor.report.svg import Plot, axis, mark, path, stretched

    most = max(one.images for one in expected)
    least = min(point.images for point in points)
    counts = [least * (most / least) ** (step / 60) for step in range(61)]  # even on a logarithmic axis
    heights = [100 * point.quality for point in points] + [100 * one.high for one in expected]
    heights += [100 * one.low for one in expected]
    plot = Plot(
        x=axis([least, most], spread=True),
        y=axis(heights, upwards=True),
        x_name="training images",
        y_name="mIoU of short trainings in %",
    )
    lines = [path([plot.place(count, 100 * found.at(count)) for count in counts], kind="line s0")]
    for one in expected:
        ends = [plot.place(one.images, 100 * one.low), plot.place(one.images, 100 * one.high)]
        lines.append(path(ends, kind="line s1"))
    marks = [
        mark(
            plot.place(point.images, 100 * point.quality),
            shape="small",
            kind="s0",
            content=f"{point.images} images, seed {point.seed}: {100 * point.quality:.1f} %",
        )
        for point in points
    ]
    return plot.in_file([stretched(lines), *marks], title="How many images are needed?")


def _print(printer: Printer, facts: dict[str, Any]) -> None:
    rows = [
        [row["images"], f"{100 * row['quality']:.1f}", f"{100 * row['low']:.1f} to {100 * row['high']:.1f}"]
        for row in facts["estimates"]
    ]
    printer.table("expected of short trainings", [">images", ">mIoU %", "80 % of the time"], rows)
    printer.say(f"wrote {' and '.join(facts['files'])}")
