"""Installed packages add things by name: found once, when they are needed, and never a reason to crash."""

import json
import os
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path

import pytest

from segtailor.core.errors import UnknownName
from segtailor.core.extensions import Extensions
from segtailor.core.registry import SPACES, Registry

SOURCE = Path(__file__).parents[2] / "src"
GROUP = "segtailor_test.extensions"


def install(root: Path, package: str, code: str, *, point: str | None = None, group: str = GROUP) -> None:
    """Put a module there with the folder that an installer leaves beside it."""
    (root / f"{package}.py").write_text(code)
    facts = root / f"{package}-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[{group}]\n{package} = {point or package}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def registry() -> Registry[object]:
    return Registry("thing", extensions=Extensions(GROUP))


def counting(package: str, into: Path) -> str:
    return f"from pathlib import Path\nPath({str(into)!r}).open('a').write('{package} ')\n"


def test_extensions_are_imported_once_and_only_for_a_name_that_is_not_known(site: Path) -> None:
    log = site / "log"
    install(site, "added_first", counting("first", log))
    things = registry()
    things.add("own", 1)
    assert things.get("own") == 1
    assert "own" in things
    assert not log.exists()
    for _ in range(2):
        with pytest.raises(UnknownName, match="known: own"):
            things.get("xyz")
        assert things.names() == ("own",)
    assert log.read_text() == "first "


def test_an_entry_point_may_name_a_function_that_registers(site: Path) -> None:
    log = site / "log"
    body = counting("called", log).replace("\n", "\n    ")
    install(site, "added_second", f"def register():\n    {body}\n", point="added_second:register")
    registry().names()
    assert log.read_text() == "called "


@pytest.mark.parametrize(
    ("package", "code"),
    [
        ("raising", "raise RuntimeError('torn')"),
        ("leaving", "import sys; sys.exit('torn')"),
        ("lacking", "import torn"),
    ],
)
def test_a_broken_extension_is_a_warning_that_names_it(site: Path, package: str, code: str) -> None:
    install(site, package, code)
    things = registry()
    things.add("own", 1)
    with pytest.warns(RuntimeWarning, match=rf"'{package}'.*torn.*uninstall"):
        assert things.names() == ("own",)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert things.names() == ("own",)


def test_a_name_is_registered_once() -> None:
    things = registry()
    things.add("name", 1)
    with pytest.raises(ValueError, match="thing 'name' is registered twice"):
        things.add("name", 2)
    with pytest.raises(ValueError, match="thing 'name' is registered twice"):
        things.fill({"name": "module:attribute"})
    assert things.get("name") == 1


def test_an_extension_that_takes_a_name_of_ours_is_left_out_with_a_warning(site: Path) -> None:
    code = "from segtailor.core.registry import SPACES\nSPACES.add('scalable_path', object)\n"
    install(site, "replacing", code)
    before = SPACES.get("scalable_path")
    with pytest.warns(RuntimeWarning, match="'replacing'.*space 'scalable_path' is registered twice"):
        registry().names()
    assert SPACES.get("scalable_path") is before


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("segtailor.core.plan", "OPERATORS"),
        ("segtailor.core.space", "SPACES"),
        ("segtailor.core.strategy", "STRATEGIES"),
        ("segtailor.data.dataset", "DATASETS"),
        ("segtailor.targets.runtime", "RUNTIMES"),
        ("segtailor.tasks.kind", "TASK_KINDS"),
    ],
)
def test_packages_find_a_registry_where_it_was_in_earlier_versions(module: str, name: str) -> None:
    assert getattr(import_module(module), name) is getattr(import_module("segtailor.core.registry"), name)


EXTENSION = """
from dataclasses import dataclass
from pathlib import Path
from segtailor.core.plan import OPERATORS
from segtailor.data.dataset import DATASETS

@DATASETS.register("shots")
@dataclass(frozen=True, kw_only=True)
class Shots:
    '''Pictures of a garden.'''
    path: Path

@OPERATORS.register("gated")
class Gated:
    '''Weighs channels.'''
"""


@pytest.mark.slow
def test_the_command_line_knows_what_an_installed_package_adds(tmp_path: Path) -> None:
    install(tmp_path, "garden", EXTENSION, group="segtailor.extensions")
    install(tmp_path, "weeds", "import nothing_of_that_name", group="segtailor.extensions")
    names = {}
    for what in ("datasets", "operators"):
        done = subprocess.run(
            [sys.executable, "-c", "from segtailor.verbs.main import main; main()", "list", what, "--json"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(SOURCE)])},
            capture_output=True,
            text=True,
            check=True,
        )
        names[what] = json.loads(done.stdout)
        assert "extension 'weeds'" in done.stderr
    assert {"shots", "folder", "synthetic"} <= set(names["datasets"])
    assert {"gated", "conv"} <= set(names["operators"])
