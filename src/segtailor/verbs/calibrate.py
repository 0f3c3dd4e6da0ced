"""`segtailor calibrate`: make the latency table of a device."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from segtailor.core.atomic import write_text, writing
from segtailor.core.codec import Json as JsonValue
from segtailor.core.codec import from_json, to_json
from segtailor.core.errors import UserError
from segtailor.core.job import Step
from segtailor.core.ownership import has_fields, is_drawing, marked_svg, refuse_overwrite
from segtailor.core.space import family
from segtailor.core.target import parse_target
from segtailor.runs import Context, Display, Layout, display_for, execute
from segtailor.verbs.options import Classes, DryRun, Force, Json, Networks, Positive, Seed, Set, Size
from segtailor.verbs.output import emit, note

if TYPE_CHECKING:
    from segtailor.costs.pack import Pack
    from segtailor.recipes.calibrate import CalibrateRecipe

is_pack = has_fields("format", "space", "target", "entries")


@dataclass(frozen=True, kw_only=True)
class CalibrateFlags:
    """What to calibrate."""

    space: str | None = None
    """A search space: see `segtailor list spaces`."""
    target: str | None = None
    """device/runtime/precision, e.g. cpu/onnxruntime/fp32?threads=2."""
    image: Size | None = None
    """Size HEIGHTxWIDTH of the image."""
    classes: Classes = 19
    """Number of output channels."""
    minutes: Positive | None = None
    """Time for all of it. Operators are timed most used first; those left out are estimated."""
    networks: Networks = 30
    """Random networks to measure whole for the trust report."""
    seed: Seed = 0
    """Random seed of these networks."""
    set_: Set = ()
    """Settings of the space, e.g. --space decoder_cell --set encoder=efficientnet_lite0 channels=24 repeats=1."""

    def recipe(self) -> CalibrateRecipe:
        """Return the recipe; a missing flag raises."""
        from segtailor.recipes.calibrate import CalibrateRecipe
        from segtailor.recipes.recipe import set_fields

        if self.space is None or self.target is None or self.image is None:
            raise UserError(
                "calibrate needs --space, --target and --image, "
                "e.g. --space scalable_path --target cpu/onnxruntime/fp32 --image 360x480."
            )
        kind = family(self.space)
        settings = set_fields(to_json(kind()), self.set_)
        return CalibrateRecipe(
            space=from_json(kind, settings, what=f"settings of space '{self.space}'"),
            target=self.target,
            image=self.image,
            classes=self.classes,
            minutes=self.minutes,
            trust_networks=self.networks,
            seed=self.seed,
        )


def calibrate_(
    *,
    flags: Annotated[CalibrateFlags, Parameter(name="*")] = CalibrateFlags(),
    out: Annotated[Path | None, Parameter(help="The pack file to write.")] = None,
    bundle: Annotated[
        Path | None, Parameter(help="Write a zip to time on a board that has numpy and onnxruntime only.")
    ] = None,
    import_: Annotated[
        Path | None, Parameter(name="--import", help="Make the pack from the results of such a zip.")
    ] = None,
    force: Force = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Time every operator of a search space on a target, and check the sums on whole networks.

    The result is a device pack: one JSON file with the latency table, all conditions and how far to trust it.
    After an interruption the same command continues.
    """
    if import_ is not None:
        pack = out or import_.with_suffix(".pack.json")
        check_out(pack, force=force)
        result = {"pack": str(pack)} if dry_run else import_results(import_, pack, force=force)
        emit(result, lambda printer: printer.say(*_summary(result)), json=json)
        return
    recipe = flags.recipe()
    pack = out or Path(pack_name(recipe))
    if dry_run:
        result = planned(recipe, pack, bundle=bundle, force=force)
    elif bundle is not None:
        result = write_board_bundle(recipe, bundle, progress=_progress, force=force)
    else:
        result = calibrate(recipe, pack, display=display_for(sys.stderr, json=json), force=force)
    emit(result, lambda printer: printer.say(*_summary(result)), json=json)


def pack_name(recipe: CalibrateRecipe) -> str:
    """Return the usual file name of a pack."""
    height, width = recipe.image
    target = re.sub(r"[^a-z0-9]+", "-", str(parse_target(recipe.target)))
    return f"{recipe.space_name}-{height}x{width}-{target}.json"


def run_folder(pack: Path) -> Path:
    """Return the run directory that belongs to a pack file: everything measured is kept there, to resume."""
    return pack.with_name(f"{pack.stem}.run")


def check_out(out: Path, *, force: bool = False) -> None:
    """Refuse to replace files that are not ours by a pack and its plot, unless `force`."""
    refuse_overwrite([(out, is_pack), (out.with_suffix(".svg"), is_drawing)], force=force)


