"""`segtailor predict`: label pictures, videos and cameras."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from segtailor.cli.options import Count, DryRun, Force, Json, Size
from segtailor.cli.output import Printer, emit


@dataclass(frozen=True, kw_only=True)
class PredictFlags:
    """What is written, and how."""

    form: Annotated[Literal["colour", "overlay", "ids"], Parameter(name="--as")] = "colour"
    """colour: a palette picture, which shows colours and whose values are the class ids; overlay: colours laid over
    the picture; ids: a greyscale picture of the class ids. Videos become MP4 files, with ids folders of PNG files."""
    opacity: float = 0.55
    """Of the colours in overlays, 0 to 1."""
    size: Size | None = None
    """HEIGHTxWIDTH at which the network sees the pictures; their own by default. Results always have their own."""
    frames: Count | None = None
    """At most so many frames of a video or camera. A camera runs until Ctrl-C otherwise."""
    device: str | None = None
    """cpu, cuda, cuda:1, ...; the best one here by default."""


def predict_(
    model: str,
    *inputs: str,
    out: Path = Path("predictions"),
    flags: Annotated[PredictFlags, Parameter(name="*")] = PredictFlags(),
    force: Force = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Label pictures, folders, videos or cameras; one PNG per picture, of its own size and upright.

    Transparency is ignored and 16-bit pictures are scaled from their full range, as in training. Inputs that cannot
    be read are reported, the others are done; the exit code is then 1.

    Parameters
    ----------
    model:
        A bundle, an ONNX file, or the name of shipped weights.
    inputs:
        Pictures, videos, folders (with all below), quoted patterns such as '*.jpg', or camera numbers.
    out:
        Folder for the results, which are named like the inputs.
    """
    from segtailor.api.models import model_place
    from segtailor.api.predicting import outline, predict
    from segtailor.predicting.batch import Settings
    from segtailor.runs import display_for
    from segtailor.tasks import Look

    settings = Settings(
        look=Look(form=flags.form, opacity=flags.opacity), size=flags.size, frames=flags.frames
    )
    if dry_run:
        model_place(model)
        facts = outline(inputs, out, settings, force=force).document()
        emit(facts, lambda printer: _print_outline(printer, facts), json=json)
    else:
        shown = display_for(sys.stderr, json=json)
        facts = predict(
            model, inputs, out, settings=settings, device=flags.device, display=shown, force=force
        )
        emit(facts, lambda printer: _print(printer, facts), json=json)
    return 1 if facts["failures"] else 0


def _print(printer: Printer, facts: dict[str, Any]) -> None:
    done, failed = len(facts["results"]), len(facts["failures"])
    printer.say(
        f"wrote {done} result{'s' * (done != 1)} to {facts['out']}: {facts['frames']} frames, "
        f"{facts['fps']:.1f} fps from reading to writing"
    )
    if failed:
        printer.say(f"{failed} failed, named above")


def _print_outline(printer: Printer, facts: dict[str, Any]) -> None:
    for row in facts["results"]:
        printer.say(f"would write {row['output']} from {row['input']}")
    for row in facts["failures"]:
        printer.say(f"failed: {row['problem']}")
