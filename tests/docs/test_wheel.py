"""The wheel is complete: installed without the repository, the program works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from tests.docs.markdown import ROOT
from tests.predicting.models import save_small_bundle

PACKAGE = ROOT / "src" / "segtailor"
CODE = {".py", ".pyc"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the tracked files, so that no earlier build is used."""
    folder = tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "src", "pyproject.toml", "README.md", "LICENSE"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        copy = folder / "clone" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((ROOT / name).read_bytes())
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder / "dist", folder / "clone")
    (built,) = (folder / "dist").glob("segtailor-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("installed")
    pip("install", "--no-deps", "--no-index", "--target", target, wheel)
    return target


def pip(*words: object) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *map(str, words)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def program(installed: Path, folder: Path, *words: object) -> str:
    """Run the installed command in another folder; only the installed copy can be found."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, installed / "bin" / "segtailor", *map(str, words)],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(installed)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_file_of_the_package_is_inside(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "."], cwd=PACKAGE, capture_output=True, text=True, check=True
    )
    missing = {f"segtailor/{name}" for name in filter(None, tracked.stdout.split("\0"))} - inside
    assert missing == set()
    kinds = {Path(name).suffix for name in inside if name.startswith("segtailor/")} - CODE
    assert {".json", ".html", ".css", ".js", ".typed"} <= kinds


def test_nothing_else_is_inside(wheel: Path) -> None:
    folders = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert folders == {"segtailor", f"{wheel.name.split('-py3')[0]}.dist-info"}


def test_the_installed_copy_is_the_one_that_runs(installed: Path, tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", "import segtailor; print(segtailor.__file__)"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(installed)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Path(found.stdout.strip()).is_relative_to(installed)


def test_help_list_and_show_work_without_the_repository(installed: Path, tmp_path: Path) -> None:
    assert "tailor" in program(installed, tmp_path, "--help")
    assert len(json.loads(program(installed, tmp_path, "list", "architectures", "--json"))) == 30
    assert json.loads(program(installed, tmp_path, "show", "lpsnet-s", "--json"))["params"] == 3_371_075


def test_predict_works_without_the_repository(installed: Path, tmp_path: Path) -> None:
    bundle = save_small_bundle(tmp_path / "bundle")
    Image.new("RGB", (48, 40)).save(tmp_path / "a.png")
    program(
        installed, tmp_path / "elsewhere", "predict", bundle, tmp_path / "a.png", "--out", tmp_path / "masks"
    )
    assert Image.open(tmp_path / "masks" / "a.png").size == (48, 40)


def test_device_packs_and_the_report_page_are_found(installed: Path, tmp_path: Path) -> None:
    program_text = (
        "from segtailor.costs.pack import shipped_pack; from segtailor.report.html import render; "
        "from segtailor.report.document import Report; import segtailor.serving; from importlib import resources; "
        "shipped_pack('fasterseg-1080ti'); "
        "assert any((resources.files('segtailor') / 'serving' / 'page').iterdir()); "
        "assert any((resources.files('segtailor') / 'report' / 'templates').iterdir())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program_text],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(installed)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0
