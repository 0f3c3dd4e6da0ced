"""Metadata of an ONNX file: one JSON entry with task and preprocessing, so that the file can be used alone.

Files are untrusted: what is read is limited in size and validated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from segtailor.core.codec import canonical, from_json, short, to_json
from segtailor.core.errors import UserError
from segtailor.core.task import KIND_FACTS, Preprocessing, Task
from segtailor.tasks.segmentation.confidence import MAX_TEMPERATURE, MIN_TEMPERATURE

FORMAT = 1
KEY = "segtailor"  # of the entry in the file's metadata_props
MAX_METADATA_CHARACTERS = 2**20  # of the entry
InputKind: TypeAlias = Literal["image", "pixels"]
OutputKind: TypeAlias = Literal["logits", "labels", "depth", "heatmaps"]


class OnnxProblem(UserError):
    """An ONNX file that is damaged, or that does not fit its own metadata."""


@dataclass(frozen=True, kw_only=True)
class OnnxMetadata:
    """Inputs and outputs of a file, and the network that it was made from.

    `input` is `image` (normalised floats, NCHW) or `pixels` (uint8, NHWC); `output` is `logits` at the network's own
    stride or a finished prediction: `labels`, `depth` or `heatmaps`; `align_corners` is the flag of the resize from the
    logits to the image. `architecture` is the document of an architecture file. Where `confidence` is set, a file of
    labels has a second output of that name: the probability of each label, from logits divided by `temperature`. With
    `unsure`, a probability, it has a third one: 255 where the label is less likely, otherwise 0.
    """

    task: Task
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    input: InputKind = "image"
    output: OutputKind = "logits"
    align_corners: bool = False
    architecture: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    confidence: bool = False
    unsure: float | None = None
    temperature: float = 1.0
    format: int = FORMAT

    def __post_init__(self) -> None:
        finished = KIND_FACTS[self.task.kind].finished
        if self.output not in ("logits", finished):
            raise OnnxProblem(
                f"output: '{self.output}'; a file for the task '{self.task.kind}' gives logits or {finished}."
            )
        if not MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE:
            raise OnnxProblem(
                f"temperature: {self.temperature:g}; it is from {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}."
            )
        if self.confidence and self.output != "labels":
            raise OnnxProblem("confidence: only a file that gives labels has this output.")
        if self.unsure is not None and not (self.confidence and 0 < self.unsure < 1):
            raise OnnxProblem("unsure: a probability between 0 and 1, in a file that gives confidence.")


def with_metadata(model: bytes, metadata: OnnxMetadata) -> bytes:
    """Return a serialised ONNX model with its entry set, replacing an older one."""
    import onnx

    text = canonical(to_json(metadata))
    if len(text) > MAX_METADATA_CHARACTERS:
        raise OnnxProblem(
            f"the metadata has {len(text)} characters, at most {MAX_METADATA_CHARACTERS} fit. "
            "Shorten the provenance."
        )
    proto = onnx.load_model_from_string(model)
    others = {entry.key: entry.value for entry in proto.metadata_props if entry.key != KEY}
    onnx.helper.set_model_props(proto, {**others, KEY: text})
    data: bytes = proto.SerializeToString()
    return data


def parse_metadata(entries: Mapping[str, str], *, what: str) -> OnnxMetadata | None:
    """Read the entry of a file's metadata, None if there is none; `what` names the file in errors."""
    text = entries.get(KEY)
    if text is None:
        return None
    if len(text) > MAX_METADATA_CHARACTERS:
        raise OnnxProblem(
            f"{what}: its metadata has {len(text)} characters, at most {MAX_METADATA_CHARACTERS} are read."
        )
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise OnnxProblem(f"{what}: its metadata is not valid JSON ({problem}). Export it again.") from None
    version = document.get("format") if isinstance(document, dict) else None
    if version != FORMAT:
        raise OnnxProblem(
            f"{what}: format of the metadata is {short(version)}, this version reads {FORMAT}. Update segtailor."
        )
    try:
        return from_json(OnnxMetadata, document, what=f"{what}, metadata", error=OnnxProblem)
    except OnnxProblem:
        raise
    except UserError as problem:  # an invalid task
        raise OnnxProblem(f"{what}, metadata: {problem}") from None
