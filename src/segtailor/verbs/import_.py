"""`segtailor import`: turn a published checkpoint into a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from segtailor.core.errors import UserError
from segtailor.core.task import Preprocessing, Task
from segtailor.core.text import command, path_argument
from segtailor.spaces.networks import published_classes, resolve
from segtailor.verbs.options import Classes, DryRun, Json
from segtailor.verbs.output import emit

if TYPE_CHECKING:
    from segtailor.nets.bundle import Model


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
    resolve(as_)  # so that a wrong name raises before anything is read
    outputs = published_classes(as_) if classes is None else classes
    facts = {"model": str(out), "architecture": as_, "classes": outputs}
    if not dry_run:
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


def import_published(file: str | Path, name: str, out: str | Path, *, classes: int | None = None) -> Model:
    """Turn a reference project's checkpoint of a published network into a bundle."""
    from segtailor.nets.bundle import Model, save_bundle
    from segtailor.nets.checkpoint_file import read_state
    from segtailor.spaces.networks import create, load_published

    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(
            f"{folder} is no empty folder; choose another folder for the bundle, or remove it first."
        )
    outputs = published_classes(name) if classes is None else classes
    network = create(name, classes=outputs)
    load_published(network, read_state(file))
    model = Model(
        network=network,
        task=usual_task(outputs),
        preprocessing=Preprocessing(),
        provenance={"imported": Path(file).name, "architecture": name},
    )
    save_bundle(folder, model)
    return model


def usual_task(classes: int) -> Task:
    """Return the task with this many classes: Cityscapes, VOC or CamVid, or one whose classes are numbered."""
    from segtailor.data import camvid, cityscapes, voc

    for task in (cityscapes.TASK, voc.TASK, camvid.TASK):
        if task.outputs == classes:
            return task
    return Task(classes=tuple(f"class{index}" for index in range(classes)))
