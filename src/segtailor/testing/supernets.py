"""What a supernet must satisfy over random architectures: it equals the networks and the costs it stands for."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from random import Random
from typing import Protocol

import torch
from torch import Tensor, nn

from segtailor.core.plan import OpCall, Shape
from segtailor.core.space import Architecture, SearchSpace
from segtailor.core.variation import sample
from segtailor.nets.network import Network
from segtailor.nets.relax import one_hot_weights
from segtailor.nets.supernet import Relaxable, Supernet
from segtailor.testing.operators import expect
from segtailor.testing.spaces import check_plain

TOLERANCE = 1e-5  # of the largest logit, or of 1 where logits are smaller


class RelaxableSpace(SearchSpace, Relaxable, Protocol):
    """A space that has a supernet."""


def check_supernet(
    space: RelaxableSpace, *, image: Shape, classes: int = 4, draws: int = 5, seed: int = 0
) -> None:
    """Check the four invariants over `draws` random architectures of a space."""
    rng = Random(seed)
    supernet = space.supernet(image, classes)
    check_architectures(
        space, supernet, [sample(space, rng) for _ in range(draws)], image=image, classes=classes
    )


def check_architectures(
    space: RelaxableSpace,
    supernet: Supernet,
    architectures: Iterable[Architecture],
    *,
    image: Shape,
    classes: int,
) -> None:
    """Check the four invariants for given architectures: outputs, costs, round trips, calls."""
    module = as_module(supernet).eval()
    scramble(module, seed=1)
    calls = set(space.calls(image, classes))
    pixels = torch.randn(1, *image, generator=torch.Generator().manual_seed(2))
    for arch in architectures:
        check_plain(space, arch, calls=calls, image=image, classes=classes)
        expect("discretised picks", arch, _discretised(space, arch), space.architecture(space.picks(arch)))
        check_outputs(space, supernet, arch, pixels, classes=classes)
        check_cost(space, supernet, arch, image=image, classes=classes)


def check_outputs(
    space: SearchSpace, supernet: Supernet, arch: Architecture, pixels: Tensor, *, classes: int
) -> None:
    """Check that one-hot weights give what the extracted network gives."""
    network = Network(space.plan(arch, Shape(*pixels.shape[1:]), classes)).eval()
    scramble(network, seed=3)  # so that weights which were not transferred show
    supernet.transfer(arch, network)
    weights = one_hot_weights(space.decisions, space.picks(arch))
    with torch.no_grad():
        outputs, wanted = supernet.forward(pixels, weights), network.forward_all(pixels)
    expect("outputs", arch, sorted(outputs), sorted(wanted))
    for name, logits in wanted.items():
        limit = TOLERANCE * max(1.0, float(logits.abs().max()))
        error = float((outputs[name] - logits).abs().max())
        if not error <= limit:
            raise AssertionError(f"{arch}: output '{name}' is off by {error:.2e}; allowed: {limit:.2e}")


def check_cost(
    space: SearchSpace, supernet: Supernet, arch: Architecture, *, image: Shape, classes: int
) -> None:
    """Check that one-hot weights cost what the plan costs, under a price that tells every call apart."""
    weights = one_hot_weights(space.decisions, space.picks(arch))
    weights = {name: row.double() for name, row in weights.items()}
    wanted = sum(arbitrary_price(call) for call in space.plan(arch, image, classes).calls)
    got = float(supernet.cost(weights, arbitrary_price))
    if abs(got - wanted) > 1e-9 * wanted:
        raise AssertionError(f"{arch}: the supernet costs {got}, the plan {wanted}")


def arbitrary_price(call: OpCall) -> float:
    """Return a price that is the same for equal calls and, nearly always, different for different ones."""
    return 1 + zlib.crc32(repr(call).encode()) / 2**32


def scramble(module: nn.Module, *, seed: int) -> None:
    """Give every weight and statistic a random value of sensible size."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if not value.is_floating_point():
                continue
            draw = torch.randn(value.shape, generator=generator)
            if name.endswith("running_var"):
                value.copy_(0.5 + draw.abs())
            elif value.dim() == 4:
                value.copy_(draw * (2 / value[0].numel()) ** 0.5)
            else:
                value.copy_(0.1 * draw + (1 if name.endswith("weight") else 0))


def as_module(supernet: Supernet) -> nn.Module:
    """Return the supernet as the module that it must be."""
    if not isinstance(supernet, nn.Module):
        raise AssertionError(f"a supernet must be a torch module; {type(supernet).__name__} is not")
    return supernet


def _discretised(space: RelaxableSpace, arch: Architecture) -> Architecture:
    """Decode probabilities that lean towards an architecture."""
    picks = space.picks(arch)
    leaning = {
        decision.name: [
            0.6 if index == picks[decision.name] else 0.4 / len(decision.options)
            for index in range(len(decision.options))
        ]
        for decision in space.decisions
    }
    return space.architecture(space.discretise(leaning))
