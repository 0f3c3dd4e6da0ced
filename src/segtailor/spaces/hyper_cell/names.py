"""Key names of AutoRTNet checkpoints: none were published, so a checkpoint has our own names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from segtailor.spaces.hyper_cell.architecture import HyperCellArchitecture

if TYPE_CHECKING:
    from segtailor.nets.network import Network
    from segtailor.nets.weights import NameMap


def published_names(network: Network, arch: HyperCellArchitecture) -> NameMap:  # noqa: ARG001 - one signature
    """Return our own names: the authors released neither code nor weights."""
    from segtailor.nets.weights import NameMap

    return NameMap(names={key: (key,) for key in network.state_dict()})
