"""`segtailor predict`: label pictures, videos and cameras."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from segtailor.core.codec import Json as JsonValue
from segtailor.core.errors import Unsupported, UserError
from segtailor.core.job import Step
from segtailor.runs import Display, Quiet, display_for
from segtailor.verbs.options import Count, DryRun, Force, Json, Positive, Size
from segtailor.verbs.output import Printer, emit

if TYPE_CHECKING:
    from segtailor.nets.bundle import Model
    from segtailor.nets.onnx.model import OnnxModel
    from segtailor.predicting.batch import Failure, Progress, Result, Settings
    from segtailor.predicting.inputs import Input


@dataclass(frozen=True, kw_only=True)
class PredictFlags:
    """What is written."""

    form: Annotated[Literal["colour", "overlay", "ids"], Parameter(name="--as")] = "colour"
    """colour: a palette picture, which shows colours and whose values are the class ids; overlay: colours laid over
    the picture; ids: a greyscale picture of the class ids. Videos become MP4 files, with ids folders of PNG files."""
    opacity: float = 0.55
    """Opacity of the colours in overlays, 0 to 1."""
    size: Size | None = None
    """HEIGHTxWIDTH at which the network sees the pictures; their own by default. Results always have their own."""
    tile: Size | None = None
    """HEIGHTxWIDTH of overlapping tiles in which pictures are labelled at their own size, in bounded memory. Pictures
    of more than 16.7 million pixels are labelled in tiles of 1024x1024 anyway, unless --size is given."""
    confidence: Annotated[bool, Parameter(negative=())] = False
    """Also write NAME.confidence.png: how likely each label is, as grey values (255 stands for 1)."""
    unsure: Positive | None = None
    """Also write NAME.unsure.png: 255 where the label is less likely than this, e.g. 0.6."""
    frames: Count | None = None
    """Maximum number of frames of a video or camera. Without it a camera runs until Ctrl-C."""
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
    be read are reported and the others labelled; the exit code is then 1.

    Parameters
    ----------
    model:
        A bundle, an ONNX file, or the name of shipped weights.
    inputs:
        Pictures, videos, folders (with all below), quoted patterns such as '*.jpg', or camera numbers.
    out:
        Folder for the results, which are named like the inputs.
    """
    from segtailor.nets.models import model_place
    from segtailor.predicting.batch import Settings
    from segtailor.tasks import Look

    settings = Settings(
        look=Look(form=flags.form, opacity=flags.opacity),
        size=flags.size,
        frames=flags.frames,
        tile=flags.tile,
        confidence=flags.confidence,
        unsure=flags.unsure,
    )
    if dry_run:
        model_place(model)
        facts = plan_predictions(inputs, out, settings, force=force).document()
        emit(facts, lambda printer: _print_plan(printer, facts), json=json)
    else:
        display = display_for(sys.stderr, json=json)
        facts = predict(
            model, inputs, out, settings=settings, device=flags.device, display=display, force=force
        )
        emit(facts, lambda printer: _print(printer, facts), json=json)
    return 1 if facts["failures"] else 0


@dataclass(frozen=True, kw_only=True)
class PredictionPlan:
    """What a call will label, and where each result will go; `failures` are inputs that cannot be read."""

    work: tuple[tuple[Input, Path], ...]
    failures: tuple[Failure, ...]
    out: Path

    def document(self) -> dict[str, JsonValue]:
        """Return plain data."""
        return {
            "out": str(self.out),
            "results": [{"input": item.text, "output": str(path)} for item, path in self.work],
            "failures": [_failure(failure) for failure in self.failures],
        }


def plan_predictions(
    inputs: Sequence[str], out: str | Path, settings: Settings | None = None, *, force: bool = False
) -> PredictionPlan:
    """List the inputs that the texts stand for: files, folders, patterns, camera numbers.

    Files in the place of results that are no results of ours are refused, unless `force`.
    """
    from segtailor.predicting.batch import Failure, Settings, files_beside
    from segtailor.predicting.inputs import destinations, expand, spare_others

    folder, wanted = Path(out), settings or Settings()
    if not inputs:
        raise UserError("nothing to label was named; give a picture, a folder, a video or a camera number.")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give a folder for the results.")
    found, problems = expand(inputs, out=folder)
    paths = destinations(found, folder, wanted.look.form)
    beside = [file for path in paths for file in files_beside(path, wanted).values()]
    spare_others(found, paths, wanted.look.form, force=force, beside=beside)
    failures = tuple(Failure(text=text, problem=problem) for text, problem in problems)
    return PredictionPlan(work=tuple(zip(found, paths, strict=True)), failures=failures, out=folder)


