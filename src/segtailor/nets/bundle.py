"""A bundle: a trained network as a folder with `model.safetensors` and `model.json`. Nothing in it is executed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors import SafetensorError
from torch import Tensor

from segtailor.core.atomic import write_bytes, write_json
from segtailor.core.codec import Json, from_json, read_json, short, to_json
from segtailor.core.errors import UserError
from segtailor.core.shipped import DESCRIPTION
from segtailor.core.space import Architecture, architecture_document, parse_architecture
from segtailor.core.task import KIND_FACTS, Preprocessing, Task, needs_classes
from segtailor.core.text import require_utf8
from segtailor.nets.checkpoint_file import read_safetensors
from segtailor.nets.inference import (
    class_probabilities,
    pixels_of,
    predict_picture,
    predict_with_confidence,
)
from segtailor.nets.network import Network, build
from segtailor.tasks.segmentation.confidence import MAX_TEMPERATURE, MIN_TEMPERATURE

FORMAT = 1
WEIGHTS = "model.safetensors"
T = TypeVar("T")
Precision: TypeAlias = Literal["fp32", "fp16"]


class BundleProblem(UserError):
    """A bundle that is missing, damaged or from a newer version."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A trained network with all that is needed to use it.

    `temperature` divides the logits of a segmentation where probabilities are asked for (`eval --calibrate` fits it).
    """

    network: Network
    task: Task
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    provenance: Mapping[str, Json] = field(default_factory=dict)
    numbers: Mapping[str, Json] = field(default_factory=dict)
    temperature: float = 1.0

    @property
    def architecture(self) -> Architecture:
        """The network's architecture."""
        return self.network.architecture

    @property
    def trained_size(self) -> tuple[int, int] | None:
        """The usual height and width of the images it was trained on, if they are known."""
        match self.provenance.get("image"):
            case [int(height), int(width)]:
                return height, width
        return None

    def predict(self, image: Image.Image | NDArray[np.uint8]) -> NDArray[Any]:
        """Predict a PIL image or a (height, width, 3) uint8 array at the image's own size.

        A network for other bands takes an array (height, width, bands): raw values, or uint8 as they are scaled.

        The result depends on the kind of task: labels (height, width) in uint8, metres (height, width) in float32, or
        joints (joints, 3) as x, y and score.
        """
        pixels = pixels_of(image, self.preprocessing)
        return predict_picture(
            self.network, pixels, task=self.task, preprocessing=self.preprocessing, device=self.device
        )

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.network.parameters()).device

    @property
    def confident(self) -> bool:
        """Whether it gives probabilities of classes."""
        return KIND_FACTS[self.task.kind].labelled

    def probabilities(self, image: Image.Image | NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the probabilities (classes, height, width) of a segmentation at the image's own size."""
        needs_classes(self.task, "a probability")
        return class_probabilities(
            self.network,
            pixels_of(image, self.preprocessing),
            preprocessing=self.preprocessing,
            device=self.device,
            temperature=self.temperature,
        )

    def predict_with_confidence(
        self, image: Image.Image | NDArray[np.uint8]
    ) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        """Return the labels of `predict`, and the probability of each label (height, width)."""
        needs_classes(self.task, "confidence")
        return predict_with_confidence(
            self.network,
            pixels_of(image, self.preprocessing),
            preprocessing=self.preprocessing,
            device=self.device,
            temperature=self.temperature,
        )


def save_bundle(folder: Path, model: Model, *, precision: Precision = "fp32") -> None:
    """Write a bundle; weights first, so that there is never a description without weights.

    `fp16` halves the file: kernels are rounded to half precision, and become single precision when read.
    """
    require_utf8(folder, what="bundle")
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        name: _stored(name, tensor.detach().to("cpu"), precision).contiguous()
        for name, tensor in model.network.state_dict().items()
    }
    write_bytes(folder / WEIGHTS, safetensors.torch.save(state), what="weights of the model")
    description = {
        "format": FORMAT,
        "architecture": architecture_document(model.architecture),
        "outputs": list(model.network.plan.outputs),
        "precision": precision,
        "task": to_json(model.task),
        "preprocessing": to_json(model.preprocessing),
        "provenance": dict(model.provenance),
        "numbers": dict(model.numbers),
        **({} if model.temperature == 1.0 else {"temperature": model.temperature}),
    }
    write_json(folder / DESCRIPTION, description, what="description of the model")


