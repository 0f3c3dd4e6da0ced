"""Picks that stand for nothing are refused by every space, by name."""

from __future__ import annotations

from typing import Any

import pytest

import segtailor.spaces  # noqa: F401 - registers the families
from segtailor.core.errors import InvalidArchitecture
from segtailor.core.registry import SPACES
from segtailor.strategies.saved_supernet import RemainingSpace

FAMILIES = (
    "multi_resolution",
    "hyper_cell",
    "decoder_cell",
    "inverted_residual",
    "scalable_path",
    "dilated_residual",
)


@pytest.mark.parametrize("family", FAMILIES)
def test_wrong_picks_name_the_decision(family: str) -> None:
    space = SPACES.get(family)()
    picks: dict[str, Any] = {row.name: 0 for row in space.decisions}
    last = space.decisions[-1]
    for wrong in (len(last.options), -1, "0", True):
        with pytest.raises(InvalidArchitecture, match=rf"{last.name} is .*0 to {len(last.options) - 1}"):
            space.architecture({**picks, last.name: wrong})
    with pytest.raises(InvalidArchitecture, match="no decision is called 'colour'"):
        space.architecture({**picks, "colour": 0})
    del picks[last.name]
    with pytest.raises(InvalidArchitecture, match=f"{last.name} is missing"):
        space.architecture(picks)


def test_a_space_without_lost_options_numbers_what_is_left() -> None:
    whole = SPACES.get("inverted_residual")()
    options = {row.name: (2, 5) if row.name == "block0" else (0, 1, 2) for row in whole.decisions}
    left: Any = RemainingSpace(space=whole, options=options)
    assert left.decisions[0].options == (whole.decisions[0].options[2], whole.decisions[0].options[5])
    picks = dict.fromkeys(options, 1)
    arch = left.architecture(picks)
    assert arch.blocks[0] == whole.decisions[0].options[5]
    assert left.picks(arch) == picks
    with pytest.raises(InvalidArchitecture, match="block0 is 2; allowed: the number of an option, 0 to 1"):
        left.architecture({**picks, "block0": 2})
