"""Calibrate: the functions behind the verb."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import segtailor.spaces  # noqa: F401 - registers the families
from segtailor.core.atomic import write_text, writing
from segtailor.core.codec import Json
from segtailor.core.job import Step
from segtailor.core.ownership import holds, is_drawing, marked_svg, spare
from segtailor.core.target import parse_target
from segtailor.costs.assembly import Subject
from segtailor.costs.pack import Pack, Use, read_pack
from segtailor.costs.table import LatencyTable
from segtailor.recipes.calibrating import CalibrateRecipe
from segtailor.recipes.recipe import Place, recipe_document
from segtailor.report.charts import draw_trust
from segtailor.runs import Display, Layout, execute

is_pack = holds("format", "space", "target", "entries")


def pack_name(recipe: CalibrateRecipe) -> str:
    """Return the usual file name of a pack."""
    height, width = recipe.image
    place = re.sub(r"[^a-z0-9]+", "-", str(parse_target(recipe.target)))
    return f"{recipe.space}-{height}x{width}-{place}.json"


def run_folder(pack: Path) -> Path:
    """Return the run directory that belongs to a pack file: everything measured is kept there, to resume."""
    return pack.with_name(f"{pack.stem}.run")


def check_out(out: Path, *, force: bool = False) -> None:
    """Refuse a place for a pack and its plot where files lie that are not ours, unless `force`."""
    spare([(out, is_pack), (out.with_suffix(".svg"), is_drawing)], force=force)


def calibrate(
    recipe: CalibrateRecipe, out: Path, *, display: Display | None = None, force: bool = False
) -> dict[str, Json]:
    """Make a device pack; interrupted, the same call goes on. The scatter plot lies beside the pack.

    Files in their place that are not ours are replaced only by `force`.
    """
    check_out(out, force=force)
    folder = run_folder(out)
    job = recipe.job(
        Place(folder=folder, cache=folder)
    )  # before any folder is made: a mistake leaves nothing
    _make_folder(out)
    execute(lambda: job, folder, recipe_document(recipe), display=display)
    return _deliver(read_pack(Layout(folder).cost_table), out, force=force)


def bundle(
    recipe: CalibrateRecipe,
    file: Path,
    *,
    progress: Callable[[Step], None] | None = None,
    force: bool = False,
) -> dict[str, Json]:
    """Write the operators of a space as ONNX files with a runner, for a board without this package."""
    from segtailor.costs.bundle import Selection, is_bundle, write_bundle

    spare([(file, is_bundle)], force=force)
    subject = Subject(
        space=recipe.search_space(), image=recipe.image, classes=recipe.classes, target=recipe.target
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


def import_results(results: Path, out: Path, *, force: bool = False) -> dict[str, Json]:
    """Make the device pack of a board from what the bundle's runner wrote there."""
    from segtailor.costs.bundle import import_results as assemble_results

    check_out(out, force=force)
    return _deliver(assemble_results(results), out, force=force)


def latency_table(pack: Path, *, use: Use | None = None, force: bool = False) -> LatencyTable:
    """Return the latency cost of a pack file; one made for something else is refused unless `force`."""
    return LatencyTable(pack=read_pack(pack, use=use, force=force))


def _deliver(pack: Pack, out: Path, *, force: bool) -> dict[str, Json]:
    check_out(out, force=force)
    _make_folder(out)
    pack.write(out)
    result: dict[str, Json] = {"pack": str(out), **pack.summary()}
    if pack.trust is not None:
        drawing = out.with_suffix(".svg")
        plot = draw_trust(pack.trust, title=f"{pack.space} on {pack.target}")
        write_text(drawing, marked_svg(plot), what="scatter plot")
        result["plot"] = str(drawing)
    return result


def _make_folder(out: Path) -> None:
    """Make the folder of a file now, so that one that cannot be made is told before minutes of work."""
    with writing(out.parent, what="folder of the pack"):
        out.parent.mkdir(parents=True, exist_ok=True)
