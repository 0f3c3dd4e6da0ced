"""`segtailor export`: a bundle becomes a file for a runtime, proved equal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console

from segtailor.cli.options import DryRun, Json, Size
from segtailor.cli.output import emit, note


@dataclass(frozen=True, kw_only=True)
class ExportFlags:
    """What the file reads, computes and gives."""

    image: Size | None = None
    """Size HEIGHTxWIDTH; that of the data it was trained on when left out, 512x1024 where that is unknown."""
    dynamic: Annotated[bool, Parameter(negative=())] = False
    """Accept images of other sizes too (onnx, openvino, exported-program)."""
    precision: Literal["fp32", "fp16"] = "fp32"
    """Precision inside; inputs and outputs stay single precision."""
    output: Literal["logits", "labels"] = "logits"
    """Logits at the network's own stride, or labels at image size: resize and arg max inside the file."""
    preprocess: Annotated[bool, Parameter(negative=())] = False
    """Normalise inside the file: it reads uint8 pixels (1, height, width, 3)."""
    data: str | None = None
    """Data set whose validation images the file is checked on; rendered scenes and noise when left out."""
    out: Path | None = None
    """Folder to write to; the bundle itself when left out."""


def export_(
    model: str,
    /,
    *,
    to: Literal["onnx", "openvino", "torchscript", "exported-program", "tensorrt"] = "onnx",
    flags: Annotated[ExportFlags, Parameter(name="*")] = ExportFlags(),
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Write a trained network as a file for a runtime, run it there, and keep it only if it computes the same.

    Parameters
    ----------
    model:
        Folder of a bundle, or the name of shipped weights (give --out for these).
    to:
        Kind of file.
    """
    from segtailor.api.exporting import planned

    plan = planned(
        model,
        to=to,
        image=flags.image,
        dynamic=flags.dynamic,
        precision=flags.precision,
        output=flags.output,
        preprocess=flags.preprocess,
        data=flags.data,
        out=flags.out,
    )
    height, width = plan.graph.image
    if plan.assumed:
        note(
            f"the bundle does not say its image size: {height}x{width} is used; --image HxW chooses another."
        )
    document: dict[str, Any] = (
        {"files": [str(file) for file in plan.files], "image": [height, width]}
        if dry_run
        else plan.carry_out().document()
    )
    emit(document, lambda console: _print(console, document, dry_run=dry_run), json=json)


def _print(console: Console, document: dict[str, Any], *, dry_run: bool) -> None:
    written = " and ".join(document["files"])
    if dry_run:
        height, width = document["image"]
        console.print(f"would write {written} for images of {height}x{width}", highlight=False)
        return
    worst, drift = document["max_logit_difference"], document["miou_drift"]
    facts = [f"{document['label_agreement']:.3%} of labels agree with the network"]
    facts += [] if worst is None else [f"logits differ by at most {worst:.2g}"]
    facts += [] if drift is None else [f"mIoU moved by {100 * drift:+.2f} points"]
    pictures = f"{document['conditions']['images']} images"
    console.print(f"wrote {written}\nchecked on {pictures}: {', '.join(facts)}", highlight=False)
    first = document["files"][0]
    if first.endswith(".onnx"):
        console.print(f"next: segtailor bench {first} --target cpu/onnxruntime/fp32", highlight=False)
