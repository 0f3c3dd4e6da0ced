"""One definition per operator: shape, multiply-accumulates, parameters and module side by side.

Importing this package registers every operator and does not import torch: modules are built lazily from
`segtailor.ops.modules`.
"""

from segtailor.ops.conv import Activation, Conv
from segtailor.ops.inverted_residual import InvertedResidual
from segtailor.ops.merge import Concat, Identity, Sum, Zero
from segtailor.ops.pooling import MaxPool, PooledConv
from segtailor.ops.reduction import FactorisedReduction
from segtailor.ops.rep_conv import RepConv
from segtailor.ops.resize import Resize, ScaleImage
from segtailor.ops.separable import Separable

__all__ = [
    "Activation",
    "Concat",
    "Conv",
    "FactorisedReduction",
    "Identity",
    "InvertedResidual",
    "MaxPool",
    "PooledConv",
    "RepConv",
    "Resize",
    "ScaleImage",
    "Separable",
    "Sum",
    "Zero",
]
