"""`segtailor serve`: show a trained network at work in a local page."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from segtailor.core.shipped import is_shipped
from segtailor.core.text import command, path_argument
from segtailor.verbs.options import DryRun, Json, Port
from segtailor.verbs.output import emit, note

if TYPE_CHECKING:
    from segtailor.serving.demo import Demo
    from segtailor.serving.server import Server

EXPORTED_FILE = "model.onnx"  # which `export` adds to a bundle


def serve_(
    model: str,
    *,
    port: Port = 8000,
    host: str = "127.0.0.1",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Show a trained network at work in a local page: drop a picture or use the camera. Ctrl-C ends it.

    If the bundle was exported to ONNX, that file is used.

    Parameters
    ----------
    model:
        A bundle, an ONNX file, or the name of shipped weights.
    port:
        Port of the page; 0 takes any free one.
    host:
        Address to listen on; if it is not a local one, other machines can reach the page.
    """
    server = serve(model, host=host, port=port)
    demo = server.demo
    facts = {"url": server.url, "model": demo.name, "runtime": demo.runtime, "note": demo.note}
    if demo.note:
        note(f"note: {demo.note}.")
    if not server.local:
        note(
            f"warning: everyone who can reach {host} can use this page; it has no password and no encryption."
        )
    verb = "would show" if dry_run else "showing"
    emit(
        facts,
        lambda printer: printer.say(f"{verb} {demo.name} ({demo.runtime}) at {server.url}"),
        json=json,
    )
    sys.stdout.flush()
    if dry_run:
        server.listening.close()
        return
    run_until_interrupted(server)


def serve(model: str | Path, *, host: str = "127.0.0.1", port: int = 8000) -> Server:
    """Open a model and bind the address; `run()` of the returned server serves until it is interrupted."""
    from segtailor.serving.server import open_server

    return open_server(demonstrate(model), host=host, port=port)


def demonstrate(model: str | Path) -> Demo:
    """Open a model for the page: the exported file of a bundle if it has one, otherwise the bundle itself."""
    from segtailor.nets.models import load, model_place
    from segtailor.serving.demo import Demo

    place = model_place(model)
    exported = place / EXPORTED_FILE
    file = exported if exported.is_file() else place
    predictor = load(file)
    name = place.absolute().name if place.is_dir() else place.stem
    if file.suffix.lower() == ".onnx":
        return Demo(
            predictor=predictor, name=name, runtime="ONNX Runtime", note=getattr(predictor, "note", None)
        )
    shipped = is_shipped(model)
    export = command(
        "segtailor", "export", *([model, "--out", "FOLDER"] if shipped else [path_argument(model)])
    )
    advice = f"the bundle has no {EXPORTED_FILE}; `{export}` makes it faster"
    return Demo(predictor=predictor, name=name, runtime="PyTorch, not exported", note=advice)


def run_until_interrupted(server: Server) -> None:
    """Serve until Ctrl-C, and then end at once, even while a picture is being labelled."""
    with suppress(KeyboardInterrupt):  # the usual way to end it
        server.run()
    if server.busy:  # a normal exit of Python would wait for the network
        sys.stdout.flush()
        os._exit(0)
