"""Each family ships the JSON schema of its architecture files."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pytest

from segtailor.core.space import architecture_schema, families
from segtailor.spaces import architectures, baselines, published_record

FAMILIES = (
    "decoder_cell",
    "dilated_residual",
    "handmade",
    "hyper_cell",
    "inverted_residual",
    "multi_resolution",
    "scalable_path",
)


def shipped(family: str) -> dict[str, Any]:
    file = resources.files("segtailor.spaces") / family / "schema.json"
    schema: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return schema


def test_every_family_has_one() -> None:
    assert set(FAMILIES) <= set(families())  # tests may register spaces of their own


@pytest.mark.parametrize("family", FAMILIES)
def test_the_shipped_schema_is_that_of_the_dataclass(family: str) -> None:
    assert shipped(family) == architecture_schema(family), "run `make reference`"


@pytest.mark.parametrize("name", architectures() + baselines())
def test_published_files_fit_their_schema(name: str) -> None:
    validator = pytest.importorskip("jsonschema").Draft202012Validator
    record = json.loads(json.dumps(published_record(name)))
    schema = shipped(record["family"])
    validator.check_schema(schema)
    validator(schema).validate(record)
    for wrong in ({**record, "format": 2}, {**record, "surprise": 1}, {**record, "architecture": {}}):
        assert not validator(schema).is_valid(wrong)
