"""Keeps a run alive through non-finite steps: detects, skips and counts them without waiting for the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

FIRST_SCALE, LONGEST_SCALE_RUN = 2.0**14, 2000  # fp16: start of the loss scale, good steps until it doubles


class Tally(NamedTuple):
    """What the host learns when it asks: skipped steps in all, and the longest row of them since it last asked."""

    skipped: int
    row: int


class Guard:
    """Watches loss and gradients of one network.

    A bad step must leave no trace: the optimiser is told to skip, and statistics of norms, which the forward pass
    has already changed, are put back. With `scaled` (fp16) it also adapts the loss scale.
    """

    def __init__(self, network: nn.Module, device: torch.device, *, scaled: bool) -> None:
        self.scaled = scaled
        self._statistics = [buffer for buffer in network.buffers() if buffer.is_floating_point()]
        self._before = torch.zeros(0, device=device)
        self.scale = torch.full((), FIRST_SCALE if scaled else 1.0, device=device)
        self._good = torch.zeros((), device=device)
        self._skipped = torch.zeros((), device=device)
        self._row = torch.zeros((), device=device)
        self._longest = torch.zeros((), device=device)

    def open(self) -> None:
        """Remember the statistics before the forward pass."""
        if self._statistics:
            self._before = _flat(self._statistics)

    def rewind(self) -> None:
        """Put the statistics back, e.g. after running out of memory half-way."""
        self._write(self._before)

    def unscale(self, gradients: Sequence[Tensor]) -> None:
        """Divide the loss scale out of the gradients."""
        if self.scaled:
            torch._foreach_mul_(list(gradients), self.scale.reciprocal())

    def close(self, bad: Tensor) -> Tensor:
        """Count the step, undo what a bad one did, and return the tensor that makes the optimiser skip it."""
        if self._statistics:
            self._write(torch.where(bad, self._before, _flat(self._statistics)))
        flag = bad.float()
        self._skipped += flag
        self._row.copy_((self._row + 1) * flag)  # in place, as a recorded step must
        self._longest.copy_(torch.maximum(self._longest, self._row))
        if self.scaled:
            self._good.copy_((self._good + 1) * (1 - flag))
            grown = torch.where(self._good >= LONGEST_SCALE_RUN, self.scale * 2, self.scale)
            self.scale.copy_(torch.where(bad, self.scale / 2, grown))
            self._good.copy_(torch.where(self._good >= LONGEST_SCALE_RUN, 0.0, self._good))
        return flag

    def tally(self) -> Tally:
        """Ask the device how many steps were skipped; this waits for it."""
        skipped, row = torch.stack([self._skipped, self._longest]).tolist()
        self._longest.copy_(self._row)
        return Tally(int(skipped), int(row))

    def state(self) -> dict[str, Tensor]:
        """Return the counters as named tensors."""
        return {"scale": self.scale, "good": self._good, "skipped": self._skipped, "row": self._row}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        device = self.scale.device
        self.scale.copy_(state["scale"].to(device))  # in place: a recorded step reads it there
        self._good.copy_(state["good"].to(device))
        self._skipped, self._row = state["skipped"].to(device).clone(), state["row"].to(device).clone()
        self._longest = self._row.clone()

    @torch.no_grad()
    def _write(self, flat: Tensor) -> None:
        if self._statistics:
            pieces = torch.split(flat, [buffer.numel() for buffer in self._statistics])
            views = [piece.view_as(buffer) for piece, buffer in zip(pieces, self._statistics, strict=True)]
            torch._foreach_copy_(self._statistics, views)


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])
