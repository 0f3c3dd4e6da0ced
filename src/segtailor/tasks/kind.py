"""Kinds of tasks: one protocol for everything that differs between segmentation, depth and pose.

Networks, searches, training, deployment and reports call `kind_of(task)` and never test which kind it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from segtailor.core.codec import Json
from segtailor.core.errors import Unsupported
from segtailor.core.registry import TASK_KINDS as TASK_KINDS  # extensions import it from here
from segtailor.core.task import Colour, Task
from segtailor.tasks.loss_settings import LossSettings
from segtailor.tasks.targets import Targets

Forward: TypeAlias = Callable[[Tensor], Tensor]  # from images to the main output
AddUp: TypeAlias = Callable[[Tensor], Tensor]  # sums a tensor over all processes
ERROR_COLOUR: Colour = (213, 94, 0)  # vermilion: differs from grey for any colour vision
Form: TypeAlias = Literal["colour", "overlay", "ids"]


class View(NamedTuple):
    """Input pixels (height, width, 3) of a network, and the function that maps their prediction back to the picture."""

    pixels: NDArray[np.uint8]
    back: Callable[[NDArray[Any]], NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Look:
    """How a prediction is drawn: `colour`, `overlay` (colours over the picture) or `ids` (plain values)."""

    form: Form = "colour"
    opacity: float = 0.55

    def __post_init__(self) -> None:
        if not 0 <= self.opacity <= 1:
            raise Unsupported(f"opacity {self.opacity:g} is outside 0..1; give for example 0.5.")


class Criterion(Protocol):
    """The loss of a training batch, on one device."""

    align_corners: bool

    @property
    def global_normaliser(self) -> bool:
        """Whether the normaliser depends on the targets alone, so that parts of a batch can share it."""

    def normaliser(self, targets: Tensor, /) -> Tensor:
        """Return the divisor of the loss, e.g. the number of labelled pixels in the targets."""

    def __call__(self, outputs: Mapping[str, Tensor], targets: Tensor, /, *, normaliser: Tensor) -> Tensor:
        """Return the weighted sum over outputs."""


class Scores(Protocol):
    """The figures of an evaluation: a frozen dataclass of numbers."""

    @property
    def quality(self) -> float:
        """The headline figure: from 0 to 1, higher is better."""

    @property
    def reward(self) -> float:
        """The figure that staged evaluations maximise."""

    def figures(self) -> dict[str, float]:
        """Return the figures by the names of `core.figures`, the headline first."""

    def document(self, classes: Sequence[str]) -> dict[str, Json]:
        """Return the JSON form; `classes` names the outputs."""


class Meter(Protocol):
    """Accumulates the statistics of an evaluation on the device of the predictions."""

    images: int

    def add(self, predicted: Tensor, targets: Tensor, /) -> None:
        """Count a batch of predictions, as `decode` returns them."""

    def merge(self, add_up: AddUp, /) -> None:
        """Combine the counts of all processes."""

    def scores(self, *, without: Sequence[int] = ()) -> Scores:
        """Return the figures; the outputs in `without` are left out of averages over outputs."""


@runtime_checkable
class KnowsSamples(Protocol):
    """A meter that compares predictions across samples, e.g. all people of one picture."""

    def know(self, samples: Sequence[object], /) -> None:
        """Learn which sample each prediction is of, in the order in which they were added."""


class Head(nn.Module):
    """The last stage of a deployed graph: from logits to the finished output."""

    def prepare(self, logits: torch.Size, size: tuple[int, int]) -> None:
        """Prepare for graphs of one size; does nothing by default."""

    def small(self, logits: Tensor) -> Tensor:
        """Return the finished output at the stride of the logits."""
        raise NotImplementedError


class TaskKind(Protocol):
    """A kind of task."""

    dtype: torch.dtype
    """Type of the predictions that users get."""

    scores_type: type[Any]
    """Type that meters return; saved scores are read as this type."""

    def targets(self, task: Task) -> Targets:
        """Return how targets are stored."""

    def criterion(
        self, settings: LossSettings, *, task: Task, device: torch.device, align_corners: bool = False,
        seen: Callable[[], NDArray[Any]] | None = None,
    ) -> Criterion:  # fmt: skip
        """Return the loss; `seen` returns the training targets, for losses that derive weights from them."""

    def meter(self, task: Task, device: torch.device) -> Meter:
        """Return an empty meter."""

    def decode(self, logits: Tensor, size: tuple[int, int], *, task: Task, align_corners: bool) -> Tensor:
        """Turn the main output for images of `size` (height, width) into predictions at that size."""

    def predict(self, forward: Forward, images: Tensor, *, task: Task, align_corners: bool) -> Tensor:
        """Predict normalised images (n, 3, height, width): usually `decode` of what `forward` returns."""

    def view(self, pixels: NDArray[np.uint8], task: Task) -> View:
        """Return a picture as the network needs it, with the function that maps a prediction back."""

    def head(self, task: Task, *, align_corners: bool) -> Head:
        """Return the last stage of an exported graph, which computes its finished output."""

    def finish(self, output: NDArray[Any], size: tuple[int, int], *, task: Task) -> NDArray[Any]:
        """Turn one finished output of a file, without its batch, into a prediction for a picture of `size`.

        An invalid output raises `UserError`; the caller puts the name of the file before its message.
        """

    def resized(self, found: NDArray[Any], size: tuple[int, int], to: tuple[int, int]) -> NDArray[Any]:
        """Return the prediction for a picture of `size` as one for the same picture of size `to`."""

    def corner(self, found: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
        """Return the prediction for the upper left part of `size` of a picture."""

    def agree(self, one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
        """Tell element by element whether two predictions differ only by rounding."""

    def paint(self, image: NDArray[np.uint8], found: NDArray[Any], task: Task, look: Look) -> Image.Image:
        """Draw the prediction of a picture."""

    def mark(
        self, image: NDArray[np.uint8], target: NDArray[Any], found: NDArray[Any], task: Task
    ) -> Image.Image:
        """Draw the errors of a prediction over a pale copy of the picture."""

    def legend(self, targets: Sequence[NDArray[Any]], task: Task) -> list[tuple[Colour, str]]:
        """Return colour and text for the legend of pictures of these targets, e.g. each class and its share."""

    def describe(self, found: NDArray[Any], task: Task) -> dict[str, float]:
        """Summarise a prediction in a few numbers."""


def kind_of(task: Task) -> TaskKind:
    """Return the behaviour of a task."""
    kind: TaskKind = TASK_KINDS.get(task.kind)
    return kind


def pale_picture(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a pale grey copy of a picture (height, width, 3), as background for marks."""
    grey = np.asarray(Image.fromarray(image).convert("L")).astype(np.float32)
    return np.repeat((186 + grey * 0.25).astype(np.uint8)[:, :, None], 3, axis=2)


def mark_errors(image: NDArray[np.uint8], strength: NDArray[np.floating]) -> Image.Image:
    """Paint errors of a given strength (height, width), 0 to 1, over a pale copy of the picture."""
    share = np.clip(strength, 0, 1)[:, :, None]
    mixed = pale_picture(image) * (1 - share) + np.array(ERROR_COLOUR) * share
    return Image.fromarray(np.rint(mixed).astype(np.uint8))
