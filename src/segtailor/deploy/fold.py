"""Fold training forms into inference forms, exactly."""

from __future__ import annotations

import copy

from segtailor.nets.network import Network


def fold_branches(network: Network) -> Network:
    """Return a copy in which every re-parameterised block is one convolution with bias; the function is the same."""
    folded = copy.deepcopy(network).eval()
    for name, module in list(folded.nodes.items()):
        fold = getattr(module, "fold", None)
        if callable(fold):
            folded.replace(name, fold())
    return folded
