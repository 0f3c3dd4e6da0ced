"""AutoRTNet's family: hyper-cells of searched depth, then an aggregation cell (Sun et al. 2021)."""

from segtailor.spaces.hyper_cell.architecture import (
    ADJACENT_SCALES,
    OWN_PATHS,
    Aggregation,
    HyperCellArchitecture,
    HyperCellStage,
    Link,
    MultiScale,
    Wiring,
)
from segtailor.spaces.hyper_cell.space import HyperCell

__all__ = [
    "ADJACENT_SCALES",
    "OWN_PATHS",
    "Aggregation",
    "HyperCell",
    "HyperCellArchitecture",
    "HyperCellStage",
    "Link",
    "MultiScale",
    "Wiring",
]
