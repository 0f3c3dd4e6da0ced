"""SqueezeNAS's family: a fixed frame of blocks, each one of 12 inverted residuals or a skip (Shaw et al. 2019)."""

from segtailor.spaces.inverted_residual.architecture import InvertedResidualArchitecture
from segtailor.spaces.inverted_residual.space import InvertedResidual

__all__ = ["InvertedResidual", "InvertedResidualArchitecture"]
