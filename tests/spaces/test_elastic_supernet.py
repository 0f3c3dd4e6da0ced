"""Shared weights of the family `elastic`: every network is a part of the largest one."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

import pytest
import torch

from segtailor.core.errors import Unsupported
from segtailor.core.plan import MAIN, Shape
from segtailor.core.task import Preprocessing, Task
from segtailor.core.variation import sample
from segtailor.nets.network import Network, build, initialise
from segtailor.nets.starts.order import sort_hidden_channels
from segtailor.spaces.elastic import Elastic, ElasticArchitecture
from segtailor.spaces.elastic.supernet import ElasticSupernet, largest_in, without_last_stage
from segtailor.spaces.starts import IMAGENET, open_source, start_network, start_supernet

SPACE = Elastic()
IMAGE = Shape(3, 64, 96)
CLASSES = 3


def supernet(seed: int = 0) -> ElasticSupernet:
    module = SPACE.supernet(IMAGE, CLASSES)
    initialise(module, seed)
    return module


def drawn(number: int, seed: int = 0) -> list[ElasticArchitecture]:
    rng = Random(seed)
    return [sample(SPACE, rng) for _ in range(number)]


def disturb_norms(module: torch.nn.Module, seed: int) -> None:
    """Give norms other scales and statistics than those they begin with."""
    generator = torch.Generator().manual_seed(seed)
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            for name, low in (("weight", 0.5), ("bias", -0.5), ("running_mean", -0.5), ("running_var", 0.5)):
                value = getattr(part, name)
                value.data.copy_(low + torch.rand(value.shape, generator=generator))


@torch.no_grad()
def test_a_part_of_the_weights_computes_what_its_network_computes() -> None:
    shared = supernet().eval()
    disturb_norms(shared, 1)
    images = torch.randn(2, *IMAGE)
    extremes = [largest_in(SPACE), without_last_stage(largest_in(SPACE))]
    for arch in [*extremes, *drawn(8)]:
        network = Network(SPACE.plan(arch, IMAGE, CLASSES), architecture=arch).eval()
        shared.transfer(arch, network)
        torch.testing.assert_close(shared.logits(arch, images), network(images), rtol=0, atol=0)


def test_a_pass_trains_the_leading_channels_and_nothing_else() -> None:
    shared = supernet()
    arch = ElasticArchitecture(
        scale="1/2", depths=(1, 1, 1, 1, 0), expansions=(2, 2, 2, 2, 6), decoder=32, detail=8
    )
    shared.train_on([arch], each=1, seed=0)
    sum(output.square().mean() for output in shared.forward_all(torch.randn(2, *IMAGE)).values()).backward()
    with_gradient = {name for name, value in shared.named_parameters() if value.grad is not None}
    assert not any("stage4" in name or "block1" in name for name in with_gradient)
    assert any("shallow_context." in name for name in with_gradient)
    assert not any(name.startswith("nodes.context.") for name in with_gradient)
    parameters = dict(shared.named_parameters())
    names = [
        name
        for name in with_gradient
        if name.startswith("nodes.stage1_block0.") and parameters[name].dim() == 4
    ]
    assert names
    for name in names:
        gradient = parameters[name].grad
        assert gradient is not None
        used = gradient.flatten(1).abs().sum(1) > 0
        if len(used) == 6 * 24:  # inside of the block: a third of the channels is used
            assert used[: 2 * 24].any()
            assert not used[2 * 24 :].any()


def test_what_a_pass_runs_is_a_function_of_seed_and_number() -> None:
    archs = drawn(40)
    one, other = supernet(), supernet()
    for module in (one, other):
        module.train_on(archs, each=3, seed=7)
    first = [one.drawn() for _ in range(5)]
    other.passes = 3
    assert other.drawn() == first[3]
    for costly, cheap, _ in first:
        assert costly in archs[-10:]
        assert cheap in archs[:10]
    assert len(set(map(tuple, first))) > 1


@torch.no_grad()
def test_sorting_hidden_channels_changes_no_output() -> None:
    network = build(largest_in(SPACE), CLASSES, outputs=(MAIN,)).eval()
    initialise(network, 3)
    disturb_norms(network, 4)
    images = torch.randn(1, *IMAGE)
    before, kernel = (
        network(images),
        network.state_dict()["nodes.stage2_block1.expand.0.weight"].clone()
        if ("nodes.stage2_block1.expand.0.weight" in network.state_dict())
        else next(value.clone() for name, value in network.state_dict().items() if "stage2_block1" in name),
    )
    sort_hidden_channels(network)
    torch.testing.assert_close(network(images), before, rtol=1e-4, atol=1e-4)
    after = {name: value for name, value in network.state_dict().items() if "stage2_block1" in name}
    assert not any(value.shape == kernel.shape and torch.equal(value, kernel) for value in after.values())


@torch.no_grad()
def test_the_largest_network_starts_as_it_would_alone() -> None:
    task, preprocessing = Task(classes=("a", "b", "c")), Preprocessing()
    shared = supernet()
    share = start_supernet(
        shared, space=SPACE, source=open_source(IMAGENET), task=task, preprocessing=preprocessing
    )
    assert share > 0.8
    assert shared.carried
    assert set(shared.carried) <= {name for name, _ in shared.named_parameters()}
    alone = build(largest_in(SPACE), CLASSES, outputs=(MAIN,))
    initialise(alone, 0)
    start_network(alone, IMAGENET, task, preprocessing=preprocessing)
    images = torch.randn(1, *IMAGE)
    maps: list[torch.Tensor] = []
    inside = Network(alone.plan, architecture=alone.architecture)
    shared.transfer(largest_in(SPACE), inside)
    for network in (alone.eval(), inside.eval()):
        network.nodes["stage4_block3"].register_forward_hook(lambda _, __, out: maps.append(out))
        network(images)
    torch.testing.assert_close(maps[0], maps[1], rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_networks_without_the_last_stage_start_too() -> None:
    shared = supernet()
    seen: list[int] = []

    def start(network: Network) -> Collection[str]:
        seen.append(len(network.plan.nodes))
        for parameter in network.parameters():
            parameter.fill_(0.5)
        return ()

    shared.begin(start)
    assert len(set(seen)) == 2
    assert all(bool((value == 0.5).all()) for value in shared.parameters())


def test_options_cannot_be_removed() -> None:
    with pytest.raises(Unsupported, match="share tensors"):
        supernet().remove("scale", 0)
