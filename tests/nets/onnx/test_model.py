"""An ONNX file is used as a bundle is, and files of other makers are treated with care."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import segtailor
from segtailor.core.errors import UserError
from segtailor.core.task import Preprocessing, Task
from segtailor.nets.bundle import Model
from segtailor.nets.onnx.graph import onnx_bytes
from segtailor.nets.onnx.metadata import (
    KEY,
    MAX_METADATA_CHARACTERS,
    OnnxMetadata,
    OnnxProblem,
    parse_metadata,
    with_metadata,
)
from segtailor.nets.onnx.model import open_onnx_model

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

TASK = Task(classes=("road", "car", "sky"), palette=((1, 2, 3), (4, 5, 6), (7, 8, 9)))
CHOSEN = Preprocessing(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))


class Tiny(nn.Module):
    """One strided convolution to three classes; with `labels`, their arg max, resized by repetition."""

    def __init__(self, *, labels: bool = False, pixels: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 3, 4, stride=4)
        self.labels, self.pixels = labels, pixels

    def forward(self, image: Tensor) -> Tensor:
        if self.pixels:
            image = image.permute(0, 3, 1, 2).float() / 255
        logits = self.conv(image)
        if not self.labels:
            return logits
        return logits.argmax(1).to(torch.uint8).repeat_interleave(4, 1).repeat_interleave(4, 2)


def written(file: Path, metadata: OnnxMetadata, module: nn.Module, image: Tensor) -> Path:
    data = onnx_bytes(module.eval(), (image,), names=("image",), output="output")
    file.write_bytes(with_metadata(data, metadata))
    return file


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    metadata = OnnxMetadata(
        task=TASK, preprocessing=CHOSEN, align_corners=True, provenance={"data": "made up"}
    )
    return written(
        tmp_path_factory.mktemp("onnx") / "model.onnx", metadata, Tiny(), torch.zeros(1, 3, 32, 48)
    )


def picture(height: int = 32, width: int = 48) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_a_file_predicts_what_its_network_predicts(plain: Path) -> None:
    model = segtailor.load(plain)
    assert (model.task, model.preprocessing, model.size, model.note) == (TASK, CHOSEN, (32, 48), None)
    network = Tiny()
    network.plan = type("Plan", (), {"align_corners": True})  # type: ignore[assignment]
    wanted = Model(network=network, task=TASK, preprocessing=CHOSEN).predict(picture())  # type: ignore[arg-type]
    np.testing.assert_array_equal(model.predict(picture()), wanted)
    np.testing.assert_array_equal(model.predict(Image.fromarray(picture())), wanted)


@pytest.mark.parametrize("size", [(75, 101), (1, 1), (16, 200)])
def test_a_file_of_fixed_size_labels_pictures_of_any_size(plain: Path, size: tuple[int, int]) -> None:
    labels = open_onnx_model(plain).predict(picture(*size))
    assert (labels.shape, labels.dtype) == (size, np.uint8)
    assert labels.max() < 3


def test_beside_a_picture_of_another_shape_is_the_mean_colour_and_its_labels_are_cut_off(plain: Path) -> None:
    model, portrait = open_onnx_model(plain), picture(32, 12)
    canvas = np.full((32, 48, 3), np.round(255 * np.array(CHOSEN.mean)), np.uint8)
    canvas[:, :12] = portrait
    np.testing.assert_array_equal(model.predict(portrait), model.predict(canvas)[:, :12])


@pytest.mark.slow
def test_labels_of_a_resized_picture_are_never_mixed(tmp_path: Path) -> None:
    metadata = OnnxMetadata(task=TASK, input="pixels", output="labels")
    module, image = Tiny(labels=True, pixels=True), torch.zeros(1, 16, 16, 3, dtype=torch.uint8)
    model = open_onnx_model(written(tmp_path / "labels.onnx", metadata, module, image))
    own = model.predict(picture(16, 16))
    with torch.no_grad():
        np.testing.assert_array_equal(own, module(torch.from_numpy(picture(16, 16)[None]))[0].numpy())
    doubled = model.predict(np.repeat(np.repeat(picture(16, 16), 2, 0), 2, 1))
    assert doubled.shape == (32, 32)
    assert set(np.unique(doubled)) <= {0, 1, 2}


def test_a_file_of_another_maker_gets_numbered_classes_and_a_note(plain: Path, tmp_path: Path) -> None:
    theirs = onnx.load_model_from_string(plain.read_bytes())
    del theirs.metadata_props[:]
    (tmp_path / "theirs.onnx").write_bytes(theirs.SerializeToString())
    model = open_onnx_model(tmp_path / "theirs.onnx")
    assert model.task.classes == ("class0", "class1", "class2")
    assert model.preprocessing == Preprocessing()
    assert "numbered" in str(model.note)
    assert model.predict(picture()).shape == (32, 48)


def test_a_file_that_contradicts_its_metadata_is_refused(plain: Path, tmp_path: Path) -> None:
    four, file = OnnxMetadata(task=Task(classes=("a", "b", "c", "d"))), tmp_path / "wrong.onnx"
    file.write_bytes(with_metadata(plain.read_bytes(), four))
    with pytest.raises(OnnxProblem, match="4 classes"):
        open_onnx_model(file)


def test_a_graph_that_is_no_segmentation_is_refused(tmp_path: Path) -> None:
    file, kind = tmp_path / "dense.onnx", onnx.TensorProto.FLOAT
    ends = [onnx.helper.make_tensor_value_info(name, kind, (1, 4)) for name in ("in", "out")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["in"], ["out"])], "g", ends[:1], ends[1:])
    opset = [onnx.helper.make_opsetid("", 18)]
    file.write_bytes(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString())
    with pytest.raises(OnnxProblem, match="reads one image"):
        open_onnx_model(file)


def test_metadata_comes_back_and_other_entries_stay(plain: Path) -> None:
    again = OnnxMetadata(task=Task(classes=("a",)))
    proto = onnx.load_model_from_string(with_metadata(plain.read_bytes(), again))
    onnx.helper.set_model_props(
        proto, {**{e.key: e.value for e in proto.metadata_props}, "author": "somebody"}
    )
    twice = onnx.load_model_from_string(with_metadata(proto.SerializeToString(), again))
    entries = {entry.key: entry.value for entry in twice.metadata_props}
    assert set(entries) == {KEY, "author"}
    assert parse_metadata(entries, what="file") == again
    assert parse_metadata({}, what="file") is None


def changed(**changes: object) -> str:
    from segtailor.core.codec import to_json

    return json.dumps({**to_json(OnnxMetadata(task=TASK)), **changes})


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "format"),
        (changed(format=2), "Update segtailor"),
        (changed(task={"classes": []}), "1 to 255 classes"),
        (changed(task={"classes": ["a"], "palette": [[1, 2, 3], [1, 2, 3]]}), "one per class"),
        (changed(output="depth"), "logits"),
        (changed(preprocessing={"mean": [0, 0, 0], "std": [1, 0, 1]}), "above zero"),
        (changed(preprocessing={"mean": [0, 0, float("inf")], "std": [1, 1, 1]}), "finite"),
        (changed(hidden=1), "no such field"),
        ("x" * (MAX_METADATA_CHARACTERS + 1), "at most"),
    ],
)
def test_damaged_metadata_is_explained(text: str, match: str) -> None:
    with pytest.raises(UserError, match=match):
        parse_metadata({KEY: text}, what="file")


def test_a_model_is_a_bundle_a_file_or_a_shipped_name(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="no bundle folder, ONNX file or shipped model is called 'camvid-fats'"
    ):
        segtailor.load("camvid-fats")
    with pytest.raises(UserError, match="neither the folder"):
        segtailor.load(tmp_path / "nothing")
    with pytest.raises(UserError, match="does not exist"):
        segtailor.load("nothing.onnx")


@pytest.mark.slow
def test_a_model_of_open_size_can_be_fixed_to_one() -> None:
    from segtailor.nets.onnx.graph import at_size, onnx_session

    sides = ({2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC},)
    data = onnx_bytes(
        Tiny().eval(), (torch.zeros(1, 3, 32, 48),), names=("image",), output="logits", dynamic=sides
    )
    assert not all(isinstance(side, int) for side in onnx_session(data).get_inputs()[0].shape)
    session = onnx_session(at_size(data, (16, 24)))
    assert session.get_inputs()[0].shape == [1, 3, 16, 24]
    assert session.get_outputs()[0].shape == [1, 3, 4, 6]
    assert onnx_session(at_size(at_size(data, (16, 24)), (8, 8))).get_inputs()[0].shape == [1, 3, 16, 24]
