"""How many architectures each space holds, as published."""

from __future__ import annotations

import math

import pytest

import segtailor
from segtailor.core.space import SearchSpace
from segtailor.spaces.decoder_cell import DecoderCell
from segtailor.spaces.inverted_residual import InvertedResidual

DECODERS = {"auxcells-arch0": 817_109, "auxcells-arch1": 997_333, "auxcells-arch2": 1_040_341}


def size(space: SearchSpace, start: str = "") -> int:
    return math.prod(len(row.options) for row in space.decisions if row.name.startswith(start))


def test_the_controller_chooses_among_as_many_sequences_as_it_should() -> None:
    # Auxiliary cells: 2/5/8 positions in the cell, 4/5/6 maps for the blocks, 11 operations at seven places.
    assert size(DecoderCell(), "block") == 14_400
    assert size(DecoderCell()) == 14_400 * 11**7 * (2 * 5 * 8) ** 2


@pytest.mark.parametrize(("frame", "blocks"), [("small", 20), ("large", 22), ("xlarge", 22)])
def test_every_block_has_thirteen_candidates(frame: str, blocks: int) -> None:
    assert size(InvertedResidual(frame=frame)) == 13**blocks  # type: ignore[arg-type]


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_of_the_published_auxiliary_cells_networks_have_their_size(name: str) -> None:
    network = segtailor.create(name, classes=21)
    encoder = sum(p.numel() for key, p in network.named_parameters() if key.startswith("nodes.encoder"))
    assert encoder == 1_812_800
    assert sum(p.numel() for p in network.parameters()) - encoder == DECODERS[name]
