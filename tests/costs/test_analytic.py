"""Costs that need no device."""

from __future__ import annotations

from random import Random

import pytest

from segtailor import tables
from segtailor.core.errors import UserError
from segtailor.core.plan import IMAGE, Plan, PlanBuilder, Shape, count
from segtailor.core.registry import SPACES
from segtailor.core.variation import sample
from segtailor.costs.analytic import ActivationMemory, Macs, Params, live_values
from segtailor.ops import Conv, Sum
from segtailor.spaces import networks

SIZE = Shape(3, 64, 128)


def residual() -> Plan:
    """image (3 x 8 x 8) -> a (4) -> b (4) -> a + b, with a train-only head on b."""
    build = PlanBuilder(Shape(3, 8, 8))
    first = build.add("a", Conv(), IMAGE, channels=4)
    second = build.add("b", Conv(), first)
    head = build.add("head", Conv(), second, channels=100)
    main = build.add("sum", Sum(), first, second)
    return build.plan(outputs={"main": main, "aux": head}, align_corners=False)


def test_memory_counts_maps_while_they_are_alive() -> None:
    # a runs: image + a; b runs: a + b (the image is gone); sum runs: a + b + sum.
    assert live_values(residual()) == [64 * 7, 64 * 8, 64 * 12]
    assert ActivationMemory().of(residual()) == 4 * 64 * 12
    assert ActivationMemory(bytes_per_value=2).of(residual()) == 2 * 64 * 12


def test_memory_of_a_chain_is_its_widest_pair() -> None:
    build = PlanBuilder(Shape(1, 1, 1))
    source = IMAGE
    for index, width in enumerate((5, 9, 2, 8, 1)):
        source = build.add(f"n{index}", Conv(kernel=1), source, channels=width)
    plan = build.plan(outputs={"main": source}, align_corners=False)
    assert live_values(plan) == [6, 14, 11, 10, 9]


def test_a_plan_that_only_passes_the_image_on_needs_the_image() -> None:
    plan = Plan(image=Shape(3, 4, 4), nodes=(), outputs={"main": IMAGE})
    assert live_values(plan) == [48]


def test_values_of_zero_bytes_are_refused() -> None:
    with pytest.raises(UserError, match="at least 1 byte"):
        ActivationMemory(bytes_per_value=0)


@pytest.mark.parametrize("name", tables.SPACES)
def test_counts_are_additive_and_ignore_what_is_not_deployed(name: str) -> None:
    space = SPACES.get(name)()
    plan = space.plan(sample(space, Random(0)), SIZE, 4)
    deployed = count(plan.deployed())
    for cost, expected in ((Macs(), deployed.macs), (Params(), deployed.params)):
        assert cost.of(plan) == expected
        assert cost.of(plan) == sum(cost.price(call) for call in plan.calls)


@pytest.mark.parametrize("name", tables.SPACES)
def test_the_peak_lies_between_the_largest_node_and_everything(name: str) -> None:
    space = SPACES.get(name)()
    plan = space.plan(sample(space, Random(1)), SIZE, 4).deployed()
    sizes = {node.name: _values(plan.shape(node.name)) for node in plan.nodes}
    sizes[IMAGE] = _values(plan.image)
    largest = max(sum(sizes[source] for source in {*node.inputs, node.name}) for node in plan.nodes)
    assert largest <= max(live_values(plan)) <= sum(sizes.values())


def test_memory_shrinks_with_the_image() -> None:
    small, large = (networks.expand("lpsnet-s", image=size, classes=19) for size in ((256, 512), (512, 1024)))
    assert 3.5 < ActivationMemory().of(large) / ActivationMemory().of(small) < 4.5


def _values(shape: Shape) -> int:
    return shape.channels * shape.height * shape.width
