"""A simplified network does less and computes the same."""

from random import Random

import pytest
import torch
from torch import nn
from torch.nn import functional

import segtailor
from segtailor.core.plan import PlanBuilder, Shape
from segtailor.core.registry import SPACES
from segtailor.core.variation import sample
from segtailor.deploy.fold import COARSE, convolve_before_enlarging, merge_duplicates, simplify
from segtailor.nets.network import Network, initialise
from segtailor.ops import Conv
from segtailor.ops.combining import Resize, ScaleImage
from segtailor.ops.modules.combining import resized

SMALL = {"squeezenas-lat-small", "lpsnet-step0"}
PUBLISHED = [
    pytest.param(name, marks=[] if name in SMALL else pytest.mark.slow) for name in segtailor.architectures()
]
LINEAR = Conv(kernel=1, norm=False, bias=True, activation="none")


def assert_same(one: nn.Module, other: nn.Module, *size: int) -> None:
    image = torch.randn(1, 3, *size, dtype=torch.float64)
    with torch.no_grad():
        wanted, got = one.double()(image), other.double()(image)
    assert (wanted - got).abs().max() <= 1e-10 * wanted.abs().max()


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_merged_published_network_is_the_same_function(name: str) -> None:
    network = segtailor.create(name, classes=4)
    assert_same(network, simplify(network), 65, 97)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", SPACES.names())
def test_a_merged_random_architecture_is_the_same_function(family: str, seed: int) -> None:
    space = SPACES.get(family)()
    arch = sample(space, Random(seed))
    network = Network(space.plan(arch, Shape(3, 64, 64), 4), architecture=arch)
    initialise(network, 0)
    assert_same(network.eval(), simplify(network), 64, 96)


def test_the_classifier_of_squeezenas_is_computed_before_the_map_is_enlarged() -> None:
    network = segtailor.create("squeezenas-lat-small", classes=4)
    merged = simplify(network)
    assert "decoder_high" + COARSE in merged.nodes
    assert merged.plan.macs() < network.plan.macs()
    assert "decoder_high" + COARSE not in network.nodes  # the given one is left alone


def small_network(*, stride: int, op: Conv = LINEAR, read_twice: bool = False, channels: int = 5) -> Network:
    build = PlanBuilder(Shape(3, 32, 32))
    fine = build.add("fine", Conv(), "image", channels=8, stride=2)
    coarse = build.add("coarse", Conv(), "image", channels=8, stride=stride)
    large = build.add("large", Resize(), coarse, fine)
    point = build.add("point", op, large, channels=channels)
    outputs = {"main": point, "aux": large} if read_twice else {"main": point}
    network = Network(build.plan(outputs=outputs, align_corners=False))
    initialise(network, 0)
    return network.eval()


@pytest.mark.parametrize(
    ("options", "moved"),
    [
        ({"stride": 4}, True),
        ({"stride": 1}, False),  # the resize shrinks: convolving before it would cost more
        ({"stride": 4, "channels": 9}, False),  # more channels would be enlarged
        ({"stride": 4, "read_twice": True}, False),
        ({"stride": 4, "op": Conv(kernel=1, norm=False)}, False),  # a ReLU does not commute
        ({"stride": 4, "op": Conv(kernel=3, norm=False, activation="none")}, False),
    ],
)
def test_a_convolution_moves_only_where_that_is_exact_and_cheaper(options: dict, moved: bool) -> None:
    network = small_network(**options)
    merged = convolve_before_enlarging(network)
    assert ("point" + COARSE in merged.nodes) == moved
    assert_same(network, merged, 40, 56)


def test_the_same_resize_of_the_same_map_is_done_once() -> None:
    from fractions import Fraction

    build = PlanBuilder(Shape(3, 32, 32))
    halves = [build.add(f"half{i}", ScaleImage(ratio=Fraction(1, 2)), "image") for i in range(2)]
    maps = [build.add(f"conv{i}", Conv(norm=False), half, channels=4) for i, half in enumerate(halves)]
    both = build.add("both", Resize(), maps[0], maps[1])
    again = build.add("again", LINEAR, both, channels=3)
    network = Network(build.plan(outputs={"main": again}, align_corners=False))
    initialise(network, 1)
    merged = merge_duplicates(network.eval())
    assert set(network.nodes) - set(merged.nodes) == {"half1"}  # convolutions have weights of their own
    assert_same(network, merged, 32, 48)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(
    ("source", "size"), [((8, 12), (4, 6)), ((1, 1), (5, 7)), ((9, 12), (4, 6)), ((8, 8), (4, 8))]
)
def test_the_cheap_ways_to_resize_give_what_interpolation_gives(
    source: tuple[int, int], size: tuple[int, int], align_corners: bool
) -> None:
    image = torch.randn(2, 3, *source, dtype=torch.float64)
    wanted = functional.interpolate(image, size=size, mode="bilinear", align_corners=align_corners)
    got = resized(image, torch.Size(size), align_corners=align_corners)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
