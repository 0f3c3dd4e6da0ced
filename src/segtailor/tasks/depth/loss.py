"""The inverse Huber loss of depth (berHu, Laina et al. 2016): small errors count as they are, large ones squared.

With the largest error m of the batch and t = knee * m, an error e counts |e| up to t and (e² + t²) / 2t beyond. Gaps
(depth 0) never count. The knee is found for each part of a batch that is divided; the normaliser is shared.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from segtailor.tasks.loss_settings import LossSettings, same_size

TINY = 1e-12  # keeps 0 / 0 at 0


class InverseHuber:
    """The loss of a training batch of depth maps."""

    def __init__(self, settings: LossSettings, *, align_corners: bool = False) -> None:
        settings.only("depth", "knee")
        self.settings = settings
        self.align_corners = align_corners

    @property
    def global_normaliser(self) -> bool:
        """Whether parts of a batch can share the normaliser: while no depth map is shrunk."""
        return self.settings.resize == "logits"

    def normaliser(self, depths: Tensor) -> Tensor:
        """Return the number of pixels with a depth."""
        return (depths > 0).sum(dtype=torch.float32)

    def __call__(self, outputs: Mapping[str, Tensor], depths: Tensor, *, normaliser: Tensor) -> Tensor:
        """Return the weighted sum over outputs of the mean over pixels."""
        terms = []
        for name, logits in outputs.items():
            sized, target = same_size(logits, depths, self.settings.resize, align_corners=self.align_corners)
            own = normaliser if self.global_normaliser else self.normaliser(target)
            total = inverse_huber(sized[:, 0].float(), target, knee=self.settings.knee)
            terms.append(self.settings.coefficient(name) * total / own.clamp(min=TINY))
        return torch.stack(terms).sum()


def inverse_huber(predicted: Tensor, depths: Tensor, *, knee: float) -> Tensor:
    """Return the sum of the loss over all pixels with a depth; nothing known gives 0."""
    error = torch.where(depths > 0, (predicted - depths).abs(), 0.0)
    limit = (knee * error.detach().max()).clamp(min=TINY)
    return torch.where(error <= limit, error, (error**2 + limit**2) / (2 * limit)).sum()
