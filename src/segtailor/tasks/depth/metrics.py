"""Quality of predicted depth: the errors of Eigen et al. (2014), each image's own figure averaged over images.

Only pixels whose true depth lies within the task's span count; an image without any is left out. Shares are fractions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from segtailor.core.codec import Json

STEP = 1.25  # predictions within this factor of the truth are good, within its square fair, ...
SMALLEST = 1e-3  # metres: what a prediction that is not positive counts as where its logarithm is needed
NAMES = ("delta1", "delta2", "delta3", "rmse", "rmse_log", "abs_rel", "sqr_rel")


@dataclass(frozen=True, kw_only=True)
class DepthScores:
    """Figures of one evaluation; `delta1` to `delta3` are shares of pixels within a factor 1.25, 1.25², 1.25³."""

    delta1: float
    delta2: float
    delta3: float
    rmse: float
    rmse_log: float
    abs_rel: float
    sqr_rel: float
    images: int = 0

    @property
    def quality(self) -> float:
        """The headline figure: the share of pixels within a factor of 1.25."""
        return self.delta1

    @property
    def reward(self) -> float:
        """What staged searches climb: the headline figure."""
        return self.delta1

    def figures(self) -> dict[str, float]:
        """Return all figures by name."""
        return {name: getattr(self, name) for name in NAMES}

    def document(self, classes: Sequence[str]) -> dict[str, Json]:
        """Return the JSON form."""
        del classes
        return {**self.figures(), "images": self.images}


class DepthMeter:
    """Adds up the figures of images."""

    def __init__(self, span: tuple[float, float], device: torch.device | None = None) -> None:
        self.span = span
        self.images = 0
        self.sums = torch.zeros(len(NAMES) + 1, dtype=torch.float64, device=device)  # the last counts images

    def add(self, predicted: Tensor, depths: Tensor) -> None:
        """Count a batch of depth maps (images, height, width) in metres."""
        if predicted.shape != depths.shape:
            raise ValueError(
                f"predicted depths are {tuple(predicted.shape)}, true ones {tuple(depths.shape)}"
            )
        for found, truth in zip(predicted, depths, strict=True):
            known = (truth >= self.span[0]) & (truth <= self.span[1])
            self.sums += _figures(found[known].double(), truth[known].double())
        self.images += len(depths)

    def merge(self, add_up: Callable[[Tensor], Tensor]) -> None:
        """Add the sums of all processes."""
        self.sums = add_up(self.sums)

    def scores(self, *, without: Sequence[int] = ()) -> DepthScores:
        """Return the averages over images; all are 0 where no image has a depth."""
        del without
        *sums, count = self.sums.tolist()
        means = (value / max(count, 1) for value in sums)
        return DepthScores(**dict(zip(NAMES, means, strict=True)), images=self.images)


def _figures(found: Tensor, truth: Tensor) -> Tensor:
    """Return the figures of one image in the order of `NAMES`, and 1; an image without depths gives zeros."""
    if not truth.numel():
        return truth.new_zeros(len(NAMES) + 1)
    error = found - truth
    log = found.clamp(min=SMALLEST).log() - truth.log()
    factor = log.abs()
    rows = [(factor < power * torch.log(truth.new_tensor(STEP))).double().mean() for power in (1, 2, 3)]
    rows += [(error**2).mean().sqrt(), (log**2).mean().sqrt()]
    rows += [(error.abs() / truth).mean(), (error**2 / truth).mean(), truth.new_ones(())]
    return torch.stack(rows)
