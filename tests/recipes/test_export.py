"""An export is proved equal before it gets its name."""

import json
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import segtailor
from segtailor.core.errors import RunProblem, UserError
from segtailor.core.task import Preprocessing, Task
from segtailor.deploy.formats import FORMATS, OnnxFormat, Runner
from segtailor.nets.bundle import Model, save_bundle
from segtailor.nets.inference import normalise
from segtailor.nets.onnx.graph import onnx_session
from segtailor.nets.onnx.model import open_onnx_model
from segtailor.recipes.export import export, plan_export
from segtailor.verbs.main import run

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

SIZE = (48, 64)
TASK = Task(classes=("road", "car", "sky", "tree"))
CHOSEN = Preprocessing(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
SLOW = pytest.mark.slow


def bundle_of(name: str, folder: Path, **facts: Any) -> Path:
    network = segtailor.create(name, classes=4, seed=3)
    save_bundle(folder, Model(network=network, task=TASK, preprocessing=CHOSEN, provenance=facts))
    return folder


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return bundle_of("lpsnet-step0", tmp_path / "bundle", data="synthetic:size=48x64")


def picture(size: tuple[int, int] = SIZE) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, (*size, 3), dtype=np.uint8)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_onnx_file_and_its_proof_join_the_bundle(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", str(bundle), "--to", "onnx", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert names(bundle) == ["model.json", "model.onnx", "model.safetensors", "verify.json"]
    proof = json.loads((bundle / "verify.json").read_text())
    assert proof["label_agreement"] >= 0.999
    assert proof["max_logit_difference"] < 1e-3
    assert proof["miou_drift"] is None  # no labels were given
    assert proof["conditions"]["image"] == [48, 64]  # the size of the data that it was trained on
    assert document["files"] == [str(bundle / "model.onnx")]
    image = normalise(picture()[None], CHOSEN, torch.device("cpu"))
    logits = onnx_session(bundle / "model.onnx").run(["logits"], {"image": image.numpy()})[0]
    model = segtailor.load(bundle)
    with torch.no_grad():
        np.testing.assert_allclose(logits, model.network(image).numpy(), rtol=1e-3, atol=1e-4)
    opened = open_onnx_model(bundle / "model.onnx")
    assert (opened.task, opened.preprocessing, opened.note) == (TASK, CHOSEN, None)
    assert opened.metadata.provenance == {"data": "synthetic:size=48x64"}
    assert (opened.predict(picture((50, 70))).shape, opened.size) == ((50, 70), SIZE)


@SLOW
@pytest.mark.parametrize("to", ["onnx", "openvino", "torchscript", "exported-program"])
@pytest.mark.parametrize(
    "options",
    [
        {"image": (75, 101)},
        {"image": SIZE, "output": "labels", "preprocess": True},
        {"image": SIZE, "precision": "fp16"},
        {"image": SIZE, "data": "synthetic:size=48x64"},
    ],
    ids=["odd", "pixels-to-labels", "half", "data"],
)
def test_every_kind_of_file_is_proved_equal(to: str, options: dict[str, Any], tmp_path: Path) -> None:
    if to == "openvino":
        pytest.importorskip("openvino")
    network = segtailor.create("lpsnet-step2", classes=10, seed=3)
    classes = tuple(f"class{index}" for index in range(10))
    done = export(Model(network=network, task=Task(classes=classes)), to=to, out=tmp_path, **options)
    assert all(file.is_file() for file in done.files)
    assert (done.figures["miou_drift"] is not None) == ("data" in options)
    assert names(tmp_path) == sorted([*(file.name for file in done.files), "verify.json"])


@SLOW
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", segtailor.architectures())
def test_onnx_and_openvino_files_of_published_networks_are_equal(name: str, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    folder = bundle_of(name, tmp_path)
    for to, output in (("onnx", "logits"), ("openvino", "logits"), ("openvino", "labels")):
        done = export(folder, to=to, image=(64, 128), output=output)
        assert done.figures["label_agreement"] >= 0.999


@SLOW
@pytest.mark.timeout(600)  # solving for open sizes takes its time
@pytest.mark.parametrize(
    ("name", "to"),
    [
        ("lpsnet-s", "onnx"),
        ("lpsnet-step2", "openvino"),
        ("squeezenas-mac-xlarge", "openvino"),
        ("fasterseg-student", "onnx"),
    ],
)
def test_a_dynamic_file_takes_pictures_of_any_size(name: str, to: str, tmp_path: Path) -> None:
    if to == "openvino":
        pytest.importorskip("openvino")
    done = export(bundle_of(name, tmp_path), to=to, image=(96, 160), dynamic=True, output="labels")
    if to == "onnx":
        model = open_onnx_model(done.files[0])
        assert model.size is None
        own = segtailor.load(tmp_path).predict(picture((131, 203)))
        assert (model.predict(picture((131, 203))) == own).mean() > 0.999


@SLOW
def test_a_family_that_needs_one_size_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Leave out --dynamic"):
        export(bundle_of("squeezenas-lat-small", tmp_path), image=(96, 160), dynamic=True)


class Tampered(OnnxFormat):
    """A file whose last layer was changed after it was written."""

    def open(self, folder: Path) -> Runner:
        true = super().open(folder)
        return lambda array: [np.roll(output, 1, axis=1) for output in true(array)]


def test_a_file_that_drifts_is_not_kept(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (bundle / "model.onnx").write_bytes(b"the good one of yesterday")
    monkeypatch.setitem(FORMATS, "onnx", Tampered)
    assert run(["export", str(bundle), "--force"]) == 1
    told = capsys.readouterr().err
    assert "labels agree" in told
    assert "Nothing was kept" in told
    assert names(bundle) == ["model.json", "model.onnx", "model.safetensors"]
    assert (bundle / "model.onnx").read_bytes() == b"the good one of yesterday"


@SLOW
def test_a_full_disk_leaves_what_was_there(bundle: Path) -> None:
    (bundle / "model.onnx").write_bytes(b"the good one of yesterday")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(RunProblem, match=r"exported file.*Free some disk space"):
            export(bundle, force=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(bundle) == ["model.json", "model.onnx", "model.safetensors"]
    assert (bundle / "model.onnx").read_bytes() == b"the good one of yesterday"


def test_a_dry_run_writes_nothing_and_names_the_size(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", str(bundle), "--to", "exported-program", "--dry-run"]) == 0
    assert "model.pt2 for images of 48x64" in capsys.readouterr().out
    assert names(bundle) == ["model.json", "model.safetensors"]


def test_a_size_that_is_not_known_is_assumed_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = bundle_of("lpsnet-step0", tmp_path, data="camvid:/nowhere")
    assert run(["export", str(folder), "--dry-run", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["image"] == [512, 1024]
    assert "--image HxW" in told.err


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"precision": "fp8"}, "fp32 or fp16"),
        ({"output": "depth"}, "logits or labels"),
        ({"to": "onyx"}, "did you mean 'onnx'"),
        ({"to": "torchscript", "dynamic": True}, "one size"),
        ({"to": "tensorrt", "dynamic": True}, "one size"),
        ({"image": (0, 64)}, "out of range"),
        ({"data": "synthetic:size=48x64", "image": SIZE}, "4 classes, the data has 10"),
    ],
)
def test_what_cannot_be_exported_is_refused_with_a_remedy(
    bundle: Path, options: dict[str, Any], match: str
) -> None:
    with pytest.raises(UserError, match=match):
        export(bundle, **options)
    assert names(bundle) == ["model.json", "model.safetensors"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_tensorrt_says_what_is_missing(bundle: Path) -> None:
    with pytest.raises(UserError, match=r"tensorrt.*cannot be used here"):
        plan_export(bundle, to="tensorrt")


@SLOW
def test_figures_of_files_that_lie_beside_are_kept(bundle: Path) -> None:
    export(bundle, to="exported-program")
    export(bundle, to="onnx")
    proof = json.loads((bundle / "verify.json").read_text())
    assert proof["file"] == "model.onnx"
    assert set(proof["others"]) == {"model.pt2"}


@SLOW
def test_an_exported_file_is_scored_as_its_bundle_is(tmp_path: Path) -> None:
    from segtailor.runs import Context
    from segtailor.verbs.eval import evaluate

    classes = tuple(f"class{index}" for index in range(10))
    network = segtailor.create("lpsnet-step0", classes=10, seed=3)
    save_bundle(tmp_path / "bundle", Model(network=network, task=Task(classes=classes)))
    data, around = "synthetic:size=48x64,val=4,train=1", Context(cache=tmp_path / "cache", device="cpu")
    done = export(tmp_path / "bundle", image=SIZE)
    of_file = evaluate(done.files[0], data, context=around)
    of_bundle = evaluate(tmp_path / "bundle", data, context=around)
    assert of_file["images"] == of_bundle["images"] == 4
    assert of_file["miou"] == pytest.approx(of_bundle["miou"], abs=1e-4)
