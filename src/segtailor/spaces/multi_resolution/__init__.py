"""FasterSeg's family: branches of cells that end at different resolutions (Chen et al. 2020)."""

from segtailor.spaces.multi_resolution.architecture import Cell, MultiResolutionArchitecture
from segtailor.spaces.multi_resolution.derive import Derivation, Scores, derive
from segtailor.spaces.multi_resolution.space import MultiResolution

__all__ = ["Cell", "Derivation", "MultiResolution", "MultiResolutionArchitecture", "Scores", "derive"]
