import copy

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import segtailor
from segtailor.core.errors import Unsupported
from segtailor.core.plan import IMAGE, PlanBuilder, Shape
from segtailor.deploy.fold import fold_branches
from segtailor.nets.network import Network, PartialNetwork, initialise
from segtailor.nets.reparam import plain_form, with_branches
from segtailor.ops import Conv, Sum
from segtailor.spaces import networks
from segtailor.spaces.decoder_cell import decode
from segtailor.spaces.decoder_cell.encoder_weights import taps

ARCH = decode(
    [[[3, 3], [3, 2], [3, 0]], [8, [0, 0, 5, 2], [0, 2, 8, 8], [0, 5, 1, 4]]], channels=4, repeats=1
)


def diamond() -> Network:
    build = PlanBuilder(Shape(3, 16, 16))
    stem = build.add("stem", Conv(), "image", channels=4, stride=2)
    left = build.add("left", Conv(kernel=1), stem)
    right = build.add("right", Conv(), stem)
    spare = build.add("spare", Conv(kernel=1), stem, channels=7)
    total = build.add("total", Sum(), left, right)
    aux = build.add("aux_head", Conv(kernel=1), left, channels=2)
    return Network(
        build.plan(outputs={"main": total, "aux": aux}, align_corners=False, dormant=[spare])
    ).eval()


def test_the_interpreter_computes_what_the_plan_says() -> None:
    network, image = diamond(), torch.randn(2, 3, 16, 16)
    nodes = network.nodes
    stem = nodes["stem"](image)
    torch.testing.assert_close(network(image), nodes["left"](stem) + nodes["right"](stem))
    everything = network.forward_all(image)
    assert list(everything) == ["main", "aux"]
    torch.testing.assert_close(everything["aux"], nodes["aux_head"](nodes["left"](stem)))


def test_the_main_output_does_not_pay_for_auxiliary_ones() -> None:
    network = diamond()
    called = []
    network.nodes["aux_head"].register_forward_hook(lambda *_: called.append(1))
    network(torch.randn(1, 3, 16, 16))
    assert not called
    network.forward_all(torch.randn(1, 3, 16, 16))
    assert called == [1]


def test_dormant_weights_are_built_and_frozen() -> None:
    network = diamond()
    assert not any(parameter.requires_grad for parameter in network.nodes["spare"].parameters())
    network.train()
    network(torch.randn(2, 3, 16, 16)).sum().backward()
    assert all(
        p.grad is not None for n, p in network.named_parameters() if "spare" not in n and "aux" not in n
    )


def test_a_copy_does_not_share_weights() -> None:
    network = diamond()
    other = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    image = torch.randn(1, 3, 16, 16)
    assert not torch.allclose(network(image), other(image))
    torch.testing.assert_close(other(image), copy.deepcopy(other)(image))


def test_initial_weights_depend_on_the_seed_alone() -> None:
    one, two = diamond(), diamond()
    initialise(one, 3)
    initialise(two, 3)
    for first, second in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)
    initialise(two, 4)
    assert not torch.equal(one.nodes["stem"].conv1.weight, two.nodes["stem"].conv1.weight)


@pytest.mark.parametrize("name", segtailor.architectures())
def test_counts_of_published_networks_equal_the_built_module(name: str) -> None:
    count = segtailor.count(name, image=(64, 128))
    with torch.device("meta"):  # shapes are all that is counted
        full, network = segtailor.create(name, outputs="all"), segtailor.create(name)
        image = torch.zeros(1, 3, 64, 128)
    assert sum(parameter.numel() for parameter in full.parameters()) == count.train_params
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(image)
    assert counter.get_total_flops() // 2 == count.macs


@pytest.mark.parametrize("name", ["lpsnet-step2", "fasterseg-student", "squeezenas-lat-small"])
def test_inference_parameters_equal_the_folded_module(name: str) -> None:
    folded = fold_branches(segtailor.create(name))
    assert sum(parameter.numel() for parameter in folded.parameters()) == segtailor.count(name).params


def test_an_exported_network_has_no_trace_of_the_interpreter() -> None:
    network = segtailor.create("lpsnet-step0")
    graph = torch.export.export(network, (torch.zeros(1, 3, 64, 64),)).graph
    targets = {str(node.target).split(".")[1] for node in graph.nodes if node.op == "call_function"}
    assert targets <= {"conv2d", "batch_norm", "relu", "upsample_bilinear2d"}


@pytest.mark.parametrize("name", ["lpsnet-step6", "lpsnet-step0"])
def test_branched_training_ends_in_a_plain_network_of_the_same_function(name: str) -> None:
    network = with_branches(segtailor.create(name, classes=4), seed=1).train()
    for _ in range(2):
        network(torch.randn(2, 3, 64, 64))
    network.eval()
    plain = plain_form(network)
    assert plain.plan == segtailor.create(name, classes=4).plan
    image = torch.randn(1, 3, 64, 96)
    torch.testing.assert_close(plain(image), network(image), rtol=1e-3, atol=1e-4)
    assert sum(p.numel() for p in network.parameters()) == network.plan.train_params()


def test_branches_start_from_the_given_kernels() -> None:
    source = segtailor.create("lpsnet-step0", classes=4)
    rich = with_branches(source, seed=0)
    block = "path0_stage1_block0"
    torch.testing.assert_close(rich.nodes[block].conv.weight, source.nodes[block].conv.weight)
    assert isinstance(rich.nodes[block].point, nn.Conv2d)


def test_an_absurd_image_size_is_refused() -> None:
    with pytest.raises(segtailor.spaces.networks.InvalidArchitecture, match="image"):
        networks.expand("lpsnet-s", image=(0, 10))
    with pytest.raises(segtailor.spaces.networks.InvalidArchitecture, match="classes"):
        networks.expand("lpsnet-s", image=(64, 64), classes=0)


def test_encoder_and_decoder_together_are_the_network() -> None:
    network = segtailor.create(ARCH, classes=3, outputs="all")
    names = taps(network.plan)
    encoder = PartialNetwork(network, inputs=(IMAGE,), outputs={name: name for name in names})
    decoder = PartialNetwork(network, inputs=names, outputs=network.plan.outputs)
    image = torch.randn(2, 3, 33, 64)
    with torch.no_grad():
        found, wanted = decoder(encoder.eval()({IMAGE: image})), network.forward_all(image)
    assert set(found) == {"main", "aux0", "aux1", "aux2"}
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    owned = {id(parameter) for parameter in decoder.parameters()}
    assert not owned & {id(parameter) for parameter in encoder.parameters()}


def test_a_part_that_needs_what_is_not_given_is_refused() -> None:
    network = segtailor.create(ARCH, classes=3)
    with pytest.raises(Unsupported, match="also reads the image"):
        PartialNetwork(network, inputs=taps(network.plan)[1:], outputs=network.plan.outputs)
