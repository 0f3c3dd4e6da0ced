"""`segtailor import`: a published checkpoint becomes a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from segtailor.api import networks
from segtailor.cli.options import Classes, DryRun, Json
from segtailor.cli.output import emit
from segtailor.core.text import command, path_argument


def import_(
    file: Path,
    /,
    *,
    as_: Annotated[str, Parameter(name="--as")],
    out: Path,
    classes: Classes | None = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Turn a published checkpoint into a bundle.

    Parameters
    ----------
    file:
        A `.pth`, `.pt` or `.safetensors` file with the key names of the reference project. Nothing in it is executed.
    as_:
        The published architecture it belongs to, e.g. `squeezenas-mac-small`.
    out:
        Folder of the new bundle.
    classes:
        Number of classes of the checkpoint; the published number when left out.
    """
    networks.resolve(as_)  # a wrong name is told before anything is read
    outputs = networks.published_classes(as_) if classes is None else classes
    facts = {"model": str(out), "architecture": as_, "classes": outputs}
    if not dry_run:
        from segtailor.api.models import import_published

        import_published(file, as_, out, classes=classes)
    done = "would write" if dry_run else "wrote"
    emit(
        facts,
        lambda printer: printer.say(
            f"{done} {out}",
            f"next: {command('segtailor', 'eval', path_argument(out), '--data', 'DATASET', '--split', 'val')}",
        ),
        json=json,
    )