def predict(
    model: str | Path,
    inputs: Sequence[str],
    out: str | Path,
    *,
    settings: Settings | None = None,
    device: str | None = None,
    display: Display | None = None,
    force: bool = False,
) -> dict[str, JsonValue]:
    """Label every input and write one result each into `out`; an input that fails does not stop the others.

    Results of earlier calls are replaced; other files only by `force`, otherwise nothing is written.
    The document has `results`, `failures`, `frames`, `seconds` and `fps` (all stages: read, label, write).
    """
    from segtailor.nets.models import load
    from segtailor.predicting.batch import Settings, predict_all
    from segtailor.runs.interrupt import stoppable

    wanted, shown = settings or Settings(), display or Quiet()
    plan = plan_predictions(inputs, out, wanted, force=force)
    predictor = load(model)
    _move_to_device(predictor, device)
    shown.open(f"{len(plan.work)} input(s) to {plan.out}")
    asked = wanted.size is not None or wanted.tile is not None
    trained = None if asked else getattr(predictor, "trained_size", None)
    collector = _Collector(shown, total=len(plan.work), trained=trained)
    try:
        if note := getattr(predictor, "note", None):
            shown.message(f"note: {note}.")
        for failure in plan.failures:
            collector.failed(failure)
        with stoppable(lambda: shown.message("stopping after this frame; once more stops at once")) as stop:
            for event in predict_all(predictor, plan.work, wanted, stop=lambda: stop.requested):
                collector.add(event)
    finally:
        shown.close()
    return {"out": str(plan.out), "model": str(model), "as": wanted.look.form, **collector.document()}


class _Collector:
    """Collects results and failures, and shows progress."""

    def __init__(self, display: Display, total: int, *, trained: tuple[int, int] | None = None) -> None:
        self._display, self._total, self._trained = display, total, trained
        self._start = time.perf_counter()
        self._results: list[Result] = []
        self._failures: list[Failure] = []
        self._frames = 0

    def add(self, event: Progress | Result | Failure) -> None:
        from segtailor.predicting.batch import Failure, Progress

        if isinstance(event, Failure):
            self.failed(event)
        elif isinstance(event, Progress):
            self._frames += event.frame
            self._step(event.text, event.done, event.total)
        else:
            self._frames += event.kind == "image"  # frames of videos were counted one by one
            result = self._advised(event)
            self._results.append(result)
            self._step("inputs", len(self._results), self._total, message=result.note)

    def _advised(self, result: Result) -> Result:
        """Add to the first image that is much larger than those of the training what to do about it."""
        from segtailor.predicting.labelling import scale_advice

        if self._trained is None:
            return result
        seen = result.size if result.tiles > 1 else result.network_size
        advice = scale_advice(self._trained, result.size, seen)
        if advice is None:
            return result
        self._trained = None  # said once
        return replace(result, note=" ".join(filter(None, [result.note, f"{result.text}: {advice}."])))

    def failed(self, failure: Failure) -> None:
        self._failures.append(failure)
        self._display.message(f"failed: {failure.problem}")

    def document(self) -> dict[str, JsonValue]:
        seconds = self._seconds
        return {
            "frames": self._frames,
            "seconds": seconds,
            "fps": self._frames / seconds,
            "results": [result.document() for result in self._results],
            "failures": [_failure(failure) for failure in self._failures],
        }

    @property
    def _seconds(self) -> float:
        return max(time.perf_counter() - self._start, 1e-9)

    def _step(self, phase: str, done: int, total: int | None, message: str | None = None) -> None:
        fps = {"fps": self._frames / self._seconds}
        self._display.step(Step(phase=phase, done=done, total=total, metrics=fps, message=message))


def _move_to_device(model: Model | OnnxModel, device: str | None) -> None:
    from segtailor.nets.bundle import Model
    from segtailor.training.device import pick_device

    if isinstance(model, Model):
        model.network.to(pick_device(device))
    elif device not in (None, "cpu"):
        raise Unsupported(f"an ONNX file runs on the CPU here, not on {device}; leave --device out.")


def _failure(failure: Failure) -> dict[str, JsonValue]:
    return {"input": failure.text, "problem": failure.problem}


def _print(printer: Printer, facts: dict[str, Any]) -> None:
    done, failed = len(facts["results"]), len(facts["failures"])
    printer.say(
        f"wrote {done} result{'s' * (done != 1)} to {facts['out']}: {facts['frames']} frames, "
        f"{facts['fps']:.1f} fps from reading to writing"
    )
    if failed:
        printer.say(f"{failed} failed, named above")


def _print_plan(printer: Printer, facts: dict[str, Any]) -> None:
    for row in facts["results"]:
        printer.say(f"would write {row['output']} from {row['input']}")
    for row in facts["failures"]:
        printer.say(f"failed: {row['problem']}")
