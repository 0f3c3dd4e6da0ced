"""LPS-Net's family: parallel paths of plain blocks at different resolutions (Zhang et al. 2022)."""

from segtailor.spaces.scalable_path.architecture import ScalablePathArchitecture
from segtailor.spaces.scalable_path.space import ScalablePath

__all__ = ["ScalablePath", "ScalablePathArchitecture"]
