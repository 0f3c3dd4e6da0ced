"""Label pictures, videos and cameras with a trained network."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from segtailor.api.models import open_model
from segtailor.core.codec import Json
from segtailor.core.errors import Unsupported, UserError
from segtailor.core.job import Step
from segtailor.predicting.batch import Failure, Progress, Result, Settings, predict_all
from segtailor.predicting.inputs import Input, destinations, expand, spare_others
from segtailor.runs.display import Display, Quiet
from segtailor.runs.interrupt import stoppable

if TYPE_CHECKING:
    from segtailor.nets.bundle import Model
    from segtailor.nets.onnx_model import OnnxModel


@dataclass(frozen=True, kw_only=True)
class Outline:
    """What a call will label, and where each result will go; `failures` were found already."""

    work: tuple[tuple[Input, Path], ...]
    failures: tuple[Failure, ...]
    out: Path

    def document(self) -> dict[str, Json]:
        """Return plain data."""
        return {
            "out": str(self.out),
            "results": [{"input": item.text, "output": str(path)} for item, path in self.work],
            "failures": [_failure(failure) for failure in self.failures],
        }


def outline(
    inputs: Sequence[str], out: str | Path, settings: Settings | None = None, *, force: bool = False
) -> Outline:
    """List the inputs that the texts stand for: files, folders, patterns, camera numbers.

    Files where results would go that are no results of ours are refused, unless `force`.
    """
    folder, wanted = Path(out), settings or Settings()
    if not inputs:
        raise UserError("nothing to label was named; give a picture, a folder, a video or a camera number.")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give a folder for the results.")
    found, problems = expand(inputs, out=folder)
    paths = destinations(found, folder, wanted.look.form)
    spare_others(found, paths, wanted.look.form, force=force)
    failures = tuple(Failure(text=text, problem=problem) for text, problem in problems)
    return Outline(work=tuple(zip(found, paths, strict=True)), failures=failures, out=folder)


def predict(
    model: str | Path,
    inputs: Sequence[str],
    out: str | Path,
    *,
    settings: Settings | None = None,
    device: str | None = None,
    display: Display | None = None,
    force: bool = False,
) -> dict[str, Json]:
    """Label every input and write one result each into `out`; an input that fails does not stop the others.

    Results of earlier calls are replaced; files that are none only by `force`, otherwise nothing is begun.
    The document has `results`, `failures`, `frames`, `seconds` and `fps` (all stages: read, label, write).
    """
    wanted, shown = settings or Settings(), display or Quiet()
    plan = outline(inputs, out, wanted, force=force)
    predictor = open_model(model)
    _place(predictor, device)
    shown.open(f"{len(plan.work)} input(s) to {plan.out}")
    watch = _Watch(shown, total=len(plan.work))
    try:
        if note := getattr(predictor, "note", None):
            shown.message(f"note: {note}.")
        for failure in plan.failures:
            watch.failed(failure)
        with stoppable(lambda: shown.message("stopping after this frame; once more stops at once")) as stop:
            for event in predict_all(predictor, plan.work, wanted, stop=lambda: stop.requested):
                watch.see(event)
    finally:
        shown.close()
    return {"out": str(plan.out), "model": str(model), "as": wanted.look.form, **watch.document()}


class _Watch:
    """Collects results and tells the display."""

    def __init__(self, display: Display, total: int) -> None:
        self._display, self._total = display, total
        self._start = time.perf_counter()
        self._results: list[Result] = []
        self._failures: list[Failure] = []
        self._frames = 0

    def see(self, event: Progress | Result | Failure) -> None:
        if isinstance(event, Failure):
            self.failed(event)
        elif isinstance(event, Progress):
            self._frames += 1
            self._step(event.text, event.done, event.total)
        else:
            self._frames += event.kind == "image"  # frames of moving inputs were counted as they came
            self._results.append(event)
            self._step("inputs", len(self._results), self._total, message=event.note)

    def failed(self, failure: Failure) -> None:
        self._failures.append(failure)
        self._display.message(f"failed: {failure.problem}")

    def document(self) -> dict[str, Json]:
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


def _place(model: Model | OnnxModel, device: str | None) -> None:
    from segtailor.nets.bundle import Model
    from segtailor.training.device import pick_device

    if isinstance(model, Model):
        model.network.to(pick_device(device))
    elif device not in (None, "cpu"):
        raise Unsupported(f"an ONNX file runs on the CPU here, not on {device}; leave --device out.")


def _failure(failure: Failure) -> dict[str, Json]:
    return {"input": failure.text, "problem": failure.problem}
