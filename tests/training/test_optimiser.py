"""Optimisers: a separate one for the encoder, norms that keep their statistics, averaged weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import segtailor
from segtailor.core.errors import UserError
from segtailor.data.batches import Batch
from segtailor.nets.network import Network
from segtailor.spaces.decoder_cell import decode
from segtailor.tasks.segmentation.loss import SegmentationLoss
from segtailor.training.engine import Engine
from segtailor.training.optimiser import Average, make_encoder_optimiser, split_parameters
from segtailor.training.settings import EncoderSettings, FitSettings
from segtailor.training.state import read_state, write_state
from tests.training.toys import CPU, Toy

SEQUENCE = [[[3, 3], [3, 2], [3, 0]], [0, [0, 0, 0, 0], [0, 2, 0, 0], [0, 5, 0, 0]]]
SETTINGS = FitSettings(
    batch=2, optimiser="adam", lr=1e-2, weight_decay=0.0, encoder=EncoderSettings(lr=1e-3, weight_decay=0.0)
)


def network() -> Network:
    torch.manual_seed(0)
    return segtailor.create(decode(SEQUENCE, channels=4, repeats=1, auxiliary="none"), classes=3).train()


def batch() -> Batch:
    torch.manual_seed(1)
    return Batch(torch.randn(2, 3, 64, 64), torch.randint(0, 3, (2, 64, 64), dtype=torch.uint8))


def engine(settings: FitSettings, net: Network) -> Engine:
    return Engine(net, SegmentationLoss(settings.loss, classes=3, device=CPU), settings, device=CPU)


def moved(settings: FitSettings) -> dict[str, float]:
    """Return the largest change of any weight in encoder and decoder after one step."""
    net = network()
    before = {name: value.clone() for name, value in net.named_parameters()}
    engine(settings, net).step(batch(), rate=settings.lr)
    change: dict[str, float] = {"encoder": 0.0, "decoder": 0.0}
    for name, value in net.named_parameters():
        side = "encoder" if name.startswith("nodes.encoder") else "decoder"
        change[side] = max(change[side], float((value - before[name]).detach().abs().max()))
    return change


def test_each_side_has_its_own_optimiser_and_rate() -> None:
    net = network()
    decoder, encoder = split_parameters(net, SETTINGS)
    assert len(decoder) + len(encoder) == sum(1 for item in net.parameters() if item.requires_grad)
    second: Any = make_encoder_optimiser(net, SETTINGS)
    assert isinstance(second, torch.optim.SGD)
    assert isinstance(engine(SETTINGS, net).optimiser, torch.optim.Adam)
    change = moved(SETTINGS)
    assert change["decoder"] == pytest.approx(1e-2, rel=0.01)  # Adam's first step is its rate
    assert change["encoder"] > 0
    slower = moved(replace(SETTINGS, encoder=replace(SETTINGS.encoder or EncoderSettings(), lr=1e-5)))
    assert slower["encoder"] == pytest.approx(change["encoder"] / 100, rel=0.05)


def test_the_sides_are_clipped_apart() -> None:
    tight = replace(SETTINGS, clip=0.1)
    net = network()
    own = engine(tight, net)
    before = [value.clone() for value in split_parameters(net, tight)[1]]
    own.step(batch(), rate=tight.lr)
    change = [value - old for value, old in zip(split_parameters(net, tight)[1], before, strict=True)]
    total = torch.stack([item.detach().norm() for item in change]).norm()
    assert float(total) == pytest.approx(1e-3 * 0.1, rel=0.01)  # rate times the whole clipped norm


def test_both_optimisers_are_saved(tmp_path: Path) -> None:
    from segtailor.training.optimiser import load_optimiser, optimiser_state

    net = network()
    own: Any = engine(SETTINGS, net)
    own.step(batch(), rate=1e-2)
    write_state(tmp_path, {"encoder": optimiser_state(own.second)}, {})
    again: Any = engine(SETTINGS, net)
    load_optimiser(again.second, read_state(tmp_path)[0]["encoder"])
    first, second = optimiser_state(own.second), optimiser_state(again.second)
    assert first
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("frozen", [False, True])
def test_frozen_norms_keep_their_statistics_even_after_a_validation(frozen: bool) -> None:
    net = network()
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    before = [norm.running_mean.clone() for norm in norms if norm.running_mean is not None]
    own = engine(replace(SETTINGS, freeze_norms=frozen), net)
    net.train()  # as validation leaves it
    own.step(batch(), rate=1e-2)
    same = [torch.equal(old, norm.running_mean) for old, norm in zip(before, norms, strict=True)]  # type: ignore[arg-type]
    assert all(same) == frozen


def test_impossible_rates_are_refused() -> None:
    with pytest.raises(UserError, match="encoder: lr 0"):
        EncoderSettings(lr=0.0)


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
