"""Residual networks that stay at 1/8 and see far by dilated convolutions, with a short decoder at 1/4."""

from segtailor.spaces.dilated_residual.architecture import DilatedResidualArchitecture
from segtailor.spaces.dilated_residual.space import DilatedResidual

__all__ = ["DilatedResidual", "DilatedResidualArchitecture"]
