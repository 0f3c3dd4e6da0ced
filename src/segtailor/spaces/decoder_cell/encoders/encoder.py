"""What an encoder is to this family: taps, key names and preprocessing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from segtailor.core.plan import PlanBuilder
from segtailor.core.task import Preprocessing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


IMAGENET = Preprocessing()  # the usual mean and deviation


class Tap(NamedTuple):
    """A map that the decoder may read: its node, and the image size over its size."""

    node: str
    stride: int


class LayerNames(NamedTuple):
    """How a checkpoint names one node: where its keys start, and its parts as (ours, theirs)."""

    node: str
    start: str
    parts: Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class KeyNames:
    """One key layout of encoder checkpoints.

    `extra` are the starts of keys beyond the last tap, such as the classifier: recognised and dropped.
    `complete`, when given, adds what such files lack and the encoder has.
    """

    layers: tuple[LayerNames, ...]
    extra: tuple[str, ...] = ()
    complete: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] | None = None


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """Writes its nodes and returns four taps at strides 4, 8, 16 and 32.

    `layouts` tells the key layouts by the start of a key that only they have; the first is this encoder's own.
    """

    write: Callable[[PlanBuilder], tuple[Tap, ...]]
    layouts: Callable[[], dict[str, KeyNames]]
    preprocessing: Preprocessing = IMAGENET
