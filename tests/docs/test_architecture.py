"""The architecture page is true: its paths exist, its layers are those that are checked, its snippet runs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "segtailor"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
LAYOUT = re.search(r"```\nsrc/segtailor/\n(.*?)```", PAGE, re.DOTALL)
MENTIONED = sorted(set(re.findall(r"`((?:[a-z_0-9]+/)+(?:[a-z_0-9]+\.(?:py|json|md))?)`", PAGE)))


@pytest.mark.parametrize("path", MENTIONED)
def test_every_path_that_the_page_names_exists(path: str) -> None:
    assert (PACKAGE / path).exists() or (ROOT / path).exists()


def test_the_layout_names_every_folder_of_the_package_and_no_other() -> None:
    assert LAYOUT is not None
    named = set(re.findall(r"^  ([a-z]+)/ ", LAYOUT[1], re.MULTILINE)) | set(
        re.findall(r"  ([a-z]+)/: ", LAYOUT[1])
    )
    there = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert named == there


def test_files_in_the_layout_exist() -> None:
    assert LAYOUT is not None
    folder, missing = "", []
    for line in LAYOUT[1].splitlines():
        begun = re.match(r"  ([a-z]+)/ ", line)
        folder = begun[1] if begun else folder
        for name in re.findall(r"\b([a-z_0-9]+\.py)\b", line):
            places = (PACKAGE / name, PACKAGE / folder / name, ROOT / "tools" / name)
            families = [family / name for family in (PACKAGE / "spaces").iterdir()]
            if not any(path.exists() for path in (*places, *families)):
                missing.append(f"{folder}/{name}")
    assert not missing


def test_layers_are_those_of_the_import_linter() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (
        one for one in settings["tool"]["importlinter"]["contracts"] if one["name"] == "one direction"
    )
    sentence = re.search(r"checked by `make check`\):\n\n(.*?)\n\n", PAGE, re.DOTALL)
    assert sentence is not None
    assert re.findall(r"`([^`]+)`", sentence[1]) == contract["layers"]


def test_the_mixtures_of_papers_are_recipes() -> None:
    snippet = re.search(r"```python\n(from dataclasses import replace\n.*?)```", PAGE, re.DOTALL)
    assert snippet is not None
    names: dict[str, object] = {}
    exec(snippet[1], names)
    from segtailor.recipes.recipe import parse_recipe, recipe_document

    for name in ("evolved", "decoders", "counted", "grown"):
        recipe = names[name]
        assert parse_recipe(recipe_document(recipe), what=name) == recipe  # type: ignore[arg-type]
