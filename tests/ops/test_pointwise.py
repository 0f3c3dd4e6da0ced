import pytest
import torch

from segtailor.core.plan import OpCall, Shape
from segtailor.ops.conv import Activation
from segtailor.ops.pointwise import Activate, Norm
from segtailor.testing import check_operator

ODD = Shape(6, 5, 7)


@pytest.mark.parametrize("activation", ["relu", "hardswish", "hardsigmoid", "sigmoid", "none"])
def test_arithmetic_equals_the_built_module(activation: Activation) -> None:
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
