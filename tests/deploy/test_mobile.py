"""Files for phones and boards compute what their network computes; what cannot be run here says so."""

import json
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import segtailor
from segtailor.core.errors import Unsupported, UserError
from segtailor.core.plan import Shape
from segtailor.core.target import parse_target
from segtailor.core.task import Preprocessing, Task
from segtailor.deploy.export import Precision
from segtailor.deploy.fold import inference_form
from segtailor.deploy.formats import FORMATS
from segtailor.deploy.mobile import MobileFormat
from segtailor.deploy.stages import staged
from segtailor.nets.bundle import Model, save_bundle
from segtailor.nets.mobile import converter, mil, ncnn
from segtailor.recipes.export import export, plan_export
from segtailor.targets import compile_network
from segtailor.targets.runtime import example_inputs
from segtailor.testing import check_runtime
from segtailor.verbs.main import run

MOBILE = {name: kind for name, kind in FORMATS.items() if issubclass(kind, MobileFormat)}
RUNNING = [name for name, kind in MOBILE.items() if kind.stand_in is None]
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in RUNNING if name != "ncnn"]
SIZE = (48, 64)


def usable(name: str) -> str:
    """Skip, with the reason, where a package is missing."""
    reason = converter.missing(MOBILE[name].converter)
    if reason is not None:
        pytest.skip(reason)
    return name


