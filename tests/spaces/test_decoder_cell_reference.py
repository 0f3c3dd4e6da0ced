"""The decoder against a second implementation that reads the integer form and the published key names alone."""

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import segtailor
from segtailor.core.variation import sample
from segtailor.nets.network import Network
from segtailor.spaces.decoder_cell import DecoderCell, encode
from tests.support import deterministic

SPACE = DecoderCell(channels=6, repeats=2)
KERNELS = {0: (1, 1), 1: (3, 1), 2: (3, 1), 3: (5, 1), 5: (3, 3), 6: (3, 12), 7: (3, 3), 8: (5, 6)}
SEPARABLE = (2, 3, 7, 8)


class Reference:
    """Interprets [connections, cell] over a state dictionary in the authors' layout."""

    def __init__(self, state: Mapping[str, Tensor], sequence: list[Any], repeats: int) -> None:
        self.state, self.repeats = state, repeats
        self.connections, self.cell = sequence

    def conv(self, image: Tensor, key: str, *, dilation: int = 1, depthwise: bool = False) -> Tensor:
        weight = self.state[f"{key}.weight"]
        padding = dilation * (weight.shape[-1] // 2)
        groups = image.shape[1] if depthwise else 1
        bias = self.state.get(f"{key}.bias")
        return functional.conv2d(image, weight, bias, padding=padding, dilation=dilation, groups=groups)

    def norm(self, image: Tensor, key: str) -> Tensor:
        parts = [self.state[f"{key}.{name}"] for name in ("running_mean", "running_var", "weight", "bias")]
        return functional.relu(functional.batch_norm(image, *parts))

    def unit(self, image: Tensor, key: str, dilation: int = 1) -> Tensor:
        return self.norm(self.conv(image, f"{key}.0", dilation=dilation), f"{key}.1")

    def operation(self, image: Tensor, number: int, key: str) -> Tensor:
        if number >= 9:
            return image * (10 - number)
        if number == 4:
            pixel = self.unit(image.mean((2, 3), keepdim=True), f"{key}.conv1x1")
            return functional.interpolate(pixel, size=image.shape[2:], mode="bilinear")
        dilation = KERNELS[number][1]
        if number not in SEPARABLE:
            return self.unit(image, key, dilation)
        for repeat in range(self.repeats):
            start = f"{key}.op.sep_{repeat}"
            image = self.conv(image, f"{start}.0", dilation=dilation, depthwise=True)
            image = self.norm(self.conv(image, f"{start}.1"), f"{start}.2")
        return image

    def run_cell(self, image: Tensor, key: str) -> Tensor:
        pool, read = [image, self.operation(image, self.cell[0], f"{key}._ops.0")], set()
        for first, second, first_op, second_op in self.cell[1:]:
            slot = len(pool) - 1
            one = self.operation(pool[first], first_op, f"{key}._ops.{slot}")
            two = self.operation(pool[second], second_op, f"{key}._ops.{slot + 1}")
            pool += [one, two, one + two]
            read |= {first, second}
        return sum((pool[index] for index in (1, 4, 7, 10) if index not in read), torch.zeros(1))

    def __call__(self, taps: list[Tensor]) -> dict[str, Tensor]:
        pool = [self.unit(tap, f"decoder.adapt{level + 1}") for level, tap in enumerate(taps)]
        outputs = {}
        for block, inputs in enumerate(self.connections):
            start = f"decoder.cells.{block}"
            sides = []
            for side, index in enumerate(inputs, start=1):
                worked = self.run_cell(pool[index], f"{start}.op_{side}")
                sides.append(self.unit(worked, f"{start}.agg.branch_{side}"))
            one, two = same_size(*sides)
            pool.append(one + two)
            auxiliary = self.run_cell(pool[-1], f"decoder.aux_clfs.{block}.aux_cell")
            outputs[f"aux{block}"] = self.conv(auxiliary, f"decoder.aux_clfs.{block}.aux_clf")
        read = {index for inputs in self.connections for index in inputs}
        first, *others = [pool[index] for index in (4, 5, 6) if index not in read]
        for other in others:
            first = torch.cat(same_size(first, other), dim=1)
        outputs["main"] = self.conv(self.unit(first, "decoder.pre_clf"), "decoder.conv_clf")
        return outputs


def same_size(one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
    """Resize the smaller of two maps to the larger."""
    if one.shape[2] >= two.shape[2]:
        return one, functional.interpolate(two, size=one.shape[2:], mode="bilinear")
    return functional.interpolate(one, size=two.shape[2:], mode="bilinear"), two


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 12))]
)
def test_random_decoders_equal_a_second_implementation_in_every_output(seed: int) -> None:
    arch = sample(SPACE, Random(seed))
    full = segtailor.create(arch, classes=3, outputs="all")
    names = SPACE.published_names(full, arch).names
    own = full.state_dict()
    state = {goal: deterministic(goal, tuple(own[key].shape)) for key, (goal,) in names.items()}
    segtailor.load_published(full, state)
    nodes = {f"tap{level}": full.plan.by_name[f"adapt{level}"].inputs[0] for level in range(4)}
    probe = Network(full.plan.with_nodes(full.plan.nodes, outputs={**full.plan.outputs, **nodes})).eval()
    probe.load_state_dict(full.state_dict())
    with torch.no_grad():
        found = probe.forward_all(torch.randn(1, 3, 97, 66))
        wanted = Reference(state, encode(arch), arch.repeats)([found[f"tap{level}"] for level in range(4)])
    for name, expected in wanted.items():
        torch.testing.assert_close(
            found[name], expected, rtol=1e-4, atol=1e-5 * max(1, expected.abs().max().item())
        )
