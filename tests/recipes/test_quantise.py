"""From an exported bundle to a decision on int8, and all that can be wrong with what is asked."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch

import segtailor
from segtailor.core.codec import to_json
from segtailor.core.errors import UserError
from segtailor.core.job import Step
from segtailor.core.registry import RUNTIMES
from segtailor.core.target import parse_target
from segtailor.data.cache import Pixels, open_pixels
from segtailor.data.locate import locate
from segtailor.data.synthetic import TASK
from segtailor.deploy.export import export_onnx
from segtailor.deploy.fold import inference_form
from segtailor.deploy.quantise import Int8Decision, Reading
from segtailor.nets.bundle import Model, save_bundle
from segtailor.nets.onnx.graph import onnx_session
from segtailor.recipes.export import export, plan_export
from segtailor.recipes.quantise import Int8Settings, Rivals, quantise, store, worth_tuning
from segtailor.recipes.quantise_aware import TuningSettings, tune
from segtailor.runs import Context
from segtailor.targets.timing import TimingSettings

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

DATA = "synthetic:size=96x128,train=12,val=3"
ORT = "cpu/onnxruntime/int8?threads=1"
QUICK = TimingSettings(runs=4, seconds=0.02, warm_up_seconds=0.01, warm_up_limit=0.1, window=2)
SETTINGS = Int8Settings(samples=3, images=2, timing=QUICK, limit=1.0)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle(tmp_path_factory.mktemp("bundle"), includes="network+resize+argmax")


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "mine"))


def bundle(folder: Path, *, includes: str, image: tuple[int, int] = (96, 128)) -> Path:
    network = segtailor.create("lpsnet-step0", classes=TASK.outputs)
    save_bundle(folder, Model(network=network, task=TASK))
    export_onnx(network, folder / "model.onnx", image=image, includes=includes)
    return folder


def usable(text: str) -> str:
    target = parse_target(text)
    reason = RUNTIMES.get(target.runtime)().available(target)
    if reason is not None:
        pytest.skip(reason)
    return text


def test_both_files_are_measured_and_the_decision_is_stored(folder: Path) -> None:
    steps: list[Step] = []
    (folder / "model.int8.onnx").write_bytes(b"from an earlier try")
    with pytest.raises(UserError, match=r"model\.int8\.onnx .*--force"):
        quantise(folder, data=DATA, target=ORT, settings=SETTINGS)
    assert (folder / "model.int8.onnx").read_bytes() == b"from an earlier try"
    found = quantise(folder, data=DATA, target=ORT, settings=SETTINGS, progress=steps.append, force=True)
    assert (found.target, found.before.target) == (ORT, "cpu/onnxruntime/fp32?threads=1")
    assert found.ratio == pytest.approx(found.after.median_ms / found.before.median_ms)
    assert found.miou_change == pytest.approx(found.after.miou - found.before.miou)
    assert 0.5 < found.label_agreement <= 1
    assert (found.images, found.samples, found.includes) == (2, 3, "network+resize+argmax")
    assert json.loads((folder / "int8.json").read_text()) == to_json(found)
    assert (folder / "model.int8.onnx").exists() == found.kept == (found.file is not None)
    assert {step.phase for step in steps} == {"calibrate", "score"}


@pytest.mark.slow
@pytest.mark.parametrize("includes", ["network", "end-to-end"])
@pytest.mark.parametrize("target", [ORT, "cpu/openvino/int8?threads=1"])
def test_int8_labels_are_nearly_those_of_fp32(includes: str, target: str, tmp_path: Path) -> None:
    place = bundle(tmp_path, includes=includes, image=(64, 96))  # pictures of another size are resized
    found = quantise(place, data=DATA, target=usable(target), settings=SETTINGS)
    assert found.label_agreement > 0.8
    assert found.image == (64, 96)
    if found.file is not None:
        (source,) = onnx_session(place / found.file).get_inputs()
        assert source.name == "image"


@pytest.mark.slow
def test_nncf_quantises_too_and_prints_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("nncf")
    settings = replace(SETTINGS, method="nncf")
    found = quantise(folder, data=DATA, target=usable("cpu/openvino/int8?threads=1"), settings=settings)
    assert capfd.readouterr().out == ""
    assert found.method == "nncf"
    assert found.label_agreement > 0.8


def decided(*, kept: bool, file: str | None) -> Int8Decision:
    reading = Reading(target=ORT, median_ms=2.0, p95_ms=3.0, spread=0.1, miou=0.5)
    return Int8Decision(
        target=ORT,
        kept=kept,
        reason="made up.",
        before=reading,
        after=reading,
        ratio=1.0,
        miou_change=0.0,
        limit=0.01,
        label_agreement=1.0,
        images=2,
        samples=3,
        method="onnxruntime",
        data=DATA,
        image=(96, 128),
        includes="network",
        source="0",
        file=file,
    )


@pytest.mark.parametrize("kept", [True, False])
def test_a_file_lies_there_only_if_int8_is_kept(kept: bool, tmp_path: Path) -> None:
    (tmp_path / "model.int8.onnx").write_bytes(b"from an earlier try")
    decision = decided(kept=kept, file="model.int8.onnx" if kept else None)
    store(tmp_path, decision, {"model.int8.onnx": b"new"})
    assert [file.read_bytes() for file in tmp_path.glob("*.onnx")] == ([b"new"] if kept else [])
    assert json.loads((tmp_path / "int8.json").read_text())["kept"] is kept


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"data": "nowhere"}, "dataset"),
        ({"data": "folder:/does/not/exist"}, "does/not/exist"),
        ({"target": "cpu/eager/int8"}, "runtime with int8: .*onnxruntime, openvino"),
        ({"target": "cuda/graph/int8"}, "not in int8"),
        ({"target": "cpu/onnxruntime/fp32"}, "write cpu/onnxruntime/int8"),
        ({"image": (64, 64)}, "holds network\\+resize\\+argmax at 96x128"),
        ({"settings": replace(SETTINGS, val_split="test")}, "split"),
    ],
)
def test_a_wrong_request_is_refused(folder: Path, changes: dict[str, Any], says: str) -> None:
    asked: dict[str, Any] = {"data": DATA, "target": ORT, "settings": SETTINGS} | changes
    with pytest.raises(UserError, match=says):
        quantise(folder, **asked)
    assert not (folder / "int8.json").exists()


@pytest.mark.parametrize("changes", [{"samples": 0}, {"images": 0}, {"limit": 2.0}])
def test_wrong_settings_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"give|use"):
        replace(SETTINGS, **changes)


def test_a_bundle_that_was_not_exported_says_what_to_do(folder: Path) -> None:
    (folder / "model.onnx").unlink()
    with pytest.raises(UserError, match="segtailor export"):
        quantise(folder, data=DATA, target=ORT, settings=SETTINGS)


def test_a_damaged_file_is_refused(folder: Path) -> None:
    file = folder / "model.onnx"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(UserError, match="cannot be loaded"):
        quantise(folder, data=DATA, target=ORT, settings=SETTINGS)


def test_a_file_of_open_size_is_refused(folder: Path) -> None:
    model = onnx.load(str(folder / "model.onnx"))
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    onnx.save(model, str(folder / "model.onnx"))
    with pytest.raises(UserError, match="any size"):
        quantise(folder, data=DATA, target=ORT, settings=SETTINGS)


def test_data_of_other_classes_is_refused(folder: Path) -> None:
    description = json.loads((folder / "model.json").read_text())
    network = segtailor.create("lpsnet-step0", classes=3)
    task = replace(TASK, classes=TASK.classes[:3], palette=TASK.palette[:3])
    save_bundle(folder, Model(network=network, task=task))
    assert description["task"] != json.loads((folder / "model.json").read_text())["task"]
    with pytest.raises(UserError, match="the model knows 3 classes"):
        quantise(folder, data=DATA, target=ORT, settings=SETTINGS)


def test_bench_says_that_its_int8_network_is_for_timing_only(folder: Path) -> None:
    rows = segtailor.bench([folder / "model.onnx"], [ORT, "cpu/onnxruntime/fp32?threads=1"], settings=QUICK)
    assert [row.precision for row in rows] == ["int8", "fp32"]
    assert "ranges from noise" in rows[0].notes[0]
    assert rows[1].notes == ()
    assert np.isfinite(rows[0].median_ms)


# Runtimes with files of their own.

Converted: TypeAlias = Callable[
    [str, Path], Path
]  # a runtime and where to put it -> a bundle that was exported for it

OWN = [
    ("ncnn", ("model.int8.ncnn.param", "model.int8.ncnn.bin"), "segtailor"),
    pytest.param("litert", ("model.int8.tflite",), "ai-edge-quantizer", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Converted:
    """Return what gives each test its own copy of a bundle that was exported for a runtime, once for all tests."""

    @cache
    def exported_for(to: str) -> Path:
        place = tmp_path_factory.mktemp(to)
        save_bundle(place, Model(network=segtailor.create("lpsnet-step0", classes=TASK.outputs), task=TASK))
        export(place, to=to, image=(96, 128))
        return place

    def copied(to: str, folder: Path) -> Path:
        usable(f"cpu/{to}/int8")
        return Path(shutil.copytree(exported_for(to), folder))

    return copied


@pytest.mark.parametrize(("to", "names", "method"), OWN)
def test_files_of_a_runtime_are_decided_on_beside_each_other(
    to: str, names: tuple[str, ...], method: str, tmp_path: Path, converted: Converted
) -> None:
    place = converted(to, tmp_path / "mine")
    before = (place / "verify.json").read_bytes()
    found = quantise(place, data=DATA, target=f"cpu/{to}/int8?threads=1", settings=SETTINGS)
    assert (found.method, found.includes, found.image) == (method, "network", (96, 128))
    assert found.before.target == f"cpu/{to}/fp32?threads=1"
    assert found.label_agreement > 0.8
    assert json.loads((place / f"int8.{to}.json").read_text()) == to_json(found)
    assert found.file == (names[0] if found.kept else None)
    assert [(place / name).exists() for name in names] == [found.kept] * len(names)
    assert (place / "verify.json").read_bytes() == before


@pytest.mark.parametrize("kept", [True, False])
def test_both_files_of_ncnn_lie_there_or_none_does(kept: bool, tmp_path: Path, converted: Converted) -> None:
    place = converted("ncnn", tmp_path / "mine")
    names = ("model.int8.ncnn.param", "model.int8.ncnn.bin")
    store(place, decided(kept=True, file=names[0]), dict.fromkeys(names, b"earlier"), to="ncnn")
    store(place, decided(kept=kept, file=names[0] if kept else None), dict.fromkeys(names, b"new"), to="ncnn")
    found = [(place / name).read_bytes() for name in names if (place / name).exists()]
    assert found == ([b"new"] * 2 if kept else [])
    plan_export(place, to="ncnn", image=(96, 128)).carry_out()  # a new fp32 file makes the decision void
    assert not any((place / name).exists() for name in (*names, "int8.ncnn.json"))


def test_files_of_ncnn_that_are_not_ours_are_kept(tmp_path: Path, converted: Converted) -> None:
    place = converted("ncnn", tmp_path / "mine")
    (place / "model.int8.ncnn.bin").write_bytes(b"of somebody else")
    with pytest.raises(UserError, match=r"model\.int8\.ncnn\.bin .*--force"):
        quantise(place, data=DATA, target="cpu/ncnn/int8?threads=1", settings=SETTINGS)
    export(place, to="ncnn", image=(96, 128))
    assert (place / "model.int8.ncnn.bin").read_bytes() == b"of somebody else"


@pytest.mark.slow
def test_tuning_serves_ncnn_too(tmp_path: Path, converted: Converted) -> None:
    place = converted("ncnn", tmp_path / "mine")
    context = Context(cache=tmp_path / "cache", device="cpu")
    settings = replace(SETTINGS, tuning=TuningSettings(steps=2, batch=2, always=True, context=context))
    found = quantise(place, data=DATA, target="cpu/ncnn/int8?threads=1", settings=settings)
    assert found.tuning is not None
    assert found.after.miou == max(found.tuning.miou_before, found.tuning.miou_after)


def test_what_cannot_be_tried_on_ncnn_is_refused(tmp_path: Path, converted: Converted) -> None:
    place, target = converted("ncnn", tmp_path / "mine"), "cpu/ncnn/int8?threads=1"
    with pytest.raises(UserError, match="96x128, and its size is fixed"):
        quantise(place, data=DATA, target=target, image=(64, 64), settings=SETTINGS)
    with pytest.raises(UserError, match="quantises ONNX files"):
        quantise(place, data=DATA, target=target, settings=replace(SETTINGS, method="nncf"))
    export(place, to="ncnn", image=(96, 128), precision="fp16")
    with pytest.raises(UserError, match=r"exported in fp32.*segtailor export .* --to ncnn"):
        quantise(place, data=DATA, target=target, settings=SETTINGS)
    (place / "model.ncnn.param").unlink()
    with pytest.raises(UserError, match=r"no model\.ncnn\.param to quantise"):
        quantise(place, data=DATA, target=target, settings=SETTINGS)
    assert not (place / "int8.ncnn.json").exists()


# Fine-tuning with rounding inside.

CPU = Context(device="cpu")


@pytest.fixture(scope="module")
def pixels(tmp_path_factory: pytest.TempPathFactory) -> Pixels:
    return open_pixels(locate(DATA), "train", tmp_path_factory.mktemp("cache"))


def test_tuning_changes_weights_and_leaves_the_model_alone(pixels: Pixels) -> None:
    model = Model(network=segtailor.create("lpsnet-step0", classes=TASK.outputs), task=TASK)
    before = {name: value.clone() for name, value in model.network.state_dict().items()}
    steps: list[Step] = []
    tuned = tune(model, pixels, TuningSettings(steps=2, batch=2, context=CPU), progress=steps.append)
    after = model.network.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    plain = inference_form(model.network).state_dict()
    assert plain.keys() == tuned.network.state_dict().keys()
    assert any(not torch.equal(value, plain[name]) for name, value in tuned.network.state_dict().items())
    assert (tuned.steps, steps[-1].done) == (2, 2)


def test_tuning_brings_a_rounded_network_closer_to_the_labels(pixels: Pixels) -> None:
    model = Model(network=segtailor.create("lpsnet-step0", classes=TASK.outputs), task=TASK)
    losses: list[float] = []
    settings = TuningSettings(steps=12, batch=4, lr=1e-3, context=CPU)
    tune(
        model,
        pixels,
        settings,
        progress=lambda step: losses.append(step.metrics["loss"]),
    )
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    "includes", ["network+resize+argmax", pytest.param("end-to-end", marks=pytest.mark.slow)]
)
def test_the_better_of_two_int8_files_is_used(includes: str, tmp_path: Path) -> None:
    place = bundle(tmp_path / "mine", includes=includes, image=(64, 96))
    context = Context(cache=tmp_path / "cache", device="cpu")
    settings = replace(SETTINGS, tuning=TuningSettings(steps=2, batch=2, always=True, context=context))
    found = quantise(place, data=DATA, target=ORT, settings=settings)
    assert found.tuning is not None
    assert found.tuning.steps == 2
    assert found.tuning.used == (found.tuning.miou_after > found.tuning.miou_before)
    assert found.after.miou == max(found.tuning.miou_before, found.tuning.miou_after)
    assert json.loads((place / "int8.json").read_text())["tuning"]["steps"] == 2


@pytest.mark.parametrize(
    ("miou", "ms", "wanted"), [(0.5, 1.0, False), (0.495, 1.0, False), (0.48, 1.0, True), (0.48, 3.0, False)]
)
def test_tuning_is_for_files_that_lose_too_much_and_are_faster(miou: float, ms: float, wanted: bool) -> None:
    before = Reading(target=ORT, median_ms=2.0, p95_ms=3.0, spread=0.1, miou=0.5)
    rivals = Rivals(before, replace(before, median_ms=ms, miou=miou), 0.9, (), 2)
    assert worth_tuning(rivals, 0.01) is wanted


@pytest.mark.parametrize("changes", [{"steps": 0}, {"batch": 0}, {"lr": 0.0}])
def test_wrong_settings_of_tuning_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        TuningSettings(**changes)
