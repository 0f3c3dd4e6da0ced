"""The eleven operations of the cell (paper, section 3.2). Channels and size stay; norm and ReLU follow every kernel."""

from __future__ import annotations

from segtailor.core.plan import Operator
from segtailor.ops import Conv, Identity, PooledConv, Separable, Zero
from segtailor.spaces.decoder_cell.architecture import Operation

_PLAIN: dict[Operation, Operator] = {
    "conv1x1": Conv(kernel=1),
    "conv3x3": Conv(),
    "conv3x3_rate3": Conv(dilation=3),
    "conv3x3_rate12": Conv(dilation=12),
    # In training its norm sees one pixel per image, so PyTorch refuses a batch of one per device: as published.
    "gap": PooledConv(),
    "skip": Identity(),
    "zero": Zero(),
}
_SEPARABLE: dict[Operation, tuple[int, int]] = {  # kernel and dilation
    "sep3x3": (3, 1),
    "sep5x5": (5, 1),
    "sep3x3_rate3": (3, 3),
    "sep5x5_rate6": (5, 6),
}


def operator(operation: Operation, repeats: int) -> Operator:
    """Return the operator; `repeats` applies to separable convolutions alone."""
    if operation in _SEPARABLE:
        kernel, dilation = _SEPARABLE[operation]
        return Separable(kernel=kernel, dilation=dilation, repeats=repeats)
    return _PLAIN[operation]
