"""Trained networks: open a bundle, an ONNX file or shipped weights, and make a bundle from a published checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from segtailor.api.networks import create, load_published, published_classes
from segtailor.core.errors import UserError, unknown
from segtailor.core.shipped import bundle_folder, shipped
from segtailor.core.task import Preprocessing, Task

if TYPE_CHECKING:
    from segtailor.nets.bundle import Model
    from segtailor.nets.onnx_model import OnnxModel


def load(model: str | Path) -> Model | OnnxModel:
    """Load a trained network: a bundle folder, an ONNX file, or the name of shipped weights.

    `model.predict(image)` labels an image, `model.task` has the class names; a bundle also has `model.network`.
    """
    return open_model(model)


def open_model(model: str | Path) -> Model | OnnxModel:
    """Open what a user calls MODEL; both results are a `segtailor.predicting.Predictor`."""
    import segtailor.spaces  # noqa: F401 - registers the families that a bundle may name
    from segtailor.nets.bundle import load_bundle
    from segtailor.nets.onnx_model import open_onnx_model

    place = model_place(model)
    return open_onnx_model(place) if place.suffix.lower() == ".onnx" else load_bundle(place)


def model_place(model: str | Path) -> Path:
    """Return where MODEL is stored: an ONNX file or a bundle folder, which a shipped name stands for as well."""
    path = bundle_folder(model)
    if path.suffix.lower() == ".onnx" or path.is_dir():
        return path
    if isinstance(model, Path) or len(path.parts) > 1 or path.exists():
        raise UserError(
            f"model {path} is neither the folder of a bundle nor an ONNX file; give what `train` or `export` wrote."
        )
    raise unknown("bundle folder, ONNX file or shipped model", str(model), shipped())


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
