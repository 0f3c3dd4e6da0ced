"""`segtailor data check`, `show` and `convert`: examine a dataset before it is used, and write its masks once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from segtailor.core.text import command
from segtailor.verbs.options import Count, DryRun, Force, Json, Seed
from segtailor.verbs.output import Printer, emit, note

STYLES = {"error": "red", "warning": "yellow", "info": ""}


def check_(
    dataset: str,
    /,
    *,
    limit: Annotated[Count | None, Parameter(help="Read at most this many samples per split.")] = None,
    json: Json = False,
) -> int:
    """Examine a dataset; the exit code is 1 if something must be fixed before training.

    Parameters
    ----------
    dataset:
        For example `folder:PATH`, `coco:PATH`, `camvid:PATH`, or a YAML file.
    """
    from segtailor.data import doctor
    from segtailor.data.locate import locate

    diagnosis = doctor.examine(lambda: locate(dataset), named=dataset, limit=limit)
    facts = diagnosis.document()
    emit(facts, lambda printer: _print(printer, facts), json=json)
    return 0 if diagnosis.ok else 1


def show_(
    dataset: str,
    /,
    *,
    out: Path = Path("contact_sheet.png"),
    split: str = "train",
    count: Count = 12,
    seed: Seed = 0,
    force: Force = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Draw a contact sheet of images with their labels and a legend; images that cannot be read are left out and named.

    Parameters
    ----------
    dataset:
        For example `folder:PATH`, `camvid:PATH`, or a YAML file.
    out:
        The picture to write.
    split:
        Which split, e.g. `train`, `val` or `trainval`.
    count:
        Number of images.
    seed:
        Random seed of the choice of images.
    """
    from segtailor.data.locate import locate
    from segtailor.data.sheet import check_picture, contact_sheet, write_picture

    check_picture(out, force=force)
    sheet = contact_sheet(locate(dataset), split, columns=3, count=count, seed=seed)
    if not dry_run:
        write_picture(out, sheet.picture, force=force)
    for problem in sheet.problems:
        note(f"left out: {problem}")
    verb = "would write" if dry_run else "wrote"
    facts = {"picture": str(out), "split": split, "problems": list(sheet.problems)}
    emit(facts, lambda printer: printer.say(f"{verb} {out}"), json=json)


def convert_(
    dataset: str,
    out: Path,
    /,
    *,
    to: Literal["folder"],
    images: Literal["copy", "link"] = "copy",
    force: Force = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Write a dataset once as images and masks, so that its annotations are not drawn again at every start.

    Masks are PNG files whose values are the class ids (255: not counted) and whose colours are those of the classes.
    The folder appears when everything is written, or not at all. A folder that an earlier conversion wrote is
    replaced; one that holds other files is refused.

    Parameters
    ----------
    dataset:
        For example `coco:PATH`, `cvat:PATH`, `labelme:PATH`, `yolo:PATH`, `labelstudio:PATH`, or a YAML file.
    out:
        The folder to write; `folder:OUT` reads it.
    to:
        The layout: `folder` is `images/SPLIT`, `masks/SPLIT` and `classes.yaml`.
    images:
        Copy the pictures, or link to where they are. Pictures that are resized or not PNG, JPEG, TIFF or BMP are
        written as PNG.
    """
    from segtailor.data.convert import convert, plan_conversion
    from segtailor.data.locate import locate

    del to  # one layout so far
    plan = plan_conversion(locate(dataset), out, images=images, force=force)
    facts = plan.document() if dry_run else convert(plan)
    verb = "would write" if dry_run else "wrote"

    def show(printer: Printer) -> None:
        rows = [[name, len(items), str(out / "masks" / name)] for name, items in plan.items.items()]
        printer.table(None, ["split", ">images", "masks"], rows)
        follow = command("segtailor", "data", "check", facts["dataset"])
        printer.say(f"{verb} {facts['images']} images with masks to {out}", f"next: {follow}")

    emit(facts, show, json=json)


def _print(printer: Printer, facts: dict[str, Any]) -> None:
    for finding in facts["findings"]:
        severity = finding["severity"]
        printer.label(severity, STYLES[severity], f"{finding['kind']}: {finding['file']}")
        printer.say(f"    {finding['message']}", f"    fix: {finding['fix']}")
    rows = [
        [name, part["images"], f"{100 * part['ignored']:.1f}"]
        for name, part in facts.get("splits", {}).items()
    ]
    printer.table(None, ["split", ">images", ">ignored %"], rows)
    printer.say("ready for training" if facts["ok"] else "not ready: fix the errors first")
