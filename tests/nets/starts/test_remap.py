"""Weights of one network in another: equal where they must be, chosen channels where the target is narrower."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segtailor.core.plan import IMAGE, MAIN, PlanBuilder, Shape
from segtailor.core.registry import SPACES
from segtailor.core.space import SearchSpace
from segtailor.core.task import Preprocessing
from segtailor.core.variation import sample
from segtailor.nets.network import Network, build, initialise
from segtailor.nets.starts.remap import Donor, carry_weights
from segtailor.ops import Conv, InvertedBottleneck, Residual
from segtailor.spaces.elastic import Elastic
from segtailor.spaces.inverted_residual import InvertedResidual
from segtailor.spaces.networks import resolve
from segtailor.spaces.published import architectures, baselines
from segtailor.spaces.starts import open_source

PLAIN = Preprocessing()
FAMILIES = (
    "squeezenas-mac-small",
    "lpsnet-s",
    "auxcells-arch0",
    "fasterseg-student",
    "autortnet-a",
    "camvid-fast",
    "results/camvid/networks/elastic-lite0.json",
    *baselines(),
)
LARGE = ("auxcells-arch0", "autortnet-a")  # to build; the same kinds of layers are in others
ROOT = Path(__file__).parents[3]
NAMES = ("road", "sky", "car", "tree", "pole")


def built(name: str, classes: int, **options: object) -> Network:
    """Build a network by its name, or by its file in the repository."""
    return build(resolve(ROOT / name if name.endswith(".json") else name), classes, **options)  # type: ignore[arg-type]


def filled(network: Network, seed: int) -> Network:
    """Give a network weights and statistics of norms that are all different."""
    generator = torch.Generator().manual_seed(seed)
    initialise(network, seed)
    for name, value in network.state_dict().items():
        if (
            name.endswith(("norm.weight", "running_var"))
            or ".norm" in name
            or "bn" in name
            or value.ndim == 1
        ) and value.is_floating_point():
            value.copy_(torch.rand(value.shape, generator=generator) + 0.5)
    return network.eval()


def chain(*, blocks: int, width: int, expansion: int = 2, kernel: int = 3, stem: int = 8) -> Network:
    """A stem, a strided inverted residual, `blocks` residual ones, and a classifier."""
    build = PlanBuilder(Shape(3, 64, 64))
    source = build.add("stem", Conv(), IMAGE, channels=stem, stride=2)
    op = InvertedBottleneck(expansion=expansion, kernel=kernel)
    source = build.add("down", op, source, channels=width, stride=2)
    for number in range(blocks):
        source = build.add(f"block{number}", op, source, channels=width)
    head = Conv(kernel=1, norm=False, bias=True, activation="none")
    build.add("head", head, source, channels=5)
    return Network(build.plan(outputs={MAIN: "head"}, align_corners=False))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE)) for name in FAMILIES]
)
def test_a_network_carries_itself_bit_by_bit(name: str) -> None:
    donor, target = (built(name, 11, outputs="all") for _ in range(2))
    filled(donor, 0)
    initialise(target, 1)
    carried = carry_weights(Donor(network=donor, preprocessing=PLAIN), target, preprocessing=PLAIN)
    for key, value in target.state_dict().items():
        if "num_batches" not in key:
            assert torch.equal(value, donor.state_dict()[key]), key
    assert carried.share == 1
    assert {line.split(": ")[1] for line in carried.lines} == {"carried whole"}


def test_every_published_network_has_layers_for_all_its_weights_or_copies_them() -> None:
    small = [name for name in architectures() if name.startswith("squeezenas")]
    assert small
    for name in small:
        donor, target = (build(resolve(name), 3, outputs=(MAIN,)) for _ in range(2))
        filled(donor, 0)
        assert (
            carry_weights(Donor(network=donor, preprocessing=PLAIN), target, preprocessing=PLAIN).share == 1
        )


def test_a_deeper_twin_computes_what_the_donor_computes() -> None:
    donor, target = filled(chain(blocks=2, width=16), 0), chain(blocks=5, width=16)
    initialise(target, 1)
    carry_weights(Donor(network=donor, preprocessing=PLAIN), target, preprocessing=PLAIN)
    image = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        features = {}
        for label, network, node in (("donor", donor, "block1"), ("target", target.eval(), "block4")):
            network.nodes[node].register_forward_hook(
                lambda _, __, out, label=label: features.update({label: out})
            )
            network(image)
    assert torch.allclose(features["donor"], features["target"], atol=1e-6)


def test_a_wider_twin_with_larger_kernels_computes_what_the_donor_computes() -> None:
    donor = filled(chain(blocks=2, width=16), 0)
    target = chain(blocks=2, width=24, expansion=3, kernel=5, stem=12)
    initialise(target, 1)
    carry_weights(Donor(network=donor, preprocessing=PLAIN), target, preprocessing=PLAIN)
    image = torch.randn(2, 3, 64, 64)
    features = []
    for network in (donor, target.eval()):
        network.nodes["block1"].register_forward_hook(lambda _, __, out: features.append(out))
        with torch.no_grad():
            network(image)
    assert torch.allclose(features[0], features[1][:, :16], atol=1e-5)


def test_a_narrower_network_takes_the_slice_of_the_most_important_channels() -> None:
    donor, target = filled(chain(blocks=1, width=16), 0), chain(blocks=1, width=6)
    initialise(target, 1)
    state = donor.state_dict()
    # Channels 3, 4, 7, 9, 12 and 15 of the second space are written with larger scales than all others.
    kept = torch.tensor([3, 4, 7, 9, 12, 15])
    for node in ("down", "block0"):
        state[f"nodes.{node}.body.project_norm.weight"].fill_(0.01)
        state[f"nodes.{node}.body.project_norm.weight"][kept] = 50.0
    carry_weights(Donor(network=donor, preprocessing=PLAIN), target, preprocessing=PLAIN)
    taken = target.state_dict()
    for part in ("weight", "bias", "running_mean", "running_var"):
        key = f"nodes.block0.body.project_norm.{part}"
        assert torch.equal(taken[key], state[key][kept])
    hidden = taken["nodes.block0.body.depth.weight"].shape[0]
    given = state["nodes.block0.body.depth.weight"]
    rows = [
        next(r for r in range(len(given)) if torch.equal(given[r], row))
        for row in taken["nodes.block0.body.depth.weight"]
    ]
    assert len(set(rows)) == hidden
    assert rows == sorted(rows)
    expand = state["nodes.block0.body.expand.weight"][rows][:, kept]
    assert torch.equal(taken["nodes.block0.body.expand.weight"], expand)
    assert torch.equal(
        taken["nodes.block0.body.project.weight"], state["nodes.block0.body.project.weight"][kept][:, rows]
    )


def test_another_normalisation_gives_the_same_inside_the_border() -> None:
    theirs = Preprocessing(mean=(127 / 255,) * 3, std=(128 / 255,) * 3)
    donor, target = filled(chain(blocks=1, width=8), 0), chain(blocks=1, width=8)
    initialise(target, 1)
    carry_weights(Donor(network=donor, preprocessing=theirs), target, preprocessing=PLAIN)
    picture = torch.rand(1, 3, 64, 64)

    def normalised(preprocessing: Preprocessing) -> torch.Tensor:
        mean, std = (torch.tensor(row)[:, None, None] for row in (preprocessing.mean, preprocessing.std))
        return (picture - mean) / std

    outputs = []
    for network, preprocessing in ((donor, theirs), (target.eval(), PLAIN)):
        network.nodes["stem"].register_forward_hook(lambda _, __, out: outputs.append(out))
        with torch.no_grad():
            network(normalised(preprocessing))
    assert torch.allclose(outputs[0][:, :, 1:-1, 1:-1], outputs[1][:, :, 1:-1, 1:-1], atol=1e-4)


def test_logits_of_classes_with_equal_names_are_carried_and_others_begin_fresh_and_small() -> None:
    donor, target = filled(chain(blocks=1, width=8), 0), chain(blocks=1, width=8)
    initialise(target, 1)
    fresh = target.state_dict()["nodes.head.conv1.weight"].clone()
    names = ("road", "sky", "car", "tree", "pole")
    ours = ("Sky", "dog", "road", "cat", "lamp")
    given = Donor(network=donor, preprocessing=PLAIN, classes=names)
    carry_weights(given, target, preprocessing=PLAIN, classes=ours)
    weight = target.state_dict()["nodes.head.conv1.weight"].clone()
    trained = donor.state_dict()["nodes.head.conv1.weight"]
    assert torch.equal(weight[0], trained[1])
    assert torch.equal(weight[2], trained[0])
    ratios = weight[[1, 3, 4]] / fresh[[1, 3, 4]]
    assert torch.allclose(ratios, ratios.mean())
    assert 0 < ratios.mean() < 0.3
    carry_weights(
        given, target, preprocessing=PLAIN, classes=ours
    )  # as weights that several networks share are
    assert torch.allclose(target.state_dict()["nodes.head.conv1.weight"], weight)


def test_residual_blocks_without_a_donor_begin_as_identity() -> None:
    def residual(blocks: int) -> Network:
        build = PlanBuilder(Shape(3, 64, 64))
        source = build.add("stem", Conv(), IMAGE, channels=8, stride=2)
        for number in range(blocks):
            source = build.add(f"block{number}", Residual(), source, channels=8)
        build.add("head", Conv(kernel=1, norm=False, bias=True, activation="none"), source, channels=2)
        return Network(build.plan(outputs={MAIN: "head"}, align_corners=False))

    donor, target = filled(residual(1), 0), residual(3)
    initialise(target, 1)
    names = ("road", "sky")
    carry_weights(
        Donor(network=donor, preprocessing=PLAIN, classes=names), target, preprocessing=PLAIN, classes=names
    )
    image = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.allclose(donor(image), target.eval()(image), atol=1e-6)


def test_networks_without_anything_in_common_share_almost_nothing() -> None:
    donor = filled(chain(blocks=1, width=8), 0)
    target = build(resolve("lpsnet-s"), 5, outputs=(MAIN,))
    initialise(target, 1)
    carried = carry_weights(Donor(network=donor, preprocessing=PLAIN), target, preprocessing=PLAIN)
    assert carried.share < 0.01


def test_parameters_that_lost_most_of_their_donor_count_as_new_ones() -> None:
    source = open_source("imagenet").donor
    kept = {}
    for expansion in (6, 2):
        arch = replace(
            next(arch for arch in Elastic().first_guesses() if all(arch.depths)), expansions=(expansion,) * 5
        )
        network = build(arch, 3, outputs=(MAIN,))
        initialise(network, 0)
        kept[expansion] = carry_weights(source, network, preprocessing=Preprocessing()).parameters
    depth = "nodes.stage2_block1.body.depth.weight"
    assert depth in kept[6]
    assert depth not in kept[2]
    assert "nodes.stem.conv1.weight" in kept[2]


def of_bands(count: int) -> Preprocessing:
    return Preprocessing(mean=(0.5,) * count, std=(0.2,) * count, ranges=((0.0, 1.0),) * count)


@pytest.mark.parametrize("bands", [1, 6])
def test_pictures_of_equal_bands_give_the_same_maps_with_other_numbers_of_bands(bands: int) -> None:
    donor = filled(build(resolve("lpsnet-step0"), 5, outputs=(MAIN,)), 0)
    target = build(resolve("lpsnet-step0"), 5, outputs=(MAIN,), channels=bands)
    before = {name: value.clone() for name, value in donor.state_dict().items()}
    carried = carry_weights(Donor(network=donor, preprocessing=PLAIN), target, preprocessing=of_bands(bands))
    assert carried.share == 1
    assert all(torch.equal(before[name], value) for name, value in donor.state_dict().items())
    grey = torch.randn(1, 1, 64, 96, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted, found = donor(grey.expand(1, 3, -1, -1)), target.eval()(grey.expand(1, bands, -1, -1))
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_takes_weights_for_four_bands(name: str) -> None:
    donor = filled(built(name, 5, outputs=(MAIN,)), 0)
    target = built(name, 5, outputs=(MAIN,), channels=4)
    carried = carry_weights(Donor(network=donor, preprocessing=PLAIN), target, preprocessing=of_bands(4))
    assert carried.share == 1


OWN_SPACES = [
    name for name in SPACES.names() if SPACES.get(name).__module__.startswith("segtailor.")
]  # no toys of tests


@given(kind=st.sampled_from(OWN_SPACES), seed=st.integers(0, 10_000))
@settings(max_examples=8, deadline=None)
def test_the_share_is_a_count_of_the_values_that_came_from_the_donor(kind: str, seed: int) -> None:
    space: SearchSpace = SPACES.get(kind)()
    rng = Random(seed)
    donor, target = (build(sample(space, rng), 5, outputs=(MAIN,)) for _ in range(2))
    with torch.no_grad():
        for value in donor.parameters():
            value.uniform_(100, 101)
        for value in target.parameters():
            value.uniform_(0.1, 1)
    given_ = Donor(network=donor, preprocessing=PLAIN, classes=NAMES)
    carried = carry_weights(given_, target, preprocessing=PLAIN, classes=NAMES)
    values = sum(value.numel() for value in target.parameters())
    assert carried.share == sum(int((value > 50).sum()) for value in target.parameters()) / values


@pytest.mark.parametrize(("have", "want"), [(3, 5), (5, 3), (3, 7), (7, 3)])
def test_kernels_are_embedded_in_zeros_or_cropped_to_their_centre(have: int, want: int) -> None:
    donor, target = filled(chain(blocks=1, width=8, kernel=have), 0), chain(blocks=1, width=8, kernel=want)
    initialise(target, 1)
    carried = carry_weights(Donor(network=donor, preprocessing=PLAIN), target, preprocessing=PLAIN)
    name = "nodes.block0.body.depth.weight"
    theirs, ours = donor.state_dict()[name], target.state_dict()[name]
    edge = abs(have - want) // 2
    inner = slice(edge, -edge)
    small, large = (theirs, ours) if have < want else (ours, theirs)
    assert torch.equal(large[:, :, inner, inner], small)
    if have < want:
        assert torch.count_nonzero(ours) == torch.count_nonzero(theirs)
    assert name in carried.parameters


def test_dilation_and_stride_keep_the_kernels() -> None:
    def network(stride: int, dilation: int) -> Network:
        build = PlanBuilder(Shape(3, 64, 64))
        source = build.add("stem", Conv(), IMAGE, channels=8, stride=2)
        op = InvertedBottleneck(expansion=2, dilation=dilation)
        source = build.add("down", op, source, channels=16, stride=stride)
        build.add("head", Conv(kernel=1, norm=False, bias=True, activation="none"), source, channels=2)
        return Network(build.plan(outputs={MAIN: "head"}, align_corners=False))

    donor, target = filled(network(2, 1), 0), network(1, 2)
    initialise(target, 1)
    carry_weights(Donor(network=donor, preprocessing=PLAIN), target, preprocessing=PLAIN)
    for part in ("expand", "depth", "project"):
        name = f"nodes.down.body.{part}.weight"
        assert torch.equal(target.state_dict()[name], donor.state_dict()[name])


def test_norms_that_silence_a_block_learn_like_new_ones() -> None:
    donor, target = filled(chain(blocks=1, width=16), 0), chain(blocks=2, width=16)
    initialise(target, 1)
    carried = carry_weights(Donor(network=donor, preprocessing=PLAIN), target, preprocessing=PLAIN)
    assert "nodes.block0.body.project_norm.weight" in carried.parameters
    assert "nodes.block1.body.project_norm.weight" not in carried.parameters
    assert "nodes.block1.body.project.weight" in carried.parameters


@pytest.mark.parametrize("name", [name for name in architectures() if name.startswith("squeezenas")])
def test_all_squeezenas_networks_take_most_of_an_imagenet_encoder(name: str) -> None:
    source, network = open_source("imagenet").donor, build(resolve(name), 5, outputs=(MAIN,))
    assert carry_weights(source, network, preprocessing=PLAIN).share > 0.5


@pytest.mark.parametrize("stage", [0, 1])
def test_a_skipped_first_block_of_a_stage_does_not_cut_off_what_follows(stage: int) -> None:
    space, source = InvertedResidual(frame="large"), open_source("imagenet").donor
    picks = {row.name: len(row.options) - 1 for row in space.decisions}
    blocks = [row for row in space.decisions if "skip" in row.options]
    before, shares = dict(picks), []
    first = {0: 0, 1: 5}[stage]  # in this frame blocks 0 and 5 change the width; 5 halves the map as well
    picks[blocks[first].name] = blocks[first].options.index("skip")
    for row in (before, picks):
        network = build(space.architecture(row), 5, outputs=(MAIN,))
        shares.append(carry_weights(source, network, preprocessing=PLAIN).share)
    assert shares[1] > 0.9 * shares[0]
