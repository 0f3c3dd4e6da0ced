"""Operators: each has its output shape, multiply-accumulates, parameters and module in one definition.

Importing this package does not import torch. The torch modules are in
`segtailor.ops.modules`, which an operator imports when its module is built.
"""

from segtailor.ops.attention import Blend, Gate, Likeness, SqueezeExcite, UnreadAttention
from segtailor.ops.blocks import Bottleneck, Ghost, InvertedBottleneck, RepConv, Residual, Shuffle
from segtailor.ops.combining import Concat, Identity, Resize, ScaleImage, Sum, Zero
from segtailor.ops.convolutions import (
    Activate,
    Activation,
    Conv,
    FactorisedReduction,
    HiddenClassifier,
    Norm,
    Separable,
    ZoomedConv,
)
from segtailor.ops.pooling import AveragePool, BinPool, GlobalMean, MaxPool, PooledConv, WindowPool
from segtailor.ops.timm_encoder import TimmFeatures, TimmTap

__all__ = [
    "Activate",
    "Activation",
    "AveragePool",
    "BinPool",
    "Blend",
    "Bottleneck",
    "Concat",
    "Conv",
    "FactorisedReduction",
    "Gate",
    "Ghost",
    "GlobalMean",
    "HiddenClassifier",
    "Identity",
    "InvertedBottleneck",
    "Likeness",
    "MaxPool",
    "Norm",
    "PooledConv",
    "RepConv",
    "Residual",
    "Resize",
    "ScaleImage",
    "Separable",
    "Shuffle",
    "SqueezeExcite",
    "Sum",
    "TimmFeatures",
    "TimmTap",
    "UnreadAttention",
    "WindowPool",
    "Zero",
    "ZoomedConv",
]
