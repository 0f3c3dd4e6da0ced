"""Calibrating a board: the zip, its runner in a bare environment, the results brought back."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

import segtailor.spaces  # noqa: F401 - registers the families
from segtailor.core.errors import Unsupported, UserError
from segtailor.core.registry import SPACES
from segtailor.costs.assembly import CalibrationSubject
from segtailor.costs.bundle import Selection, import_results, write_bundle
from segtailor.costs.pack import LatencyTable

torch.set_num_threads(1)
FEW = Selection(operators=6, fit_networks=2, trust_networks=2)


def subject(target: str = "cpu/onnxruntime/fp32?threads=1") -> CalibrationSubject:
    space = SPACES.get("scalable_path")(depths=(1,), width_steps=(1, 2), ratios=("0", "1"), paths=1)
    return CalibrationSubject(space=space, image=(32, 64), classes=4, target=target)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of all operators of a tiny space, unpacked."""
    folder = tmp_path_factory.mktemp("board")
    file = folder / "out.zip"
    list(write_bundle(file, subject(), Selection(fit_networks=2, trust_networks=2)))
    with zipfile.ZipFile(file) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


def run_in(python: str, folder: Path) -> Path:
    command = [python, "-I", str(folder / "board_runner.py"), "--seconds", "0.01"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return folder / "results.json"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_bundle_holds_runner_manifest_and_every_file_once(bundle: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    files = {str(path.relative_to(bundle)) for path in bundle.rglob("*.onnx")}
    assert files == {*manifest["calls"].values(), *manifest["networks"]}
    assert len(manifest["networks"]) == 4
    assert (bundle / "README.txt").exists()


@pytest.mark.slow
def test_results_become_a_pack_that_prices_the_space(bundle: Path) -> None:
    pack = import_results(run_in(sys.executable, bundle))
    assert pack.target == "cpu/onnxruntime/fp32?threads=1"
    assert pack.trust is not None
    assert len(pack.trust.networks) == 2
    table = LatencyTable(pack=pack)
    for call in subject().space.calls(subject().shape, 4):
        assert table.price(call) >= 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_runner_needs_only_numpy_and_onnxruntime(bundle: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", str(bare)], check=True, timeout=120)
    python = str(bare / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "numpy", "onnxruntime"]
    if subprocess.run(install, check=False, capture_output=True, timeout=300).returncode != 0:
        pytest.skip("no package index to install numpy and onnxruntime from")
    probe = [python, "-I", "-c", "import torch"]
    assert subprocess.run(probe, check=False, capture_output=True).returncode != 0
    results = json.loads(run_in(python, bundle).read_text())
    assert len(results["operators"]) == len(set(results["manifest"]["calls"].values()))
    assert results["machine"]["versions"]["onnxruntime"]


@pytest.mark.slow
def test_results_of_a_runner_that_was_stopped_are_worth_something(bundle: Path, tmp_path: Path) -> None:
    document = json.loads(run_in(sys.executable, bundle).read_text())
    document["networks"] = {}
    document["operators"] = dict(list(document["operators"].items())[:4])
    file = tmp_path / "results.json"
    file.write_text(json.dumps(document))
    pack = import_results(file)
    assert pack.trust is None
    assert sum(entry.runs > 0 for entry in pack.entries.values()) >= 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "truncated"),
        ("[]", "not a results file"),
        ('{"format": 7}', "not a results file"),
        ('{"format": 1}', "manifest"),
    ],
)
def test_damaged_results_are_refused(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_text(content)
    with pytest.raises(UserError, match=message):
        import_results(file)


def test_results_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        import_results(tmp_path / "none.json")


@pytest.mark.parametrize("target", ["cuda/graph/fp16", "cpu/eager/fp32", "cuda/onnxruntime/fp32"])
def test_only_cpu_onnxruntime_can_be_bundled(target: str, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="cpu/onnxruntime/fp32"):
        list(write_bundle(tmp_path / "out.zip", subject(target), FEW))
    assert not list(tmp_path.iterdir())


def _results(**changes: Any) -> dict[str, Any]:
    manifest = {
        "format": 1,
        "space": "scalable_path",
        "settings": {},
        "image": [32, 64],
        "classes": 4,
        "target": "cpu/onnxruntime/fp32",
        "threads": None,
        "spin": True,
        "calls": {},
        "networks": {},
        "fit_networks": 2,
    }
    return {
        "format": 1,
        "manifest": {**manifest, **changes},
        "threads": 2,
        "machine": {},
        "conditions": {},
        "operators": {},
        "networks": {},
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"space": "nonsense"}, "no space"),
        ({"settings": {"colour": 1}}, "colour"),
        ({"calls": {"rubbish": "a.onnx"}}, "not an operator call"),
    ],
)
def test_results_about_nothing_we_know_are_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "results.json"
    document = _results(**change)
    document["operators"] = {"a.onnx": {"us": 1.0, "spread": 0.0, "runs": 3, "kernels": 1}}
    file.write_text(json.dumps(document))
    with pytest.raises(UserError, match=message):
        import_results(file)
