"""What a space must satisfy over random architectures: round trips, valid plans, exact counts, contained calls."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch
from torch.utils.flop_counter import FlopCounterMode

from segtailor.core.plan import OpCall, Shape, count
from segtailor.core.space import (
    Architecture,
    SearchSpace,
    architecture_document,
    fingerprint_of,
    parse_architecture,
)
from segtailor.core.variation import sample
from segtailor.nets.network import Network
from segtailor.testing.operators import count_params, expect

SIZES = ((64, 64), (65, 97), (96, 128))


def check_space(space: SearchSpace, *, draws: int, seed: int = 0, image: Shape, classes: int = 4) -> None:
    """Check `draws` random architectures; building and running them is left to `check_architecture`."""
    calls = set(space.calls(image, classes))
    rng = Random(seed)
    for _ in range(draws):
        check_plain(space, sample(space, rng), calls=calls, image=image, classes=classes)


def check_plain(
    space: SearchSpace, arch: Architecture, *, calls: set[OpCall], image: Shape, classes: int
) -> None:
    """Check everything about one architecture that needs no weights."""
    expect("round trip by picks", arch, space.architecture(space.picks(arch)), arch)
    again = parse_architecture(architecture_document(arch))
    expect("round trip by JSON", arch, again, arch)
    expect("fingerprint", arch, fingerprint_of(again), fingerprint_of(arch))
    plan = space.plan(arch, image, classes)
    outside = [call for call in plan.calls if call not in calls]
    if outside:
        raise AssertionError(f"{arch} calls {outside[0]}, which is not among the space's calls")


def check_architecture(
    space: SearchSpace, arch: Architecture, *, sizes: Sequence[tuple[int, int]] = SIZES, classes: int = 4
) -> None:
    """Build one architecture: counts equal the module's, and it runs at every size, odd ones included."""
    shape = Shape(3, *sizes[0])
    plan = space.plan(arch, shape, classes)
    full = Network(plan)
    expect("training parameters", arch, count_params(full), count(plan).train_params)
    network = Network(plan.select()).eval()
    for height, width in sizes:
        expected = space.plan(arch, Shape(3, height, width), classes).select()
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            logits = network(torch.randn(1, 3, height, width))
        expect("multiply-accumulates", arch, counter.get_total_flops() // 2, expected.macs())
        expect("output shape", arch, Shape(*logits.shape[1:]), expected.shape(expected.outputs["main"]))
        if not bool(torch.isfinite(logits).all()):
            raise AssertionError(f"{arch}: output is not finite at {height}x{width}")
