"""Trained networks by name or place: bundles, ONNX files, shipped weights."""

from __future__ import annotations

from pathlib import Path

from segtailor.core.errors import UserError, unknown
from segtailor.core.shipped import bundle_folder, shipped
from segtailor.nets.bundle import Model, load_bundle
from segtailor.nets.onnx.model import OnnxModel, open_onnx_model


def load(model: str | Path) -> Model | OnnxModel:
    """Load a trained network: a bundle folder, an ONNX file, or the name of shipped weights.

    `model.predict(image)` labels an image, `model.task` has the class names; a bundle also has `model.network`.
    """
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
