"""What every family must do: schemas of its files, picks, published sizes, and documents from outside."""

from __future__ import annotations

import copy
import json
import math
import random
from importlib import resources
from typing import Any

import pytest

import segtailor
from segtailor.core.errors import InvalidArchitecture
from segtailor.core.registry import SPACES
from segtailor.core.space import (
    SearchSpace,
    architecture_document,
    architecture_schema,
    families,
    parse_architecture,
)
from segtailor.spaces import architectures, baselines, published_record
from segtailor.spaces.decoder_cell import DecoderCell
from segtailor.spaces.inverted_residual import InvertedResidual
from segtailor.strategies.saved_supernet import RemainingSpace

SEARCHED = (
    "multi_resolution",
    "hyper_cell",
    "decoder_cell",
    "inverted_residual",
    "scalable_path",
    "dilated_residual",
)
FAMILIES = (*SEARCHED, "handmade")
DECODERS = {"auxcells-arch0": 817_109, "auxcells-arch1": 997_333, "auxcells-arch2": 1_040_341}
DAMAGED = ("auxcells-arch0", "autortnet-a", "squeezenas-mac-small", "fasterseg-student", "lpsnet-m")
VALUES: list[Any] = [
    None, True, 0, -1, 2, 3, 65, 257, 8193, 10**9, 10**30, 1.5, float("nan"), float("inf"), 1e308, "", "skip", "zero",
    "1/0", "1e-999999999999", "9" * 19, "½", "\ud800", "x" * 200_000, [], {}, [[[[]]]], [1] * 1000, {"depth": 1},
]  # fmt: skip


def shipped(family: str) -> dict[str, Any]:
    file = resources.files("segtailor.spaces") / family / "schema.json"
    schema: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return schema


def test_every_family_has_one() -> None:
    assert set(FAMILIES) <= set(families())  # tests may register spaces of their own


@pytest.mark.parametrize("family", FAMILIES)
def test_the_shipped_schema_is_that_of_the_dataclass(family: str) -> None:
    assert shipped(family) == architecture_schema(family), "run `python tools/write_schemas.py`"


@pytest.mark.parametrize("name", architectures() + baselines())
def test_published_files_fit_their_schema(name: str) -> None:
    validator = pytest.importorskip("jsonschema").Draft202012Validator
    record = json.loads(json.dumps(published_record(name)))
    schema = shipped(record["family"])
    validator.check_schema(schema)
    validator(schema).validate(record)
    for wrong in ({**record, "format": 2}, {**record, "surprise": 1}, {**record, "architecture": {}}):
        assert not validator(schema).is_valid(wrong)


@pytest.mark.parametrize("family", SEARCHED)
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


def damage(document: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Replace, drop, double, move or add something somewhere in a copy."""
    document = copy.deepcopy(document)
    holder, key = rng.choice([item for item in _entries(document) if item[1] != "origin"])
    kind = rng.randrange(6)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(key, holder[key])
    elif kind == 2 and isinstance(holder, dict):
        holder[rng.choice(["depth", "blocks", "cell", "surprise"])] = rng.choice(VALUES)
    elif kind == 3 and isinstance(holder[key], int):
        holder[key] += rng.choice([-10, -1, 1, 10])
    elif kind == 4:
        holder[key] = copy.deepcopy(published_record(rng.choice(DAMAGED))["architecture"])
    else:
        holder[key] = copy.deepcopy(rng.choice(VALUES))
    return document


def _entries(value: Any) -> list[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [(value, key) for key in keys] + [item for key in keys for item in _entries(value[key])]


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_explained_or_harmless(name: str) -> None:
    rng = random.Random(name)
    refused = []
    for _ in range(300):
        document = damage(published_record(name), rng)
        try:
            arch = parse_architecture(document)
            segtailor.count(arch, image=(64, 64))
        except InvalidArchitecture as problem:
            refused.append(str(problem))
        else:
            assert parse_architecture(json.loads(json.dumps(architecture_document(arch)))) == arch
    assert 100 < len(refused) < 300
    assert max(map(len, refused)) < 1000
