"""An ONNX file as a model: run by ONNX Runtime, it predicts images of any size as a bundle does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from segtailor.core.errors import Unsupported, UserError
from segtailor.core.task import IGNORE, KIND_FACTS, Preprocessing, Task, needs_classes
from segtailor.core.text import first_line
from segtailor.nets.inference import (
    fit_within,
    letterbox,
    normalise,
    pixels_of,
    unboxed_logits,
    undo_letterbox,
)
from segtailor.nets.onnx.confined import foreign_session
from segtailor.nets.onnx.graph import onnx_errors
from segtailor.nets.onnx.metadata import InputKind, OnnxMetadata, OnnxProblem, OutputKind, parse_metadata
from segtailor.tasks import kind_of
from segtailor.tasks.segmentation.confidence import labels_and_confidence, probabilities

FLOATS = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
INTEGERS = ("tensor(uint8)", "tensor(int8)", "tensor(int32)", "tensor(int64)", "tensor(uint16)")
SAME_FORM: dict[OutputKind, tuple[OutputKind, ...]] = {
    "logits": ("heatmaps",)
}  # outputs of equal type and rank
ASSUMED = (
    "the file says nothing about its classes and preprocessing: classes are numbered, "
    "and pixels are normalised by the usual ImageNet mean and deviation"
)


@dataclass(frozen=True, kw_only=True)
class OnnxModel:
    """A network as a file, with all that is needed to use it.

    `size` is the (height, width) that the file was made for, or None if it takes any size; `note` says what is assumed
    about a file without our metadata.
    """

    file: Path
    session: Any
    metadata: OnnxMetadata
    size: tuple[int, int] | None = None
    note: str | None = None

    @property
    def task(self) -> Task:
        """Classes and colours."""
        return self.metadata.task

    @property
    def preprocessing(self) -> Preprocessing:
        """Normalisation of the pixels, here or inside the file."""
        return self.metadata.preprocessing

    def predict(self, image: Image.Image | NDArray[np.uint8]) -> NDArray[Any]:
        """Predict a PIL image or a (height, width, 3) uint8 array at the image's own size, as a bundle does.

        For a file of fixed size the image is resized with its aspect ratio kept, and padded.
        """
        pixels, to_image = kind_of(self.task).view(pixels_of(image, self.preprocessing), self.task)
        view_size = (pixels.shape[0], pixels.shape[1])
        size = self.size or view_size
        output = self.run(self._input(letterbox(pixels, size, self.preprocessing)))
        finished = self.metadata.output != "logits"
        align = self.metadata.align_corners
        try:
            prediction = undo_letterbox(
                output, size, view_size, task=self.task, finished=finished, align_corners=align
            )
        except UserError as problem:
            raise OnnxProblem(f"ONNX file {self.file} {problem} Export it again.") from None
        return to_image(prediction)

    @property
    def confident(self) -> bool:
        """Whether the file gives probabilities: it gives logits, or a confidence beside its labels."""
        logits = self.metadata.output == "logits" and KIND_FACTS[self.task.kind].labelled
        return logits or (self.metadata.confidence and len(self.session.get_outputs()) > 1)

    def probabilities(self, image: Image.Image | NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the probabilities (classes, height, width) of a segmentation.

        A file of labels with a confidence gives its label that probability, and the rest to the others in equal parts.
        """
        if self.metadata.output == "logits":
            pixels = pixels_of(image, self.preprocessing)
            logits, align = self._logits(pixels)
            size = (pixels.shape[0], pixels.shape[1])
            found = probabilities(logits, size, align_corners=align, temperature=self.metadata.temperature)
            return found[0].numpy()
        labels, confidence = self.predict_with_confidence(image)
        others = max(self.task.outputs - 1, 1)
        spread = np.repeat(((1 - confidence) / others)[None], self.task.outputs, axis=0)
        np.put_along_axis(spread, labels[None].astype(np.int64), confidence[None], axis=0)
        return spread.astype(np.float32, copy=False)

    def predict_with_confidence(
        self, image: Image.Image | NDArray[np.uint8]
    ) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        """Return the labels of `predict`, and the probability of each label (height, width)."""
        needs_classes(self.task, "confidence")
        if not self.confident:
            raise Unsupported(
                f"ONNX file {self.file} gives labels without confidence; export it with --confidence, or with logits."
            )
        pixels = pixels_of(image, self.preprocessing)
        size = (pixels.shape[0], pixels.shape[1])
        if self.metadata.output == "logits":
            logits, align = self._logits(pixels)
            found = labels_and_confidence(
                logits, size, align_corners=align, temperature=self.metadata.temperature
            )
            return found[0][0].numpy(), found[1][0].numpy()
        frame = self.size or size
        boxed = self._input(letterbox(pixels, frame, self.preprocessing))
        (source, *_) = self.session.get_inputs()
        output, sure = self.session.run(None, {source.name: boxed})[:2]
        labels = undo_letterbox(output, frame, size, task=self.task, finished=True, align_corners=False)
        inner = fit_within(size, frame)
        part = Image.fromarray(sure[0][: inner[0], : inner[1]].astype(np.float32))
        return labels, np.asarray(part.resize(size[::-1], Image.Resampling.BILINEAR))

    def _logits(self, pixels: NDArray[np.uint8]) -> tuple[Tensor, bool]:
        """Return the logits of an image, and whether their resize to the image aligns corners."""
        size = (pixels.shape[0], pixels.shape[1])
        frame = self.size or size
        output = self.run(self._input(letterbox(pixels, frame, self.preprocessing)))
        return unboxed_logits(output, frame, size, align_corners=self.metadata.align_corners)

    def run(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the output for an array of the file's type, e.g. logits (1, classes, h, w) or labels (1, h, w)."""
        (source, *_) = self.session.get_inputs()
        try:
            output: NDArray[Any] = self.session.run(None, {source.name: array})[0]
        except onnx_errors() as problem:
            raise OnnxProblem(
                f"ONNX file {self.file} cannot compute an input of {array.shape} ({first_line(problem)}). "
                "Give a larger picture, or export it again for this size."
            ) from None
        rank = 4 if self.metadata.output == "logits" else KIND_FACTS[self.task.kind].rank
        if rank == 3 and output.ndim == 4 and output.shape[1] == 1:
            output = output[:, 0]
        wanted = (1, self.task.outputs) if rank == 4 else (1,)
        if output.shape[: len(wanted)] != wanted or output.ndim != len(wanted) + 2:
            raise OnnxProblem(
                f"ONNX file {self.file} gave an output of {output.shape}, not {self.metadata.output} for "
                f"{self.task.outputs} classes. Export it again."
            )
        return output

    def _input(self, pixels: NDArray[np.uint8]) -> NDArray[Any]:
        if self.metadata.input == "pixels":
            return np.ascontiguousarray(pixels[None])
        (source, *_) = self.session.get_inputs()
        image = normalise(pixels[None], self.preprocessing, torch.device("cpu"))
        array: NDArray[Any] = image.numpy().astype(FLOATS[source.type], copy=False)
        return array


def open_onnx_model(file: str | Path, *, threads: int | None = None) -> OnnxModel:
    """Open an ONNX file (on all cores by default); one without our metadata gets numbered classes and a note."""
    path = Path(file)
    session = foreign_session(path, threads=threads or psutil.cpu_count(logical=False) or 1)
    what = f"ONNX file {path}"
    stated = parse_metadata(session.get_modelmeta().custom_metadata_map, what=what)
    reads, size = _reads(session, what, 3 if stated is None else stated.preprocessing.channels)
    gives, classes = _gives(session, what)
    if stated is None:
        return OnnxModel(
            file=path, session=session, size=size, metadata=_assumed(reads, gives, classes), note=ASSUMED
        )
    given = gives if stated.output not in SAME_FORM.get(gives, ()) else stated.output
    if (stated.input, stated.output) != (reads, given) or classes not in (None, stated.task.outputs):
        raise OnnxProblem(
            f"{what} says that it turns {stated.input} into {stated.output} of {stated.task.outputs} classes, but it "
            f"turns {reads} into {gives}" + (f" of {classes}" if classes else "") + ". Export it again."
        )
    return OnnxModel(file=path, session=session, size=size, metadata=stated)


def _assumed(reads: InputKind, gives: OutputKind, classes: int | None) -> OnnxMetadata:
    names = tuple(f"class{index}" for index in range(min(classes or IGNORE, IGNORE)))
    if gives == "depth":
        return OnnxMetadata(task=Task(classes=("depth",), kind="depth"), input=reads, output=gives)
    return OnnxMetadata(task=Task(classes=names), input=reads, output=gives)


def _reads(session: Any, what: str, channels: int) -> tuple[InputKind, tuple[int, int] | None]:
    """Return the kind of a file's only input, and its (height, width) if that is fixed."""
    sources = session.get_inputs()
    shape = sources[0].shape if len(sources) == 1 else []
    if len(shape) != 4 or (isinstance(shape[0], int) and shape[0] != 1):
        described = ", ".join(f"{source.type} {source.shape}" for source in sources)
        raise OnnxProblem(
            f"{what} reads {described}; a model for pictures reads one image. Is it the right file?"
        )
    kind = sources[0].type
    if kind == "tensor(uint8)" and shape[3] == channels:
        return "pixels", _fixed(shape[1:3])
    if kind in FLOATS and shape[1] == channels:
        return "image", _fixed(shape[2:])
    raise OnnxProblem(
        f"{what} reads {kind} {shape}; a model for pictures reads float (1, {channels}, height, width) or "
        f"uint8 (1, height, width, {channels})."
    )


def _gives(session: Any, what: str) -> tuple[OutputKind, int | None]:
    """Return the kind of a file's first output, and its number of classes if known."""
    (output, *_) = session.get_outputs()
    rank = len(output.shape)
    if output.type in FLOATS and rank == 4:
        return "logits", output.shape[1] if isinstance(output.shape[1], int) else None
    if output.type in INTEGERS and (rank == 3 or (rank == 4 and output.shape[1] == 1)):
        return "labels", None
    if output.type in FLOATS and rank == 3:
        return "depth", None
    raise OnnxProblem(
        f"{what} gives {output.type} {output.shape}; a segmentation model gives float (1, classes, h, w) or "
        "integer labels (1, h, w), a depth model float (1, h, w)."
    )


def _fixed(sides: list[Any]) -> tuple[int, int] | None:
    height, width = sides
    return (height, width) if isinstance(height, int) and isinstance(width, int) else None
