"""Show a trained network at work in a local page."""

from __future__ import annotations

from pathlib import Path

from segtailor.api.models import model_place, open_model
from segtailor.core.shipped import is_shipped
from segtailor.core.text import command, path_argument
from segtailor.serving.demo import Demo
from segtailor.serving.server import Server, open_server

EXPORTED = "model.onnx"  # what `export` adds to a bundle


def demonstrate(model: str | Path) -> Demo:
    """Open a model for the page: the exported file of a bundle where there is one, else the bundle itself."""
    place = model_place(model)
    exported = place / EXPORTED
    file = exported if exported.is_file() else place
    predictor = open_model(file)
    name = place.absolute().name if place.is_dir() else place.stem
    if file.suffix.lower() == ".onnx":
        return Demo(
            predictor=predictor, name=name, runtime="ONNX Runtime", note=getattr(predictor, "note", None)
        )
    shipped = is_shipped(model)
    export = command(
        "segtailor", "export", *([model, "--out", "FOLDER"] if shipped else [path_argument(model)])
    )
    note = f"the bundle has no {EXPORTED}; `{export}` makes it faster"
    return Demo(predictor=predictor, name=name, runtime="PyTorch, not exported", note=note)


def serve(model: str | Path, *, host: str = "127.0.0.1", port: int = 8000) -> Server:
    """Open a model and take the address; `run()` of the result then serves until it is interrupted."""
    return open_server(demonstrate(model), host=host, port=port)
