import pytest
import torch

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import OpCall, Shape
from segtailor.deploy.fold import operator_form
from segtailor.ops.attention import Likeness, SqueezeExcite, UnreadAttention
from segtailor.testing import check_operator

SOURCE = Shape(8, 5, 7)
GATES = [
    SqueezeExcite(),
    SqueezeExcite(hidden=3, gate="hardsigmoid"),
    SqueezeExcite(bias=False, norm=True),
    SqueezeExcite(hidden=4, bias=False, keep=True),
]


@pytest.mark.parametrize("op", GATES, ids=repr)
def test_squeeze_and_excite_counts_as_built(op: SqueezeExcite) -> None:
    check_operator(OpCall(op=op, inputs=(SOURCE,), channels=8))


def test_channels_are_weighed_by_the_mean_alone() -> None:
    call = OpCall(op=SqueezeExcite(hidden=3), inputs=(SOURCE,), channels=8)
    module = call.op.module(call).eval()
    image = torch.randn(2, *SOURCE)
    shuffled = image.flatten(2)[:, :, torch.randperm(35)].view_as(image)
    with torch.no_grad():
        ratio, other = module(image) / image, module(shuffled) / shuffled
    torch.testing.assert_close(ratio, ratio[:, :, :1, :1].expand_as(ratio))
    torch.testing.assert_close(ratio, other)
    assert bool(((ratio > 0) & (ratio < 1)).all())


def test_keeping_adds_the_input() -> None:
    plain = OpCall(op=SqueezeExcite(), inputs=(SOURCE,), channels=8)
    kept = OpCall(op=SqueezeExcite(keep=True), inputs=(SOURCE,), channels=8)
    one, two = plain.op.module(plain).eval(), kept.op.module(kept).eval()
    two.load_state_dict(one.state_dict())
    image = torch.randn(1, *SOURCE)
    torch.testing.assert_close(two(image), image + one(image))


def test_the_norm_of_a_gate_folds() -> None:
    call = OpCall(op=SqueezeExcite(bias=False, norm=True), inputs=(SOURCE,), channels=8)
    assert not [part for part in operator_form(call).modules() if isinstance(part, torch.nn.BatchNorm2d)]


@pytest.mark.parametrize("other", [SOURCE, Shape(8, 3, 4)])
def test_likeness_counts_as_built(other: Shape) -> None:
    check_operator(OpCall(op=Likeness(), inputs=(SOURCE, other), channels=1))


def test_likeness_is_high_where_maps_agree() -> None:
    call = OpCall(op=Likeness(), inputs=(SOURCE, SOURCE), channels=1)
    image = torch.randn(1, *SOURCE)
    module = call.op.module(call)
    assert bool((module(image, image) > 0.5).all())
    torch.testing.assert_close(module(image, -image), 1 - module(image, image))


def test_what_cannot_be_compared_is_refused() -> None:
    for inputs, channels in (((SOURCE, Shape(4, 5, 7)), 1), ((SOURCE,), 1), ((SOURCE, SOURCE), 8)):
        with pytest.raises(InvalidArchitecture, match="two maps of equal width"):
            OpCall(op=Likeness(), inputs=inputs, channels=channels).output()
    with pytest.raises(InvalidArchitecture, match="0 or more"):
        SqueezeExcite(hidden=-1)


def test_unread_kernels_are_counted_frozen_and_change_nothing() -> None:
    call = OpCall(op=UnreadAttention(width=6), inputs=(Shape(8, 3, 4),), channels=8)
    check_operator(call)
    module = call.op.module(call)
    image = torch.randn(1, 8, 3, 4)
    assert torch.equal(module(image), image)
    assert call.params() == 72
    assert not any(parameter.requires_grad for parameter in module.parameters())
