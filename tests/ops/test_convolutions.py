"""Convolutions in their several forms, and norms and activations alone."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from segtailor.core.plan import OpCall, Operator, Shape
from segtailor.ops import Conv, FactorisedReduction
from segtailor.ops.convolutions import Activate, Activation, HiddenClassifier, Norm, ZoomedConv
from segtailor.ops.modules.convolutions import Depthwise, StridedPoint, conv2d, convolved, without_cudnn
from segtailor.testing import check_operator

ODD = Shape(6, 5, 7)
PROGRAM = """
import torch
from segtailor.ops.modules.convolutions import conv2d
torch.set_num_threads(1)
conv = conv2d(3, 4, 1, stride=2).to(memory_format=torch.channels_last)
for _ in range(100):
    image = torch.randn(4, 3, 48, 96).contiguous(memory_format=torch.channels_last).requires_grad_()
    conv(image).sum().backward()
"""


@pytest.mark.parametrize("size", [(9, 13), (40, 24), (1, 1)])
@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "stride"),
    [
        (Conv(kernel=3, dilation=6, groups=4), 8, 4, 1),
        (Conv(kernel=3, dilation=18, groups=4), 8, 4, 1),
        (Conv(kernel=1, first=True), 6, 4, 1),
        (FactorisedReduction(first=True, norm="each"), 6, 4, 2),
    ],
)
def test_grouped_and_skip_forms_count_and_run_as_defined(
    op: Operator, inputs: int, outputs: int, stride: int, size: tuple[int, int]
) -> None:
    check_operator(OpCall(op=op, inputs=(Shape(inputs, *size),), channels=outputs, stride=stride))


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


@pytest.mark.parametrize("activation", ["relu", "hardswish", "hardsigmoid", "sigmoid", "none"])
def test_norms_and_activations_count_as_built(activation: Activation) -> None:
    for op in (Activate(activation=activation), Norm(activation=activation)):
        check_operator(OpCall(op=op, inputs=(ODD,), channels=6))


def test_a_norm_normalises_before_it_activates() -> None:
    module = Norm().module(OpCall(op=Norm(), inputs=(ODD,), channels=6)).train()
    out = module(torch.randn(4, *ODD) + 100)  # far from 0 before, half below it after
    assert 0.4 < float((out == 0).float().mean()) < 0.6


def test_no_activation_passes_values_on() -> None:
    image = torch.randn(1, *ODD)
    call = OpCall(op=Activate(activation="none"), inputs=(ODD,), channels=6)
    assert torch.equal(call.op.module(call)(image), image)


@pytest.mark.parametrize("size", [(6, 8), (7, 9), (1, 2)])
def test_training_and_deployment_compute_the_same(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    conv = conv2d(3, 4, 1, stride=2, bias=True)
    assert isinstance(conv, StridedPoint)
    image = torch.randn(2, 3, *size)
    plain = nn.Conv2d(3, 4, 1, stride=2)
    plain.load_state_dict(conv.state_dict())
    for training in (True, False):
        assert torch.allclose(conv.train(training)(image), plain(image), atol=1e-6)


@pytest.mark.slow
def test_training_on_a_picture_in_channels_last_leaves_memory_intact() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr  # with a strided kernel of torch 2.13 this process crashes


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(3, 1, 1), (3, 2, 1), (5, 1, 2), (5, 2, 1)])
def test_the_way_without_plans_computes_the_same(
    kernel: int, stride: int, dilation: int, *, biased: bool
) -> None:
    torch.manual_seed(0)
    for groups, outputs, size in ((6, 6, kernel), (1, 4, 1)):
        conv = conv2d(6, outputs, size, stride=stride, dilation=dilation, groups=groups, bias=biased).double()
        image = torch.randn(2, 6, 9, 11, dtype=torch.float64, requires_grad=True)
        leaves = [image, *conv.parameters()]
        expected = nn.functional.conv2d(
            image, conv.weight, conv.bias, conv.stride, conv.padding, conv.dilation, groups
        )
        given = torch.randn_like(expected)
        wanted = torch.autograd.grad(expected, leaves, given)
        settings = (tuple(conv.stride), tuple(conv.padding), tuple(conv.dilation))
        if groups == 1:
            with without_cudnn():
                output = convolved(image, conv.weight, conv.bias, *settings, groups)
        else:
            output = Depthwise.apply(image, conv.weight, conv.bias, *settings)
        assert torch.allclose(output, expected, atol=1e-12)
        for found, right in zip(torch.autograd.grad(output, leaves, given), wanted, strict=True):
            assert torch.allclose(found, right, atol=1e-12)
    assert torch.backends.cudnn.enabled
