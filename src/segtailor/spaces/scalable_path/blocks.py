"""The seven block types of LPS-Net's Table 2."""

from __future__ import annotations

from segtailor.core.plan import Operator
from segtailor.ops import InvertedBottleneck, RepConv, Separable
from segtailor.ops.blocks import Bottleneck, Ghost, Residual, Shuffle
from segtailor.spaces.scalable_path.architecture import Block

BLOCK_OPERATORS: dict[Block, Operator] = {
    "conv": RepConv(),
    "residual": Residual(),
    "bottleneck": Bottleneck(),
    "separable": Separable(),
    "inverted_residual": InvertedBottleneck(activation="relu6"),
    "ghost": Ghost(),
    "shuffle": Shuffle(),
}
