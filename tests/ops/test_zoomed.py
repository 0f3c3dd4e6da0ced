import pytest
import torch

from segtailor.core.plan import OpCall, Shape
from segtailor.ops.classifier import HiddenClassifier, UnreadAttention
from segtailor.ops.zoomed import ZoomedConv
from segtailor.testing import check_operator


@pytest.mark.parametrize("size", [(12, 16), (13, 17), (1, 5), (2, 3)])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("repeats", [1, 2])
def test_zoomed_arithmetic_equals_the_built_module(size: tuple[int, int], stride: int, repeats: int) -> None:
    call = OpCall(op=ZoomedConv(repeats=repeats), inputs=(Shape(6, *size),), channels=10, stride=stride)
    check_operator(call)


def test_fasterseg_table_1_macs_of_a_zoomed_convolution() -> None:
    call = OpCall(op=ZoomedConv(), inputs=(Shape(256, 32, 64),), channels=256)
    assert call.macs() == 301_989_888  # 0.30 G
    assert call.params() - 2 * 256 == 589_824  # 0.59 M weights


@pytest.mark.parametrize("repeats", [1, 2])
def test_the_last_relu_of_a_zoomed_convolution_follows_the_enlarging(repeats: int) -> None:
    call = OpCall(op=ZoomedConv(repeats=repeats), inputs=(Shape(2, 9, 12),), channels=3)
    module = call.op.module(call).eval()
    image = torch.randn(1, 2, 9, 12)
    resize = torch.nn.functional.interpolate
    with torch.no_grad():
        small = resize(image, size=(4, 6), mode="bilinear", align_corners=True)
        for number in range(1, repeats + 1):
            small = small.relu() if number > 1 else small
            small = module.stack.get_submodule(f"norm{number}")(
                module.stack.get_submodule(f"conv{number}")(small)
            )
        late = resize(small, size=(9, 12), mode="bilinear", align_corners=True).relu()
        early = resize(small.relu(), size=(9, 12), mode="bilinear", align_corners=True)
        out = module(image)
    torch.testing.assert_close(out, late)
    assert not torch.allclose(out, early)


@pytest.mark.parametrize(("width", "hidden"), [(8, 8), (256, 256), (258, 129)])
def test_the_hidden_layer_is_halved_above_its_limit(width: int, hidden: int) -> None:
    call = OpCall(op=HiddenClassifier(), inputs=(Shape(width, 5, 6),), channels=4)
    check_operator(call)
    assert call.op.hidden(call).channels == hidden  # type: ignore[attr-defined]


def test_unread_kernels_are_counted_frozen_and_change_nothing() -> None:
    call = OpCall(op=UnreadAttention(width=6), inputs=(Shape(8, 3, 4),), channels=8)
    check_operator(call)
    module = call.op.module(call)
    image = torch.randn(1, 8, 3, 4)
    assert torch.equal(module(image), image)
    assert call.params() == 72
    assert not any(parameter.requires_grad for parameter in module.parameters())
