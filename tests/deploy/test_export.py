"""An exported file computes what the network computes."""

from pathlib import Path

import numpy as np
import pytest
import torch

import segtailor
from segtailor.core.errors import UserError
from segtailor.core.task import Preprocessing, Task
from segtailor.deploy.export import export_onnx
from segtailor.deploy.stages import staged
from segtailor.deploy.verify import Parity, compare, verify_onnx
from segtailor.nets.inference import normalise, predict
from segtailor.nets.network import Network
from segtailor.nets.onnx.graph import onnx_session

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

SIZE = (48, 64)
CPU = torch.device("cpu")
TASK = Task(classes=("a", "b", "c", "d"))
SLOW = [
    pytest.param(name, marks=pytest.mark.slow) for name in segtailor.architectures() if "step" not in name
]


@pytest.fixture(scope="module")
def network() -> Network:
    return segtailor.create("lpsnet-step0", classes=4)


def pixels(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (1, *SIZE, 3), dtype=np.uint8)


def images(count: int = 2) -> list[np.ndarray]:
    return [normalise(pixels(seed), Preprocessing(), CPU).numpy() for seed in range(count)]


@pytest.mark.parametrize("name", ["lpsnet-step0", *SLOW])
def test_the_file_gives_the_logits_of_the_network(name: str, tmp_path: Path) -> None:
    built = segtailor.create(name, classes=4)
    file = tmp_path / "model.onnx"
    export_onnx(built, file, image=SIZE)
    session = onnx_session(file)
    assert [source.name for source in session.get_inputs()] == ["image"]
    assert [output.name for output in session.get_outputs()] == ["logits"]
    assert list(tmp_path.iterdir()) == [file]  # weights are inside
    assert verify_onnx(file, built, images()).equal


def test_labels_come_out_where_resize_and_arg_max_are_inside(network: Network, tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    export_onnx(network, file, image=SIZE, includes="network+resize+argmax")
    (image,) = images(1)
    labels = onnx_session(file).run(["labels"], {"image": image})[0]
    with torch.no_grad():
        wanted = predict(network, torch.from_numpy(image), TASK).numpy()
    assert labels.dtype == np.uint8
    assert (labels == wanted).mean() > 0.999


@pytest.mark.parametrize("includes", ["network+argmax", "network+resize+argmax", "end-to-end"])
def test_stages_are_those_of_plain_inference(network: Network, includes: str) -> None:
    chosen = Preprocessing(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
    raw = torch.from_numpy(pixels())
    image = normalise(pixels(), chosen, CPU)
    with torch.no_grad():
        got = staged(network, includes, preprocessing=chosen)(raw if includes == "end-to-end" else image)
        full = predict(network, image, TASK)
        wanted = network(image).argmax(1) if includes == "network+argmax" else full
    assert got.shape == wanted.shape
    assert (got == wanted).float().mean() > 0.999


def test_unknown_stages_are_refused_with_near_matches(network: Network) -> None:
    with pytest.raises(UserError, match="network\\+argmax"):
        staged(network, "network+argmin")


@pytest.mark.slow
def test_another_network_is_not_equal(network: Network, tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    export_onnx(network, file, image=SIZE)
    other = segtailor.create("lpsnet-step0", classes=4, seed=7)
    assert not verify_onnx(file, other, images()).equal


def test_differences_are_measured() -> None:
    wanted = np.zeros((1, 2, 1, 4), np.float32)
    wanted[:, 0] = 2
    changed = wanted.copy()
    changed[0, 1, 0, 0] = 3
    found = compare([wanted], [changed])
    assert found == Parity(
        images=1, pixels=4, label_agreement=0.75, max_abs_difference=3, max_rel_difference=1.5
    )
    assert compare([np.zeros((1, 2, 2), np.uint8)], [np.zeros((1, 2, 2), np.uint8)]).equal


def test_a_file_of_another_shape_says_so() -> None:
    with pytest.raises(UserError, match="export it again"):
        compare([np.zeros((1, 2, 4, 4))], [np.zeros((1, 3, 4, 4))])


@pytest.mark.parametrize("content", [b"", b"not an onnx file", bytes(1000)])
def test_a_damaged_file_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "broken.onnx"
    file.write_bytes(content)
    with pytest.raises(UserError, match="cannot be loaded"):
        onnx_session(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        onnx_session(tmp_path / "none.onnx")
