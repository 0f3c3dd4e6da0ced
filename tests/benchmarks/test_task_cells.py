"""Published decoders against random cells: the rivals cost as much and have the same encoder."""

from typing import Any

from benchmarks.task_cells import COST_TOLERANCE, rivals

from segtailor.core.plan import Shape
from segtailor.spaces.networks import plan_of, resolve


def test_rivals_cost_as_much_as_the_published_network() -> None:
    arch: Any = resolve("auxcells-arch2")
    image = Shape(3, 64, 64)
    wanted = plan_of(arch, image, 1).macs()
    found = rivals(arch, image, 1, count=2)
    assert len({str(one) for one in found}) == 2
    for one in found:
        assert (one.encoder, one.channels, one.repeats) == (arch.encoder, arch.channels, arch.repeats)
        assert abs(plan_of(one, image, 1).macs() / wanted - 1) <= COST_TOLERANCE
