"""Folding changes the form of a network, never its function."""

from random import Random

import pytest
import torch
from torch import Tensor, nn

import segtailor
from segtailor.core.plan import OpCall, Shape
from segtailor.core.registry import SPACES
from segtailor.core.variation import sample
from segtailor.deploy.fold import fold, fold_norms, inference_form, norm_pairs, operator_form, prune
from segtailor.nets.network import Network, initialise
from segtailor.ops import (
    Conv,
    FactorisedReduction,
    InvertedBottleneck,
    MaxPool,
    PooledConv,
    RepConv,
    Separable,
)
from segtailor.ops.blocks import Bottleneck, Ghost, Residual, Shuffle

SMALL = {"autortnet-a", "fasterseg-student", "squeezenas-lat-small", "squeezenas-mac-xlarge", "lpsnet-s"}
PUBLISHED = [
    pytest.param(name, marks=[] if name in SMALL else pytest.mark.slow) for name in segtailor.architectures()
]


def shaken(module: nn.Module) -> nn.Module:
    """Give every norm statistics and weights as after training: a fresh norm hardly changes anything."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.running_mean, 0, 0.2)
            nn.init.uniform_(part.running_var, 0.5, 1.5)
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, 0, 0.2)
    return module.double().eval()


def norms(module: nn.Module) -> list[str]:
    return [name for name, part in module.named_modules() if isinstance(part, nn.BatchNorm2d)]


def assert_same(one: nn.Module, other: nn.Module, *images: Tensor) -> None:
    with torch.no_grad():
        wanted, got = one(*images), other(*images)
    assert (wanted - got).abs().max() <= 1e-10 * wanted.abs().max()


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_inference_form_of_a_published_network_is_the_same_function(name: str) -> None:
    network = segtailor.create(name, classes=4, outputs="all")
    shaken(network)
    folded = inference_form(network)
    assert_same(network, folded, torch.randn(1, 3, 65, 97, dtype=torch.float64))
    assert set(folded.plan.outputs) == {"main"}
    assert not folded.plan.dormant
    assert norm_pairs(folded, (Shape(3, 64, 128),)) == []
    assert all(
        "pool" in dict(folded.get_submodule(name.rpartition(".")[0]).named_children())
        for name in norms(folded)
    )


@pytest.mark.slow
@pytest.mark.parametrize("family", SPACES.names())
def test_the_inference_form_of_a_random_architecture_is_the_same_function(family: str) -> None:
    space = SPACES.get(family)()
    arch = sample(space, Random(1))
    network = Network(space.plan(arch, Shape(3, 64, 64), 4), architecture=arch)
    initialise(network, 0)
    shaken(network)
    assert_same(network, inference_form(network), torch.randn(1, 3, 64, 64, dtype=torch.float64))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    "op",
    [
        Conv(repeats=2),
        Conv(first=True),
        Conv(same=True, bias=True),
        Conv(groups=4, activation="hardswish"),
        Separable(repeats=2),
        InvertedBottleneck(),
        RepConv(branches=True),
        Residual(),
        Bottleneck(),
        Ghost(),
        Shuffle(),
    ],
    ids=repr,
)
def test_no_norm_is_left_in_a_folded_operator(op: object, stride: int) -> None:
    call = OpCall(op=op, inputs=(Shape(8, 13, 17),), channels=8, stride=stride)  # type: ignore[arg-type]
    assert norms(operator_form(call)) == []
    module = shaken(call.op.module(call))
    if not hasattr(module, "fold"):
        assert_same(module, fold_norms(module, call.inputs), torch.randn(1, 8, 13, 17, dtype=torch.float64))


@pytest.mark.parametrize("joint", ["joint", "each"])
def test_a_norm_over_both_halves_of_a_reduction_folds_into_both(joint: str) -> None:
    call = OpCall(op=FactorisedReduction(norm=joint), inputs=(Shape(8, 12, 16),), channels=6, stride=2)  # type: ignore[arg-type]
    module = shaken(call.op.module(call))
    folded = fold_norms(module, call.inputs)
    assert norms(folded) == []
    assert_same(module, folded, torch.randn(1, 8, 9, 15, dtype=torch.float64))


def test_the_norm_of_a_pooled_convolution_folds_and_that_of_a_max_pool_stays() -> None:
    pooled = OpCall(op=PooledConv(), inputs=(Shape(8, 9, 9),), channels=6)
    assert norms(operator_form(pooled)) == []
    pool = OpCall(op=MaxPool(norm=True), inputs=(Shape(8, 9, 9),), channels=8)
    assert norms(operator_form(pool)) == ["norm"]


class _Shared(nn.Module):
    """The convolution's output is read twice, so its norm must stay a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, image: Tensor) -> Tensor:
        raw = self.conv(image)
        return self.norm(raw) + raw


class _Twice(nn.Module):
    """The convolution runs twice, only once with the norm behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, image: Tensor) -> Tensor:
        return self.conv(self.norm(self.conv(image)))


@pytest.mark.parametrize("kind", [_Shared, _Twice])
def test_a_norm_stays_where_folding_would_change_the_function(kind: type[nn.Module]) -> None:
    module = shaken(kind())
    folded = fold_norms(module, (Shape(4, 8, 8),))
    assert norms(folded) == ["norm"]
    assert_same(module, folded, torch.randn(1, 4, 8, 8, dtype=torch.float64))


def test_folding_leaves_the_given_network_as_it_was() -> None:
    network = segtailor.create("lpsnet-step0", classes=4)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    fold(network)
    assert before.keys() == network.state_dict().keys()
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_the_deployed_network_keeps_weights_and_drops_the_rest() -> None:
    network = segtailor.create("fasterseg-student", classes=4, outputs="all")
    pruned = prune(network)
    image = torch.randn(1, 3, 64, 64)
    assert len(pruned.nodes) < len(network.nodes)
    assert not any(parameter.is_meta for parameter in pruned.parameters())
    with torch.no_grad():
        assert torch.equal(network(image), pruned(image))
