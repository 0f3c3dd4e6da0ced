"""A step as one unit of work: recorded once and replayed where the device can (CUDA graphs), called elsewhere.

Launching thousands of small kernels costs more than they compute; a recorded step launches once. What it reads must
stay in place: tensors are copied into the ones it was recorded with, and everything it remembers is changed in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from segtailor.core.errors import Unsupported
from segtailor.training import device as devices


class CapturedStep:
    """Wraps a function of named tensors that returns nothing and never waits for the device.

    The first `warmup` calls run as they are, which lets kernels be chosen and caches be filled. The next one records
    and replays, so that every call does exactly one step. `record` False always calls. Steps that never run at once and
    leave nothing behind but what they change in place may share the memory of a `pool`.
    """

    def __init__(
        self,
        function: Callable[..., None],
        device: torch.device,
        *,
        warmup: int = 3,
        record: bool = True,
        pool: object = None,
    ) -> None:
        self.function, self.device, self._pool = function, device, pool
        self._left = warmup
        self._records = record and devices.can_record(device)
        self._inputs: dict[str, Tensor] = {}
        self._replay: Callable[[], None] | None = None

    @property
    def recorded(self) -> bool:
        """Whether calls are replays by now."""
        return self._replay is not None

    def __call__(self, **tensors: Tensor) -> None:
        """Do one step with these values."""
        if not self._records:
            self.function(**tensors)
            return
        self._take(tensors)
        if self._left > 0:
            self._left -= 1
            with devices.aside(self.device):
                self.function(**self._inputs)
            return
        if self._replay is None:
            self._replay = devices.record(lambda: self.function(**self._inputs), self.device, pool=self._pool)
        self._replay()

    def _take(self, tensors: Mapping[str, Tensor]) -> None:
        if not self._inputs:
            self._inputs = {name: value.clone() for name, value in tensors.items()}
            return
        for name, value in tensors.items():
            own = self._inputs.get(name)
            if own is None or own.shape != value.shape:
                raise Unsupported(
                    f"a recorded step takes '{name}' in one shape only; {tuple(value.shape)} is another than before. "
                    "Do not record where batches change their size."
                )
            own.copy_(value, non_blocking=True)
