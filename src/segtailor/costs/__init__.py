"""Costs of networks: counted, looked up in a device pack, or measured."""

from segtailor.costs.analytic import ActivationMemory, Macs, Params
from segtailor.costs.pack import LatencyTable, Pack, Use, read_pack, shipped_pack, shipped_packs

__all__ = [
    "ActivationMemory",
    "LatencyTable",
    "Macs",
    "Pack",
    "Params",
    "Use",
    "read_pack",
    "shipped_pack",
    "shipped_packs",
]
