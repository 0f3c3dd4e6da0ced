"""Confidence: probabilities that match labels, a temperature that matches reality, and where it is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import segtailor
from segtailor.core.errors import DataProblem, Unsupported
from segtailor.data.locate import locate
from segtailor.deploy.export import Graph
from segtailor.deploy.formats import format_for
from segtailor.deploy.verify import confidence_difference
from segtailor.nets.bundle import BundleProblem, Model, load_bundle, save_bundle
from segtailor.nets.mobile.converter import missing
from segtailor.nets.mobile.executorch import ExecuTorch
from segtailor.nets.mobile.litert import LiteRt
from segtailor.nets.onnx.model import open_onnx_model
from segtailor.predicting.labelling import unsure_picture
from segtailor.recipes.export import export
from segtailor.tasks.segmentation.confidence import (
    calibrate,
    calibration_error,
    fit_temperature,
    labels_and_confidence,
    probabilities,
    sample_pixels,
)
from segtailor.verbs.main import run
from tests.predicting.models import TASK, halves, save_small_bundle


def drawn(count: int, sharper: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits of 4 classes, multiplied by `sharper`, and labels drawn with the probabilities before that."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(count, 4, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return sharper * logits, labels


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_that_logits_were_sharpened_by_is_found(temperature: float) -> None:
    logits, labels = drawn(40_000, temperature)
    assert fit_temperature(logits, labels) == pytest.approx(temperature, rel=0.05)
    assert calibration_error(logits, labels, temperature) < 0.01
    if temperature != 1.0:
        assert calibration_error(logits, labels, 1.0) > 0.05


def test_calibration_is_measured_on_images_it_was_not_fitted_to() -> None:
    parts = [drawn(5_000, 3.0, seed) for seed in range(4)]
    found = calibrate([logits for logits, _ in parts], [labels for _, labels in parts])
    assert found.temperature == pytest.approx(3.0, rel=0.1)
    assert found.ece_after < 0.02 < 0.1 < found.ece_before
    assert (found.images, found.pixels) == (4, 20_000)
    with pytest.raises(DataProblem, match="too few"):
        calibrate([parts[0][0]], [parts[0][1]])


def test_confidence_is_the_largest_probability_and_labels_are_those_of_the_network() -> None:
    logits = torch.randn(1, 3, 40, 5, generator=torch.Generator().manual_seed(0))
    for temperature in (0.7, 2.0):
        full = probabilities(logits, (300, 17), align_corners=False, temperature=temperature)
        labels, sure = labels_and_confidence(logits, (300, 17), align_corners=False, temperature=temperature)
        torch.testing.assert_close(sure, full.max(1).values)
        assert torch.equal(labels.long(), full.argmax(1))
    model = Model(network=segtailor.create("lpsnet-step0", classes=3, seed=5), task=TASK, temperature=2.0)
    labelled, confidence = model.predict_with_confidence(halves())
    np.testing.assert_array_equal(labelled, model.predict(halves()))
    np.testing.assert_allclose(confidence, model.probabilities(halves()).max(0), atol=1e-6)


def test_only_labelled_pixels_are_sampled() -> None:
    logits = torch.arange(24.0).reshape(2, 3, 4)
    labels = torch.tensor([[0, 255, 1, 255], [255] * 4, [1, 1, 255, 0]])
    some, true = sample_pixels(logits, labels, classes=2, most=99, generator=torch.Generator())
    assert true.tolist() == [0, 1, 1, 1, 0]
    assert some.tolist() == [[0, 12], [2, 14], [8, 20], [9, 21], [11, 23]]


def test_a_bundle_keeps_its_temperature_and_refuses_a_wrong_one(tmp_path: Path) -> None:
    folder = save_small_bundle(tmp_path / "small")
    assert "temperature" not in json.loads((folder / "model.json").read_text())
    save_bundle(folder, Model(network=load_bundle(folder).network, task=TASK, temperature=1.7))
    assert load_bundle(folder).temperature == 1.7
    document = json.loads((folder / "model.json").read_text())
    for wrong in (0, -1, "hot", True, 1e9, None):
        (folder / "model.json").write_text(json.dumps({**document, "temperature": wrong}))
        with pytest.raises(BundleProblem, match="temperature"):
            load_bundle(folder)


def test_eval_calibrates_a_bundle_but_not_the_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    data = "synthetic:train=2,val=4,size=32x64"
    classes = locate(data).task
    network = segtailor.create("lpsnet-step0", classes=classes.outputs, seed=5)
    save_bundle(folder, Model(network=network, task=classes))
    words = ["eval", str(folder), "--data", data, "--calibrate", "--json", "--cache", str(tmp_path / "cache")]
    assert run([*words, "--dry-run"]) == 0
    assert load_bundle(folder).temperature == 1.0
    capsys.readouterr()
    assert run(words) == 0
    found = json.loads(capsys.readouterr().out)["calibration"]
    model = load_bundle(folder)
    assert model.temperature == found["temperature"] != 1.0
    assert model.numbers["calibration"] == found
    assert run(["eval", "camvid-fast", "--data", data, "--calibrate"]) == 1
    assert "part of the package" in capsys.readouterr().err


def test_an_onnx_file_gives_the_confidence_of_its_network(tmp_path: Path) -> None:
    network = segtailor.create("lpsnet-step0", classes=3, seed=5)
    model = Model(network=network, task=TASK, temperature=1.5)
    image = np.array(Image.fromarray(halves()).resize((64, 64)))
    labels, confidence = model.predict_with_confidence(image)
    for output in ("labels", "logits"):
        done = export(
            model, image=(64, 64), output=output, confidence=output == "labels", out=tmp_path / output
        )  # type: ignore[call-overload]
        file = open_onnx_model(done.files[0])
        assert file.confident
        found = file.predict_with_confidence(image)
        np.testing.assert_array_equal(found[0], labels)
        np.testing.assert_allclose(found[1], confidence, atol=1e-4)
        np.testing.assert_allclose(file.probabilities(image).max(0), confidence, atol=1e-4)
        np.testing.assert_allclose(file.probabilities(image).sum(0), 1, atol=1e-4)
        assert file.predict_with_confidence(halves(33, 47))[1].shape == (33, 47)
    assert (
        0 <= json.loads((tmp_path / "labels" / "verify.json").read_text())["max_confidence_difference"] < 1e-3
    )


@pytest.mark.parametrize(
    "to", ["onnx", "openvino", "torchscript", "exported-program", "litert", "executorch"]
)
def test_a_file_gives_confidence_and_what_is_unsure_beside_its_labels(tmp_path: Path, to: str) -> None:
    network = segtailor.create("lpsnet-step0", classes=3, seed=5)
    model = Model(network=network, task=TASK, temperature=1.5)
    image = np.array(Image.fromarray(halves()).resize((64, 64)))
    if to in ("litert", "executorch") and (
        absent := missing({"litert": LiteRt(), "executorch": ExecuTorch()}[to])
    ):
        pytest.skip(absent)
    _, confidence = model.predict_with_confidence(image)
    below = float(np.median(confidence))
    done = export(model, to=to, image=(64, 64), output="labels", preprocess=True, unsure=below, out=tmp_path)
    assert 0 <= done.figures["max_confidence_difference"] < 1e-3  # type: ignore[operator]
    labels, sure, unsure = format_for(to).open(tmp_path)(image[None])
    np.testing.assert_array_equal(labels[0], model.predict(image))
    np.testing.assert_allclose(sure[0], confidence, atol=1e-4)
    clear = np.abs(confidence - below) > 1e-4
    np.testing.assert_array_equal(unsure[0][clear], unsure_picture(confidence, below)[clear])
    assert 0.2 < (unsure == 255).mean() < 0.8


def test_a_wrong_mask_of_unsure_pixels_is_noticed() -> None:
    model = Model(network=segtailor.create("lpsnet-step0", classes=3, seed=5), task=TASK)
    image = halves(64, 64)
    labels, confidence = model.predict_with_confidence(image)
    graph = Graph(image=(64, 64), input="pixels", output="labels", confidence=True, unsure=0.5)
    right = unsure_picture(confidence, 0.5)
    for mask, most in ((right, 0.0), (255 - right, 1.0), (right // 255, np.inf), (right[:32], np.inf)):
        arrays = [labels[None], confidence[None], mask[None]]
        found = confidence_difference(lambda _, arrays=arrays: arrays, model, graph, [image])  # type: ignore[misc]
        assert found <= most
        assert (found == 0) == (mask is right)


@pytest.mark.parametrize("wrong", [{"confidence": True}, {"unsure": 0.5}])
def test_logits_have_no_further_outputs(tmp_path: Path, wrong: dict[str, Any]) -> None:
    model = Model(network=segtailor.create("lpsnet-step0", classes=3), task=TASK)
    with pytest.raises(Unsupported, match="--output labels"):
        export(model, image=(64, 64), out=tmp_path, **wrong)
    with pytest.raises(Unsupported, match="between 0 and 1"):
        export(model, image=(64, 64), output="labels", unsure=1.5, out=tmp_path)
    assert not list(tmp_path.iterdir())
