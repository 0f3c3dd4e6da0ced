"""Every operator's arithmetic equals the module that it builds."""

import subprocess
import sys
from fractions import Fraction

import pytest
import torch

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import OpCall, Shape
from segtailor.core.registry import OPERATORS
from segtailor.ops import (
    Concat,
    Conv,
    FactorisedReduction,
    Identity,
    InvertedBottleneck,
    MaxPool,
    PooledConv,
    RepConv,
    Resize,
    ScaleImage,
    Separable,
    Sum,
    Zero,
)
from segtailor.ops.attention import Blend, Gate
from segtailor.ops.blocks import Bottleneck, Ghost, Residual, Shuffle
from segtailor.testing import check_operator

EVEN, ODD = Shape(8, 12, 16), Shape(8, 13, 17)

ONE_INPUT = [
    Conv(),
    Conv(kernel=1, norm=False, bias=True, activation="none"),
    Conv(kernel=5, dilation=2, repeats=2),
    Conv(first=True, repeats=2),
    Conv(groups=4, activation="hardswish"),
    Conv(same=True, eps=1e-3, activation="relu6"),
    RepConv(),
    RepConv(branches=True),
    Separable(),
    Separable(kernel=5, dilation=3, repeats=2, first=True),
    InvertedBottleneck(),
    InvertedBottleneck(expansion=1, expand=False),
    InvertedBottleneck(kernel=5, groups=2, expansion=3, activation="relu6", same=True),
    Residual(),
    Bottleneck(),
    Ghost(),
    Shuffle(),
    Zero(),
]


@pytest.mark.parametrize("op", ONE_INPUT, ids=repr)
@pytest.mark.parametrize("source", [EVEN, ODD], ids=["even", "odd"])
@pytest.mark.parametrize(("channels", "stride"), [(8, 1), (8, 2), (12, 1), (12, 2)])
def test_arithmetic_equals_the_built_module(op: object, source: Shape, channels: int, stride: int) -> None:
    check_operator(OpCall(op=op, inputs=(source,), channels=channels, stride=stride))  # type: ignore[arg-type]


@pytest.mark.parametrize("source", [EVEN, ODD], ids=["even", "odd"])
@pytest.mark.parametrize(
    "op", [FactorisedReduction(), FactorisedReduction(first=False), FactorisedReduction(norm="each")]
)
def test_factorised_reduction_halves_any_size(op: FactorisedReduction, source: Shape) -> None:
    check_operator(OpCall(op=op, inputs=(source,), channels=6, stride=2))


@pytest.mark.parametrize("stride", [1, 2])
def test_max_pool_keeps_channels(stride: int) -> None:
    check_operator(OpCall(op=MaxPool(), inputs=(ODD,), channels=8, stride=stride))


@pytest.mark.parametrize(
    ("op", "inputs", "channels"),
    [
        (Sum(), (EVEN, Shape(8, 6, 8)), 8),
        (Sum(like=1, align_corners=True), (EVEN, ODD), 8),
        (Concat(), (EVEN, Shape(4, 6, 8), Shape(2, 3, 4)), 14),
        (Concat(like=1), (Shape(4, 6, 8), EVEN), 12),
        (Identity(), (EVEN,), 8),
        (Resize(), (Shape(4, 3, 4), ODD), 4),
        (ScaleImage(ratio=Fraction(3, 4)), (Shape(3, 33, 65),), 3),
        (ScaleImage(ratio=Fraction(11, 8)), (Shape(3, 33, 65),), 3),
        (PooledConv(), (ODD,), 6),
        (PooledConv(norm=False, bias=True), (EVEN,), 6),
        (Gate(), (EVEN, Shape(8, 6, 8)), 8),
        (Blend(), (EVEN, Shape(8, 6, 8), Shape(8, 6, 8)), 8),
    ],
    ids=repr,
)
def test_joining_and_pooling_arithmetic_equals_the_built_module(
    op: object, inputs: tuple[Shape, ...], channels: int
) -> None:
    check_operator(OpCall(op=op, inputs=inputs, channels=channels))  # type: ignore[arg-type]


def test_fasterseg_table_1_macs_of_a_3x3_convolution() -> None:
    call = OpCall(op=Conv(), inputs=(Shape(256, 32, 64),), channels=256)
    assert call.macs() == 1_207_959_552  # 1.21 G
    assert call.params() - 2 * 256 == 589_824  # 0.59 M weights


@pytest.mark.parametrize("size", [(9, 12), (8, 11)])
def test_same_padding_puts_the_odd_pixel_at_the_far_edge(size: tuple[int, int]) -> None:
    call = OpCall(
        op=Conv(same=True, norm=False, activation="none"), inputs=(Shape(1, *size),), channels=1, stride=2
    )
    module = call.op.module(call)
    torch.nn.init.ones_(module.conv1.weight)
    image = torch.rand(1, 1, *size)
    total = [max((-(-side // 2) - 1) * 2 + 3 - side, 0) for side in size]
    padded = torch.nn.functional.pad(
        image, (total[1] // 2, total[1] - total[1] // 2, total[0] // 2, total[0] - total[0] // 2)
    )
    torch.testing.assert_close(
        module(image), torch.nn.functional.conv2d(padded, torch.ones(1, 1, 3, 3), stride=2)
    )


def test_pre_activation_comes_first() -> None:
    call = OpCall(op=Conv(first=True, norm=False), inputs=(Shape(2, 4, 4),), channels=2)
    assert list(dict(call.op.module(call).named_children())) == ["act1", "conv1"]


@pytest.mark.parametrize(
    ("op", "channels"),
    [
        (Conv(groups=3), 8),
        (InvertedBottleneck(groups=3), 8),
        (Ghost(), 7),
        (Shuffle(), 7),
        (FactorisedReduction(), 7),
    ],
    ids=repr,
)
def test_widths_that_do_not_divide_are_refused(op: object, channels: int) -> None:
    with pytest.raises(InvalidArchitecture, match=r"channels|width"):
        OpCall(op=op, inputs=(EVEN,), channels=channels, stride=2).output()  # type: ignore[arg-type]


def test_counting_does_not_import_torch() -> None:
    program = (
        "import sys; from segtailor.core.plan import OpCall, Shape; from segtailor.ops import Conv\n"
        "assert OpCall(op=Conv(), inputs=(Shape(8, 4, 4),), channels=8).macs() == 9216\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_every_registered_operator_is_a_frozen_dataclass_with_a_docstring() -> None:
    for name in OPERATORS.names():
        kind = OPERATORS.get(name)
        assert kind.__dataclass_params__.frozen, name  # type: ignore[attr-defined]
        assert kind.__doc__, name
