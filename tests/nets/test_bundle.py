import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import segtailor
from segtailor.core.errors import InvalidArchitecture, UserError
from segtailor.core.task import Preprocessing, Task
from segtailor.nets.bundle import BundleProblem, Model, load_bundle, save_bundle

TASK = Task(classes=("a", "b", "c"))


def saved(folder: Path, name: str = "lpsnet-step0", outputs: str = "main") -> Model:
    model = Model(
        network=segtailor.create(name, classes=3, outputs=outputs, seed=5),
        task=TASK,
        preprocessing=Preprocessing(mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2)),
        provenance={"data": "made up"},
        numbers={"miou": 0.5},
    )
    save_bundle(folder, model)
    return model


@pytest.mark.parametrize(("name", "outputs"), [("lpsnet-step6", "main"), ("fasterseg-student", "all")])
def test_a_bundle_comes_back_as_it_was(tmp_path: Path, name: str, outputs: str) -> None:
    model, again = saved(tmp_path, name, outputs), segtailor.load(tmp_path)
    assert (again.task, again.preprocessing) == (model.task, model.preprocessing)
    assert again.architecture == model.architecture
    assert again.numbers == {"miou": 0.5}
    assert not again.network.training
    image = torch.randn(1, 3, 64, 64)
    for output, logits in again.network.forward_all(image).items():
        torch.testing.assert_close(logits, model.network.forward_all(image)[output], rtol=0, atol=0)


def test_predictions_have_the_size_of_the_image_and_take_arrays_or_pictures(tmp_path: Path) -> None:
    saved(tmp_path)
    model = segtailor.load(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (75, 101, 3), dtype=np.uint8)
    labels = model.predict(pixels)
    assert (labels.shape, labels.dtype) == ((75, 101), np.uint8)
    assert labels.max() < 3
    np.testing.assert_array_equal(model.predict(Image.fromarray(pixels)), labels)


def test_a_turned_photograph_is_predicted_as_it_is_seen(tmp_path: Path) -> None:
    saved(tmp_path)
    model = segtailor.load(tmp_path)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 64, 3), dtype=np.uint8))
    exif = picture.getexif()
    exif[0x0112] = 6  # turn by 90 degrees
    picture.save(tmp_path / "turned.png", exif=exif)
    assert model.predict(Image.open(tmp_path / "turned.png")).shape == (64, 40)


@pytest.mark.parametrize(
    "image", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3), np.float32), np.zeros((4, 4, 4), np.uint8)]
)
def test_anything_but_rgb_bytes_is_refused(tmp_path: Path, image: np.ndarray) -> None:
    saved(tmp_path)
    with pytest.raises(UserError, match="uint8 array"):
        segtailor.load(tmp_path).predict(image)


def test_a_folder_without_a_bundle_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(BundleProblem, match="no bundle"):
        load_bundle(tmp_path)


@pytest.mark.parametrize("cut", [0, 7, 200, -1])
def test_damaged_weights_are_explained(tmp_path: Path, cut: int) -> None:
    saved(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(BundleProblem, match="damaged"):
        load_bundle(tmp_path)


def change(folder: Path, **changes: object) -> None:
    file = folder / "model.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_a_newer_bundle_asks_for_an_update(tmp_path: Path) -> None:
    saved(tmp_path)
    change(tmp_path, format=2)
    with pytest.raises(BundleProblem, match="Update segtailor"):
        load_bundle(tmp_path)


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    saved(tmp_path / "one")
    saved(tmp_path / "two", "lpsnet-step1")
    (tmp_path / "one" / "model.safetensors").write_bytes(
        (tmp_path / "two" / "model.safetensors").read_bytes()
    )
    with pytest.raises(BundleProblem, match="does not fit"):
        load_bundle(tmp_path / "one")


def test_a_description_that_would_fill_the_memory_is_refused_before_allocating(tmp_path: Path) -> None:
    saved(tmp_path)
    document = json.loads((tmp_path / "model.json").read_text())["architecture"]
    document["architecture"]["width"] = [8192] * 5
    document["architecture"]["depth"] = [256] * 5
    change(tmp_path, architecture=document)
    with pytest.raises(InvalidArchitecture, match="at most"):
        load_bundle(tmp_path)


def test_half_precision_halves_the_file_and_keeps_vectors_whole(tmp_path: Path) -> None:
    model = saved(tmp_path / "whole", "lpsnet-s")
    with torch.no_grad():
        for name, value in model.network.named_buffers():
            if name.endswith("running_var"):
                value.fill_(1e6)  # beyond half precision
    save_bundle(tmp_path / "half", model, precision="fp16")
    whole, half = ((tmp_path / name / "model.safetensors").stat().st_size for name in ("whole", "half"))
    assert half < 0.52 * whole
    again = segtailor.load(tmp_path / "half").network.state_dict()
    for name, value in model.network.state_dict().items():
        assert again[name].dtype == value.dtype
        limit = {"rtol": 2**-11, "atol": 2**-24} if value.ndim > 1 else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(again[name], value, **limit)


def test_half_precision_hardly_changes_labels(tmp_path: Path) -> None:
    model = saved(tmp_path / "whole", "squeezenas-lat-small")
    save_bundle(tmp_path / "half", model, precision="fp16")
    pixels = np.random.default_rng(0).integers(0, 256, (65, 97, 3), dtype=np.uint8)
    same = segtailor.load(tmp_path / "half").predict(pixels) == model.predict(pixels)
    assert same.mean() > 0.99


def test_weights_beyond_half_precision_are_refused(tmp_path: Path) -> None:
    model = saved(tmp_path / "whole")
    with torch.no_grad():
        next(value for value in model.network.parameters() if value.ndim > 1).fill_(1e6)
    with pytest.raises(BundleProblem, match=r"beyond 65504.*fp32"):
        save_bundle(tmp_path / "half", model, precision="fp16")
    assert not (tmp_path / "half" / "model.json").exists()
