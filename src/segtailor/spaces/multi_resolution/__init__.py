"""FasterSeg's family: branches of cells that end at different resolutions (Chen et al. 2020)."""

from segtailor.spaces.multi_resolution.architecture import BranchCell, MultiResolutionArchitecture
from segtailor.spaces.multi_resolution.derive import ArchitectureScores, Derivation, derive
from segtailor.spaces.multi_resolution.space import MultiResolution

__all__ = [
    "ArchitectureScores",
    "BranchCell",
    "Derivation",
    "MultiResolution",
    "MultiResolutionArchitecture",
    "derive",
]
