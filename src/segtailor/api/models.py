"""Trained networks: load a bundle, and make one from a published checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from segtailor.api.networks import create, load_published, published_classes
from segtailor.core.errors import UserError
from segtailor.core.task import Preprocessing, Task

if TYPE_CHECKING:
    from segtailor.nets.bundle import Model


def load(folder: str | Path) -> Model:
    """Load a trained bundle: network, class names and preprocessing; `model.predict(image)` labels an image."""
    import segtailor.spaces  # noqa: F401 - registers the families that a bundle may name
    from segtailor.nets.bundle import load_bundle

    return load_bundle(Path(folder))


def import_published(file: str | Path, name: str, out: str | Path, *, classes: int | None = None) -> Model:
    """Turn a reference project's checkpoint of a published network into a bundle."""
    from segtailor.nets.bundle import Model, save_bundle
    from segtailor.nets.checkpoint_file import read_state

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
    """Return the benchmark with this many classes (Cityscapes 19, VOC 21, CamVid 11), or numbered ones."""
    from segtailor.data import camvid, cityscapes, voc

    for task in (cityscapes.TASK, voc.TASK, camvid.TASK):
        if task.outputs == classes:
            return task
    return Task(classes=tuple(f"class{index}" for index in range(classes)))
