"""Drop what inference does not run."""

from __future__ import annotations

import copy

import torch

from segtailor.nets.network import Network


def deployed(network: Network) -> Network:
    """Return a copy that computes `main` alone: no train-only outputs, no dormant nodes; weights are kept."""
    with torch.device("meta"):  # the modules built here are only places for those of the given network
        pruned = Network(network.plan.deployed(), architecture=network.architecture)
    pruned.replace_all({name: copy.deepcopy(network.nodes[name]) for name in pruned.nodes})
    return pruned.eval()
