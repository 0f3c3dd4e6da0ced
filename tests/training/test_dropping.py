"""Stochastic depth and dropout: which sums, how often, the same on average, nothing outside of training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from segtailor.core.errors import UserError
from segtailor.core.plan import Shape
from segtailor.core.space import plan_of
from segtailor.nets.network import Network, initialise
from segtailor.spaces.dilated_residual import DilatedResidual, DilatedResidualArchitecture
from segtailor.spaces.published import published
from segtailor.training.fit import drop_in_training, residual_bodies
from segtailor.training.settings import FitSettings
from tests.training.toys import assert_equal_weights, fit, run

ARCH = DilatedResidualArchitecture(
    stem=4, quarter=4, quarter_blocks=1, eighth=4, dilations=(1, 2, 4), decoder=4, half=3
)
BODIES = ("quarter_block0_conv2", "eighth_block0_conv2", "eighth_block1_conv2", "eighth_block2_conv2")


def network(classes: int = 3) -> Network:
    made = Network(DilatedResidual().plan(ARCH, Shape(3, 32, 32), classes))
    initialise(made, seed=0)
    return made


def test_bodies_are_what_is_added_to_what_they_were_computed_from() -> None:
    assert residual_bodies(network().plan) == BODIES  # and neither decoder: it adds two separate ways
    ready = residual_bodies(plan_of(published("ddrnet-23-slim"), Shape(3, 64, 64), 3))
    assert ready[:2] == ("layer1_1_conv2", "layer1_2_conv2")


@pytest.mark.parametrize(("depth", "channels"), [(0.4, 0.0), (0.0, 0.3), (0.4, 0.3)])
def test_shares_grow_with_depth_and_the_mean_stays(depth: float, channels: float) -> None:
    torch.manual_seed(0)
    made = network()
    last = made.nodes[BODIES[-1]]
    maps = torch.rand(1, 4, 4, 4).expand(4000, 4, 4, 4)
    plain = last(maps)
    drop_in_training(made, depth=depth, channels=channels)
    found = last(maps)
    gone = (found.flatten(2).abs().sum(-1) == 0).float()
    wanted = 1 - (1 - depth) * (1 - channels)
    assert float(gone.mean()) == pytest.approx(wanted, abs=0.03)
    if not channels:
        assert bool((gone == gone[:, :1]).all()), "whole images are left out"
    torch.testing.assert_close(found.mean(0), plain.mean(0), rtol=0.15, atol=0.05)
    first = (made.nodes[BODIES[0]](maps).flatten(2).abs().sum(-1) == 0).float().mean()
    assert float(first) == pytest.approx(1 - (1 - depth / 4) * (1 - channels), abs=0.03)


def test_nothing_is_left_out_of_evaluation() -> None:
    image = torch.rand(2, 3, 32, 32)
    made = network().eval()
    plain = made(image)
    drop_in_training(made, depth=0.9, channels=0.5)
    assert torch.equal(made(image), plain)
    assert list(made.state_dict()) == list(network().state_dict())


@pytest.mark.parametrize("how", [{"stochastic_depth": 0.5}, {"dropout": 0.5}])
def test_a_resumed_run_leaves_out_the_same(how: dict[str, float], tmp_path: Path) -> None:
    whole = run(fit(network(), **how))
    assert not all(
        torch.equal(value, other)
        for value, other in zip(whole.weights().values(), run(fit(network())).weights().values(), strict=True)
    )
    first = fit(network(), **how)
    for step in first.steps():
        first.save(tmp_path)
        if step.done >= 4:
            break
    torch.manual_seed(99)
    second = fit(network(), **how)
    second.load(tmp_path)
    assert_equal_weights(run(second).weights(), whole.weights())


def test_a_network_without_residual_sums_and_impossible_shares_are_refused() -> None:
    with pytest.raises(UserError, match="no such sums"):
        drop_in_training(nn.Conv2d(3, 3, 1), depth=0.1, channels=0.0)
    with pytest.raises(UserError, match=r"stochastic_depth: 1.0 is no share"):
        FitSettings(stochastic_depth=1.0)
    with pytest.raises(UserError, match=r"dropout: -0.1 is no share"):
        FitSettings(dropout=-0.1)
