"""What a kind of task is: everything that differs between segmentation, depth and pose, behind one protocol.

Networks, searches, training, deployment and reports ask `kind_of(task)` and never which kind it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from segtailor.core.codec import Json
from segtailor.core.errors import Unsupported
from segtailor.core.registry import Registry
from segtailor.core.task import Colour, Task
from segtailor.tasks.loss_settings import LossSettings
from segtailor.tasks.targets import Targets

Forward: TypeAlias = Callable[[Tensor], Tensor]  # from images to the main output
AddUp: TypeAlias = Callable[[Tensor], Tensor]  # sums a tensor over all processes


class View(NamedTuple):
    """Pixels (height, width, 3) for a network, and what turns a prediction for them into one for the picture."""

    pixels: NDArray[np.uint8]
    back: Callable[[NDArray[Any]], NDArray[Any]]


class Criterion(Protocol):
    """The loss of a training batch, on one device."""

    align_corners: bool

    @property
    def global_normaliser(self) -> bool:
        """Whether the normaliser depends on the targets alone, so that parts of a batch can share it."""

    def normaliser(self, targets: Tensor, /) -> Tensor:
        """Return how much counts in the targets."""

    def __call__(self, outputs: Mapping[str, Tensor], targets: Tensor, /, *, normaliser: Tensor) -> Tensor:
        """Return the weighted sum over outputs."""


class Scores(Protocol):
    """The figures of an evaluation: a frozen dataclass of numbers."""

    @property
    def quality(self) -> float:
        """The headline figure: from 0 to 1, higher is better."""

    @property
    def reward(self) -> float:
        """What a staged evaluation climbs."""

    def figures(self) -> dict[str, float]:
        """Return the figures by the names of `core.figures`, the headline first."""

    def document(self, classes: Sequence[str]) -> dict[str, Json]:
        """Return the JSON form; `classes` names the outputs."""


class Meter(Protocol):
    """Adds up what an evaluation needs, where the predictions are."""

    images: int

    def add(self, predicted: Tensor, targets: Tensor, /) -> None:
        """Count a batch of predictions, as `decode` returns them."""

    def merge(self, add_up: AddUp, /) -> None:
        """Bring together what several processes counted."""

    def scores(self, *, without: Sequence[int] = ()) -> Scores:
        """Return the figures; outputs `without` stay out of averages over outputs."""


class Head(nn.Module):
    """The last stage of a deployed graph: from logits to the finished output."""

    def prepare(self, logits: torch.Size, size: tuple[int, int]) -> None:
        """Make ready for graphs of one size; by default there is nothing to do."""

    def small(self, logits: Tensor) -> Tensor:
        """Return the finished output at the stride of the logits."""
        raise NotImplementedError


class TaskKind(Protocol):
    """A kind of task."""

    dtype: torch.dtype
    """Of predictions as users get them."""

    scores_type: type[Any]
    """What meters return, so that saved scores can be read."""

    def targets(self, task: Task) -> Targets:
        """Return how targets are stored."""

    def criterion(
        self, settings: LossSettings, *, task: Task, device: torch.device, align_corners: bool = False,
        seen: Callable[[], NDArray[Any]] | None = None,
    ) -> Criterion:  # fmt: skip
        """Return the loss; `seen` gives the training targets to losses that look at them first."""

    def meter(self, task: Task, device: torch.device) -> Meter:
        """Return an empty meter."""

    def decode(self, logits: Tensor, size: tuple[int, int], *, task: Task, align_corners: bool) -> Tensor:
        """Turn the main output for images of `size` (height, width) into predictions at that size."""

    def predict(self, forward: Forward, images: Tensor, *, task: Task, align_corners: bool) -> Tensor:
        """Predict normalised images (n, 3, height, width): usually `decode` of what `forward` returns."""

    def view(self, pixels: NDArray[np.uint8], task: Task) -> View:
        """Return a picture as the network wants to see it, and the way back for what is predicted of it."""

    def head(self, task: Task, *, align_corners: bool) -> Head:
        """Return the stage that makes the finished output of an exported file."""

    def finish(self, output: NDArray[Any], size: tuple[int, int], *, task: Task) -> NDArray[Any]:
        """Turn one finished output of a file, without its batch, into a prediction for a picture of `size`.

        An output that cannot be raises `UserError`, whose message goes on after the name of the file.
        """

    def resized(self, found: NDArray[Any], size: tuple[int, int], to: tuple[int, int]) -> NDArray[Any]:
        """Return the prediction for a picture of `size` as one for the same picture of size `to`."""

    def corner(self, found: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
        """Return the prediction of a picture as that of its upper left part of `size`."""

    def agree(self, one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
        """Tell place by place whether two predictions are the same but for rounding."""

    def paint(self, image: NDArray[np.uint8], found: NDArray[Any], task: Task, look: Look) -> Image.Image:
        """Draw the prediction of a picture."""

    def mark(
        self, image: NDArray[np.uint8], target: NDArray[Any], found: NDArray[Any], task: Task
    ) -> Image.Image:
        """Draw where the prediction of a picture errs, over the pale picture."""

    def legend(self, targets: Sequence[NDArray[Any]], task: Task) -> list[tuple[Colour, str]]:
        """Say what the colours in pictures of these targets mean, and how much of each there is."""

    def describe(self, found: NDArray[Any], task: Task) -> dict[str, float]:
        """Say in a few numbers what was predicted."""


TASK_KINDS: Registry[TaskKind] = Registry("task")


def kind_of(task: Task) -> TaskKind:
    """Return the behaviour of a task."""
    return TASK_KINDS.get(task.kind)


WRONG: Colour = (213, 94, 0)  # vermilion: told from grey with any colour vision
Form: TypeAlias = Literal["colour", "overlay", "ids"]


@dataclass(frozen=True, kw_only=True)
class Look:
    """What is written: `colour`, `overlay` (colours over the picture) or `ids` (bare values); each kind says how."""

    form: Form = "colour"
    opacity: float = 0.55

    def __post_init__(self) -> None:
        if not 0 <= self.opacity <= 1:
            raise Unsupported(f"opacity {self.opacity:g} is outside 0..1; give for example 0.5.")


def pale(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a picture (height, width, 3) as a backdrop for what is marked on it."""
    grey = np.asarray(Image.fromarray(image).convert("L")).astype(np.float32)
    return np.repeat((186 + grey * 0.25).astype(np.uint8)[:, :, None], 3, axis=2)


def marked(image: NDArray[np.uint8], strength: NDArray[np.floating]) -> Image.Image:
    """Lay the colour of errors over a pale picture, as strong (0 to 1) as the errors (height, width) are."""
    share = np.clip(strength, 0, 1)[:, :, None]
    mixed = pale(image) * (1 - share) + np.array(WRONG) * share
    return Image.fromarray(np.rint(mixed).astype(np.uint8))
