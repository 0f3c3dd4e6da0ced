"""The tables of names: every entry can be imported, names are unique, and importing a module registers nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from segtailor import tables
from segtailor.core import registry
from segtailor.core.registry import Registry

TABLES = {name: value for name, value in vars(tables).items() if name.isupper()}

IMPORT_EVERYTHING = """
import importlib, pkgutil, sys
import segtailor
from segtailor.core import registry

registries = {name: value for name, value in vars(registry).items() if isinstance(value, registry.Registry)}
before = {name: dict(value._places) for name, value in registries.items()}
for module in pkgutil.walk_packages(segtailor.__path__, "segtailor."):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except ImportError as problem:
        if (problem.name or "").startswith("segtailor"):
            raise
    after = {name: dict(value._places) for name, value in registries.items()}
    assert after == before, f"importing {module.name} registers something"
"""


@pytest.mark.parametrize("name", TABLES)
def test_every_table_fills_the_registry_of_its_name(name: str) -> None:
    known: Registry[object] = getattr(registry, name)
    assert isinstance(known, Registry)
    assert set(TABLES[name]) <= set(known.names())


@pytest.mark.parametrize("name", TABLES)
def test_every_entry_is_there_under_one_name(name: str) -> None:
    known: Registry[object] = getattr(registry, name)
    things = {key: known.get(key) for key in TABLES[name]}
    assert len({id(thing) for thing in things.values()}) == len(things)
    for key, thing in things.items():
        assert known.name_of(thing) == key


def test_every_registry_has_a_table() -> None:
    names = {name for name, value in vars(registry).items() if isinstance(value, Registry)}
    assert names == set(TABLES)


@pytest.mark.slow  # that the source registers nothing is a rule of test_source_rules.py
def test_importing_any_module_registers_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_EVERYTHING], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
