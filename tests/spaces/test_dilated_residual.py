"""Residual networks at 1/8: counts by hand, invariants over random networks, what they refuse."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import Shape
from segtailor.core.variation import sample
from segtailor.nets.network import Network
from segtailor.spaces.dilated_residual import DilatedResidual, DilatedResidualArchitecture
from segtailor.testing import check_architecture, check_space

SPACE = DilatedResidual()
TINY = DilatedResidual(
    stems=(4, 8), quarters=(4, 8), quarter_blocks=(1, 2), eighths=(8, 16), decoders=(4, 8), halves=(0, 3, 6)
)


def small(**changes: Any) -> DilatedResidualArchitecture:
    values = {
        "stem": 4, "quarter": 6, "quarter_blocks": 1, "eighth": 8, "dilations": (1, 2, 4), "decoder": 5,
    }  # fmt: skip
    return DilatedResidualArchitecture(**{**values, **changes})


def test_parameters_are_those_counted_by_hand() -> None:
    def conv(inputs: int, outputs: int, kernel: int = 3) -> int:
        return kernel**2 * inputs * outputs + 2 * outputs  # norm: scale and shift

    body = conv(3, 4) + conv(4, 6) + 2 * conv(6, 6) + conv(6, 8) + 6 * conv(8, 8)
    decoder = conv(8, 5, 1) + conv(6, 5, 1) + conv(5, 5) + 5 * 3 + 3
    plan = SPACE.plan(small(), Shape(3, 32, 48), 3)
    assert plan.params() == body + decoder + 8 * 3 + 3  # the head at 1/8 is for training


def test_a_decoder_at_half_adds_what_is_counted_by_hand_and_scores_there() -> None:
    image = Shape(3, 32, 48)
    without, plan = (SPACE.plan(small(half=half), image, 3) for half in (0, 7))
    step = (4 * 7 + 14) + (5 * 7 + 14) + (9 * 7 * 7 + 14)  # from the stem, from 1/4, both together
    assert plan.params() == without.params() + step + 3 * (7 - 5)  # the head reads 7 channels instead of 5
    assert Network(plan).eval()(torch.rand(1, *image)).shape[-2:] == (16, 24)


def test_the_space_keeps_its_promises() -> None:
    check_space(TINY, draws=20, image=Shape(3, 64, 96))


def test_random_networks_are_what_their_plan_says() -> None:
    for seed in range(4):
        check_architecture(TINY, sample(TINY, Random(seed)))


def test_every_dilation_rhythm_is_read_back() -> None:
    rng = Random(0)
    for _ in range(200):
        picks = {row.name: rng.randrange(len(row.options)) for row in SPACE.decisions}
        arch = SPACE.architecture(picks)  # with few blocks, two rhythms may be the same
        assert SPACE.architecture(SPACE.picks(arch)) == arch


def test_scores_come_at_a_quarter_and_see_as_far_as_the_dilations_say() -> None:
    torch.manual_seed(0)
    plan = SPACE.plan(small(dilations=(8,)), Shape(3, 256, 256), 2)
    network = Network(plan).eval()
    image = torch.rand(1, 3, 256, 256, requires_grad=True)
    scores = network(image)
    assert scores.shape[-2:] == (64, 64)
    scores[..., scores.shape[-2] // 2, scores.shape[-1] // 2].sum().backward()  # type: ignore[no-untyped-call]
    assert image.grad is not None
    columns = image.grad.abs().sum((0, 1, 2)).nonzero().flatten()
    assert int(columns[-1] - columns[0]) > 2 * 8 * 8  # dilation 8 at stride 8, both ways


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stem": 0}, "stem: 0; allowed: an integer from 1"),
        ({"eighth": True}, "eighth: True"),
        ({"dilations": ()}, "dilations: .*1 to 256 integers"),
        ({"dilations": (1, 0)}, r"dilations\[1\]: 0"),
        ({"half": -1}, "half: -1; allowed: an integer from 0"),
        ({"quarter_blocks": 257}, "quarter_blocks: 257; allowed: an integer from 1 to 256"),
    ],
)
def test_impossible_networks_are_refused_by_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArchitecture, match=message):
        small(**change)


def test_networks_outside_the_options_have_no_picks() -> None:
    arch = SPACE.architecture({row.name: 0 for row in SPACE.decisions})
    with pytest.raises(InvalidArchitecture, match=r"half: 8; this space allows \[0\]"):
        SPACE.picks(replace(arch, half=8))
    with pytest.raises(InvalidArchitecture, match=r"rhythm: .*this space allows"):
        SPACE.picks(
            DilatedResidualArchitecture(
                stem=16, quarter=32, quarter_blocks=1, eighth=48, dilations=(3, 1, 1, 1), decoder=24
            )
        )