def load_bundle(folder: Path) -> Model:
    """Read a bundle, in evaluation mode."""
    require_utf8(folder, what="bundle")
    if not (folder / DESCRIPTION).is_file():
        raise BundleProblem(
            f"{folder} is no bundle: it has no {DESCRIPTION}. Give the folder that `train` wrote."
        )
    facts = read_json(folder / DESCRIPTION, what="bundle", error=BundleProblem)
    version = facts.get("format") if isinstance(facts, dict) else None
    if version != FORMAT:
        raise BundleProblem(
            f"bundle {folder}: format is {version!r}, this version reads {FORMAT}. Update segtailor."
        )
    for part in ("provenance", "numbers"):
        if not isinstance(facts.get(part, {}), dict):
            raise BundleProblem(
                f"bundle {folder}: {part} is {short(facts[part])}, not an object. Copy or train it again."
            )
    outputs = facts.get("outputs", ["main"])
    if not isinstance(outputs, list) or not all(isinstance(name, str) for name in outputs):
        raise BundleProblem(
            f"bundle {folder}: outputs is {short(outputs)}, not a list of names. Copy or train it again."
        )
    arch = parse_architecture(facts.get("architecture"), what=f"bundle {folder}")
    task = _part(Task, facts, "task", folder)
    preprocessing = _part(Preprocessing, facts, "preprocessing", folder)
    network = build(arch, task.outputs, outputs=outputs, channels=preprocessing.channels)
    _load_weights(network, folder / WEIGHTS)
    return Model(
        network=network.eval(),
        task=task,
        preprocessing=preprocessing,
        provenance=facts.get("provenance", {}),
        numbers=facts.get("numbers", {}),
        temperature=_temperature(facts, folder),
    )


def set_temperature(folder: Path, temperature: float, calibration: Mapping[str, Json]) -> None:
    """Write a temperature and the figures of its fit (`numbers.calibration`) into the description of a bundle."""
    facts = read_json(folder / DESCRIPTION, what="bundle", error=BundleProblem)
    numbers = {**facts.get("numbers", {}), "calibration": dict(calibration)}
    document = {**facts, "temperature": temperature, "numbers": numbers}
    _temperature(document, folder)
    write_json(folder / DESCRIPTION, document, what="description of the model")


def _temperature(facts: Mapping[str, Json], folder: Path) -> float:
    """Return the temperature of a description; it is checked, because logits are divided by it."""
    value = facts.get("temperature", 1.0)
    usable = isinstance(value, int | float) and MIN_TEMPERATURE <= value <= MAX_TEMPERATURE
    if not usable or isinstance(value, bool):
        raise BundleProblem(
            f"bundle {folder}: temperature is {short(value)}, not a number from {MIN_TEMPERATURE:g} to "
            f"{MAX_TEMPERATURE:g}. Copy it or calibrate it again."
        )
    return float(value)  # type: ignore[arg-type]


def _part(kind: type[T], facts: Mapping[str, Json], name: str, folder: Path) -> T:
    """Read one part of a description; any error in it is an error of the bundle."""
    try:
        return from_json(kind, facts.get(name), what=name, error=BundleProblem)
    except UserError as problem:
        raise BundleProblem(f"bundle {folder}, {problem}") from None


def _stored(name: str, tensor: Tensor, precision: Precision) -> Tensor:
    """Return a tensor as it is stored; vectors stay fp32: variances exceed the range of half precision."""
    if precision == "fp32" or tensor.ndim < 2 or not tensor.is_floating_point():
        return tensor
    half = tensor.half()
    if not torch.equal(half.isfinite(), tensor.isfinite()):
        raise BundleProblem(
            f"weight '{name}' is beyond {torch.finfo(torch.half).max:g}, the largest number of half precision; "
            "keep this network in fp32."
        )
    return half


def _load_weights(network: Network, file: Path) -> None:
    try:
        state = read_safetensors(file)
    except FileNotFoundError:
        raise BundleProblem(
            f"{file} does not exist; the bundle is incomplete. Copy or train it again."
        ) from None
    except (SafetensorError, OSError, ValueError) as problem:
        raise BundleProblem(f"{file} is damaged ({problem}). Copy or train it again.") from None
    expected = network.state_dict()
    for name in sorted(expected.keys() ^ state.keys()):
        reason = "is missing" if name in expected else "is unknown"
        raise BundleProblem(f"{file}: weight '{name}' {reason}; the bundle does not fit its own description.")
    for name, tensor in expected.items():
        if tensor.shape != state[name].shape:
            raise BundleProblem(
                f"{file}: weight '{name}' has shape {tuple(state[name].shape)}, not {tuple(tensor.shape)}."
            )
    network.load_state_dict(state)
