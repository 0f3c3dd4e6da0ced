"""Labels made in bands are those of a resize and an arg max."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from segtailor.nets.onnx.graph import onnx_bytes, onnx_session
from segtailor.tasks.enlarging import enlarge
from segtailor.tasks.segmentation import kind as labels_module
from segtailor.tasks.segmentation.kind import LabelHead

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")


class Tail(nn.Module):
    def __init__(self, labels: LabelHead, size: tuple[int, int]) -> None:
        super().__init__()
        self.labels, self.size = labels, size

    def forward(self, logits: Tensor) -> Tensor:
        return self.labels(logits, self.size)


def exported(logits: Tensor, size: tuple[int, int], *, align_corners: bool) -> bytes:
    labels = LabelHead(align_corners=align_corners, label_type=torch.uint8)
    labels.prepare(logits.shape, size)
    return onnx_bytes(Tail(labels, size).eval(), (logits,), names=("logits",), output="labels")


def smooth(*shape: int) -> Tensor:
    coarse = torch.randn(1, shape[0], 3, 3, generator=torch.Generator().manual_seed(0))
    return enlarge(coarse, (shape[1], shape[2]), align_corners=False)


@pytest.mark.parametrize(
    ("shape", "size", "align_corners"),
    [
        ((5, 8, 16), (61, 127), True),
        pytest.param((5, 8, 16), (64, 128), False, marks=pytest.mark.slow),
        pytest.param((3, 6, 7), (6, 7), False, marks=pytest.mark.slow),
        pytest.param((2, 1, 1), (9, 5), True, marks=pytest.mark.slow),
    ],
)
def test_bands_give_the_labels_of_a_resize_and_an_arg_max(
    shape: tuple[int, int, int], size: tuple[int, int], align_corners: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labels_module, "VALUES_PER_BAND", 5 * 128 * 10)  # several bands, the last one shorter
    logits = smooth(*shape)
    wanted = enlarge(logits, size, align_corners=align_corners).argmax(1)
    session = onnx_session(exported(logits, size, align_corners=align_corners))
    got = session.run(None, {"logits": logits.numpy()})[0]
    assert got.dtype == np.uint8
    assert got.shape == (1, *size)
    assert (got == wanted.numpy()).mean() > 0.9999


@pytest.mark.slow
def test_no_map_of_all_classes_at_full_size_is_ever_made() -> None:
    logits, size = smooth(19, 8, 16), (256, 512)
    model = onnx.shape_inference.infer_shapes(
        onnx.load_model_from_string(exported(logits, size, align_corners=False))
    )
    sizes = [
        int(np.prod([side.dim_value for side in value.type.tensor_type.shape.dim]))
        for value in model.graph.value_info
    ]
    assert sizes
    assert max(sizes) <= labels_module.VALUES_PER_BAND
    assert "Resize" not in {node.op_type for node in model.graph.node}


def test_outside_of_a_graph_torch_does_the_work() -> None:
    logits = smooth(4, 8, 8)
    labels = LabelHead(align_corners=True, label_type=torch.uint8)
    labels.prepare(logits.shape, (32, 48))
    wanted = enlarge(logits, (32, 48), align_corners=True).argmax(1)
    assert torch.equal(labels(logits, (32, 48)), wanted.byte())