def planned(
    recipe: CalibrateRecipe, out: Path, *, bundle: Path | None = None, force: bool = False
) -> dict[str, JsonValue]:
    """Return where the results would go; what a calibration, or a zip for a board, would refuse raises."""
    from segtailor.costs.bundle import check_target, is_bundle

    if bundle is not None:
        refuse_overwrite([(bundle, is_bundle)], force=force)
        check_target(recipe.target)
        return {"bundle": str(bundle)}
    check_out(out, force=force)
    folder = run_folder(out)
    recipe.job(Context(folder=folder))  # checks everything, and writes nothing
    return {"pack": str(out), "run": str(folder)}


def calibrate(
    recipe: CalibrateRecipe, out: Path, *, display: Display | None = None, force: bool = False
) -> dict[str, JsonValue]:
    """Make a device pack and, beside it, the scatter plot; after an interruption the same call continues.

    Files of these names that are not ours are replaced only by `force`.
    """
    from segtailor.costs.pack import read_pack
    from segtailor.recipes.recipe import recipe_document

    check_out(out, force=force)
    folder = run_folder(out)
    job = recipe.job(Context(folder=folder))  # before any folder is made, so that a mistake leaves none
    _make_folder(out)
    execute(lambda: job, folder, recipe_document(recipe), display=display)
    return _deliver(read_pack(Layout(folder).cost_table), out, force=force)


def write_board_bundle(
    recipe: CalibrateRecipe,
    file: Path,
    *,
    progress: Callable[[Step], None] | None = None,
    force: bool = False,
) -> dict[str, JsonValue]:
    """Write the operators of a space as ONNX files with a runner, for a board without this package."""
    from segtailor.costs.assembly import CalibrationSubject
    from segtailor.costs.bundle import Selection, is_bundle, write_bundle

    refuse_overwrite([(file, is_bundle)], force=force)
    subject = CalibrationSubject(
        space=recipe.space, image=recipe.image, classes=recipe.classes, target=recipe.target
    )
    limit = None if recipe.minutes is None else max(1, int(60 * recipe.minutes / recipe.seconds_per_entry))
    selection = Selection(
        operators=limit,
        fit_networks=recipe.fit_networks,
        trust_networks=recipe.trust_networks,
        seed=recipe.seed,
    )
    count = 0
    for step in write_bundle(file, subject, selection):
        count = step.done if step.phase == "operators" else count
        if progress is not None:
            progress(step)
    return {"bundle": str(file), "entries": count}


def import_results(results: Path, out: Path, *, force: bool = False) -> dict[str, JsonValue]:
    """Make the device pack of a board from what the bundle's runner wrote there."""
    from segtailor.costs.bundle import import_results as assemble_results

    check_out(out, force=force)
    return _deliver(assemble_results(results), out, force=force)


def _deliver(pack: Pack, out: Path, *, force: bool) -> dict[str, JsonValue]:
    from segtailor.report.charts import draw_trust

    check_out(out, force=force)
    _make_folder(out)
    pack.write(out)
    result: dict[str, JsonValue] = {"pack": str(out), **pack.summary()}
    if pack.trust is not None:
        drawing = out.with_suffix(".svg")
        plot = draw_trust(pack.trust, title=f"{pack.space} on {pack.target}")
        write_text(drawing, marked_svg(plot), what="scatter plot")
        result["plot"] = str(drawing)
    return result


def _make_folder(out: Path) -> None:
    """Make the folder of a file; called before minutes of work, so that an error comes first."""
    with writing(out.parent, what="folder of the pack"):
        out.parent.mkdir(parents=True, exist_ok=True)


def _progress(step: Step) -> None:
    note(f"{step.phase}: {step.done} of {step.total}")


def _summary(result: dict[str, Any]) -> list[str]:
    if "bundle" in result:
        if "entries" not in result:  # a dry run
            return [f"operators to time on a board: {result['bundle']}"]
        return [
            f"{result['entries']} operators in {result['bundle']}",
            "next: unzip it on the board, run `python board_runner.py` there, and bring results.json back for "
            "`segtailor calibrate --import results.json`",
        ]
    if result.get("pearson") is None:
        return [f"device pack {result['pack']}"]
    return [
        f"device pack {result['pack']}: {result['entries']} entries, {result['estimated']} of them estimated",
        f"against whole networks: Pearson {result['pearson']:.4f}, Spearman {result['spearman']:.4f}, "
        f"mean error {100 * result['mape']:.1f} %",
        f"plot {result['plot']}",
        *_warnings(result),
    ]


def _warnings(result: dict[str, Any]) -> list[str]:
    lines = [f"warning: {text}" for text in result["warnings"]]
    if result["disturbed"]:
        lines.append(
            f"warning: other programs disturbed {result['disturbed']} of {result['networks']} networks: "
            "stop them and calibrate again into another file"
        )
    return lines
