"""Averages of weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from segtailor.training.optimiser import Average
from tests.training.toys import Toy


def set_all(network: nn.Module, value: float) -> None:
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(value)


def test_the_mean_follows_the_formula_from_the_first_weights_on() -> None:
    network = Toy()
    set_all(network, 1.0)
    average = Average(network, decay=0.9, warm_up=False)
    expected = 1.0
    for value in (2.0, -1.0, 5.0):
        set_all(network, value)
        average.update()
        expected = 0.9 * expected + 0.1 * value
    for mean in average.state().values():
        torch.testing.assert_close(mean, torch.full_like(mean, expected))


def test_with_warm_up_the_start_is_soon_forgotten() -> None:
    network = Toy()
    set_all(network, 100.0)
    warm, cold = Average(network, decay=0.999), Average(network, decay=0.999, warm_up=False)
    set_all(network, 1.0)
    for _ in range(50):
        warm.update()
        cold.update()
    assert float(warm.state()["head.bias"][0]) < 1.01
    assert float(cold.state()["head.bias"][0]) > 90


def test_applied_changes_the_network_for_a_while_even_through_an_error() -> None:
    network = Toy()
    set_all(network, 1.0)
    average = Average(network, decay=0.5)
    set_all(network, 3.0)
    network.norm.running_mean.fill_(7.0)  # type: ignore[operator,union-attr]
    seen: list[float] = []

    def stumble() -> None:
        with average.applied():
            seen.extend([float(network.head.bias[0].detach()), float(network.norm.running_mean[0])])  # type: ignore[index]
            raise KeyError

    with pytest.raises(KeyError):
        stumble()
    assert seen == [1.0, 7.0]
    assert float(network.head.bias[0].detach()) == 3.0
    assert float(average.state()["head.bias"][0]) == 1.0


def test_statistics_of_norms_are_averaged_where_wanted_and_counters_never() -> None:
    network = Toy()
    network.norm.running_mean.fill_(1.0)  # type: ignore[operator,union-attr]
    average = Average(network, decay=0.75, warm_up=False, norms=True)
    network.norm.running_mean.fill_(5.0)  # type: ignore[operator,union-attr]
    network.norm.num_batches_tracked.fill_(3)  # type: ignore[operator,union-attr]
    average.update()
    with average.applied():
        assert network.norm.running_mean[0] == 2.0  # type: ignore[index]
        assert network.norm.num_batches_tracked == 3
    assert network.norm.running_mean[0] == 5.0  # type: ignore[index]
    assert "norm.num_batches_tracked" not in average.state()