def bundle_of(name: str, folder: Path) -> Path:
    network = segtailor.create(name, classes=4, seed=3)
    task = Task(classes=("road", "car", "sky", "tree"))
    chosen = Preprocessing(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
    save_bundle(folder, Model(network=network, task=task, preprocessing=chosen))
    return folder


@pytest.mark.parametrize("to", ["ncnn", *SLOW])
def test_a_file_is_proved_equal_and_told(to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = bundle_of("lpsnet-step0", tmp_path / "bundle")
    assert run(["export", str(bundle), "--to", usable(to), "--image", "48x64", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)  # one document: converters print nothing there
    assert document["files"] == [str(bundle / name) for name in MOBILE[to].files]
    assert all(Path(file).stat().st_size > 0 for file in document["files"])
    assert document["file"] == MOBILE[to].files[0]
    assert (document["ran"], document["equal"]) == (True, True)
    assert document["label_agreement"] >= 0.999
    assert document["max_relative_logit_difference"] < 1e-4
    assert document["conditions"]["versions"][{"litert": "ai-edge-litert"}.get(to, to)] is not None
    plan_export(bundle, to=to, image=SIZE)  # our own file may be replaced


@pytest.mark.slow
@pytest.mark.parametrize("to", RUNNING)
@pytest.mark.parametrize(
    "name",
    [
        "camvid-fast",
        "squeezenas-mac-small",
        "lr-aspp-mobilenetv3-large",
        "fasterseg-student",
        "auxcells-arch0",
    ],
)
def test_files_of_different_families_are_equal(to: str, name: str, tmp_path: Path) -> None:
    usable(to)
    model = name if name == "camvid-fast" else str(bundle_of(name, tmp_path / "bundle"))
    figures = export(model, to=to, image=(96, 128), out=tmp_path / "out").figures
    assert figures["equal"]


@pytest.mark.slow
@pytest.mark.parametrize("to", [name for name in RUNNING if name != "ncnn"])
def test_labels_and_pixels_can_be_inside(to: str, tmp_path: Path) -> None:
    bundle = bundle_of("lpsnet-step0", tmp_path / "bundle")
    figures = export(bundle, to=usable(to), image=SIZE, output="labels", preprocess=True).figures
    assert figures["label_agreement"] == pytest.approx(1, abs=1e-3)


@pytest.mark.slow
def test_ncnn_stores_half_precision(tmp_path: Path) -> None:
    usable("ncnn")
    bundle = bundle_of("lpsnet-step0", tmp_path / "bundle")
    sizes = []
    for precision in ("fp32", "fp16"):
        export(bundle, to="ncnn", image=SIZE, precision=precision)
        sizes.append((bundle / "model.ncnn.bin").stat().st_size)
    assert sizes[1] < 0.6 * sizes[0]


def test_a_core_ml_file_is_interpreted_and_says_that_it_was_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = bundle_of("lpsnet-step0", tmp_path / "bundle")
    words = ["export", str(bundle), "--to", usable("coreml"), "--image", "48x64"]
    assert run([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["ran"], document["equal"]) == (False, True)
    assert document["label_agreement"] >= 0.999
    assert document["max_relative_logit_difference"] < 1e-4
    assert "Apple" in document["reason"]
    with zipfile.ZipFile(bundle / "model.mlpackage.zip") as archive:
        assert "model.mlpackage/Manifest.json" in archive.namelist()
    assert run(words) == 0
    told = capsys.readouterr().out
    assert "100.000% of predictions agree" in told
    assert "not run by its runtime" in told


def test_a_core_ml_file_holds_labels_confidence_and_what_is_unsure(tmp_path: Path) -> None:
    bundle = bundle_of("lpsnet-step0", tmp_path / "bundle")
    figures = export(bundle, to=usable("coreml"), image=SIZE, output="labels", unsure=0.3).figures
    assert figures["label_agreement"] == pytest.approx(1, abs=1e-3)
    assert 0 <= figures["max_confidence_difference"] < 1e-4  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *(
            (name, "fp32")
            for name in (
                "camvid-fast",
                "squeezenas-mac-small",
                "fasterseg-student",
                "auxcells-arch0",
                "pidnet-s",
                "autortnet-a",
            )
        ),
        ("camvid-fast", "fp16"),
        ("fasterseg-student", "fp16"),
    ],
)
def test_core_ml_programs_of_different_families_compute_the_network(
    name: str, precision: Precision, tmp_path: Path
) -> None:
    usable("coreml")
    model = name if name == "camvid-fast" else str(bundle_of(name, tmp_path / "bundle"))
    figures = export(model, to="coreml", image=(96, 128), precision=precision, out=tmp_path / "out").figures
    assert figures["equal"]


def test_a_core_ml_program_with_an_operator_that_cannot_be_interpreted_is_kept_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = bundle_of("lpsnet-step0", tmp_path / "bundle")
    usable("coreml")
    known = {name: compute for name, compute in mil.OPERATORS.items() if name != "upsample_bilinear"}
    monkeypatch.setattr(mil, "OPERATORS", known)
    figures = export(bundle, to="coreml", image=SIZE).figures
    assert (figures["ran"], figures["equal"], figures["label_agreement"]) == (False, None, None)
    assert "upsample_bilinear" in str(figures["reason"])
    assert (bundle / "model.mlpackage.zip").is_file()


def test_a_core_ml_program_that_computes_something_else_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = bundle_of("lpsnet-step0", tmp_path / "bundle")
    usable("coreml")
    monkeypatch.setattr(
        mil, "OPERATORS", {**mil.OPERATORS, "relu": lambda inputs: inputs["x"].relu().clamp(max=0.1)}
    )
    with pytest.raises(UserError, match="Nothing was kept"):
        export(bundle, to="coreml", image=SIZE)
    assert not (bundle / "model.mlpackage.zip").exists()


@pytest.mark.parametrize("to", ["ncnn", *SLOW])
def test_a_runtime_gives_the_outputs_of_torch(to: str) -> None:
    network = inference_form(segtailor.create("lpsnet-step0", classes=4))
    target = parse_target(f"cpu/{usable(to)}/fp32?threads=1")
    check_runtime(network, target, (Shape(3, 32, 64),))
    compiled = compile_network(network, target, (Shape(3, 32, 64),))
    assert compiled.threads == 1
    compiled.close()


@pytest.mark.parametrize("to", ["ncnn", pytest.param("litert", marks=pytest.mark.slow)])
def test_a_runtime_computes_in_eight_bits_and_says_where_its_ranges_come_from(to: str) -> None:
    network = inference_form(segtailor.create("lpsnet-step0", classes=4))
    target = parse_target(f"cpu/{usable(to)}/int8?threads=1")
    check_runtime(network, target, (Shape(3, 64, 96),))
    compiled = compile_network(network, target, (Shape(3, 64, 96),))
    assert "ranges from noise" in compiled.notes[0]
    compiled.close()


class Weighted(nn.Module):
    """A stand-in for an operator of two inputs that are not alike."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 3, padding=1)

    def forward(self, image: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self.conv(image) * other


@pytest.mark.parametrize("to", ["ncnn", *SLOW])
def test_a_runtime_takes_operators_with_several_inputs(to: str) -> None:
    check_runtime(Weighted(), parse_target(f"cpu/{usable(to)}/fp32"), (Shape(4, 8, 12), Shape(6, 8, 12)))


@pytest.mark.slow
@pytest.mark.parametrize("to", [name for name in RUNNING if name != "ncnn"])
def test_pixels_become_labels(to: str) -> None:
    module = staged(inference_form(segtailor.create("lpsnet-step0", classes=4)), "end-to-end")
    image = (Shape(3, 32, 64),)
    (pixels,) = example_inputs(image, pixels=True)
    compiled = compile_network(module, parse_target(f"cpu/{usable(to)}/fp32"), image, pixels=True)
    with torch.no_grad():
        wanted = module(torch.from_numpy(pixels)).numpy()
    found = compiled.outputs(pixels)
    assert found.dtype == np.uint8
    assert (found == wanted).mean() > 0.999
    compiled.close()


def test_ncnn_refuses_layers_that_it_does_not_have() -> None:
    usable("ncnn")
    module = staged(inference_form(segtailor.create("lpsnet-step0", classes=4)), "network+argmax")
    with pytest.raises(Unsupported, match=r"torch\.argmax.*--includes network"):
        compile_network(module, parse_target("cpu/ncnn/fp32"), (Shape(3, 32, 64),))


def test_layers_of_torch_are_found_in_a_converted_file() -> None:
    text = "7767517\n3 3\nInput in0 0 1 in0\nConvolution conv_0 1 1 in0 1\ntorch.argmax x 1 1 1 out0\n"
    assert ncnn.unknown_layers(text) == ["torch.argmax"]


@pytest.mark.parametrize(
    ("to", "options", "says"),
    [
        ("ncnn", {"output": "labels"}, "no arg max"),
        ("ncnn", {"preprocess": True}, "reads floats"),
        ("ncnn", {"dynamic": True}, "one size"),
        ("litert", {"dynamic": True}, "one size"),
        ("litert", {"precision": "fp16"}, "writes fp32"),
        ("executorch", {"precision": "fp16"}, "writes fp32"),
        ("coreml", {"dynamic": True}, "one size"),
    ],
)
def test_what_a_format_lacks_is_refused_before_any_work(
    to: str, options: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(Unsupported, match=says):
        plan_export("camvid-fast", to=to, image=SIZE, out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", list(MOBILE))
def test_a_missing_package_is_told_with_the_command_that_installs_it(
    to: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    absent = MOBILE[to].converter.imports
    monkeypatch.setattr(converter, "find_spec", lambda name: None if name in absent else find_spec(name))
    with pytest.raises(Unsupported, match=f"{absent[0]}.*`pip install"):
        plan_export("camvid-fast", to=to, image=SIZE, out=tmp_path)
