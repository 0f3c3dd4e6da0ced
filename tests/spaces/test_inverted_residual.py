import json
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

import segtailor
from segtailor.core.errors import InvalidArchitecture, UserError
from segtailor.core.plan import Plan, Shape
from segtailor.core.space import architecture_document, parse_architecture, read_architecture
from segtailor.core.task import Preprocessing
from segtailor.core.variation import sample
from segtailor.nets.checkpoint_file import read_state
from segtailor.nets.network import Network
from segtailor.spaces import networks, published
from segtailor.spaces.inverted_residual import InvertedResidual, InvertedResidualArchitecture
from segtailor.spaces.inverted_residual.architecture import CANDIDATES, FRAME_NAMES, FRAMES, FrameName
from segtailor.testing import check_architecture, check_space
from tests.support import FIXTURES, deterministic, deterministic_state, fixture, noise, shared

GOLDEN = json.loads((FIXTURES.parent / "golden" / "squeezenas.json").read_text())
LOOKUP = json.loads((FIXTURES / "squeezenas_mac_lookup.json").read_text())
NAMES = [row["architecture"] for row in GOLDEN["networks"]]
FULL = Shape(3, *GOLDEN["image"])
by_network = pytest.mark.parametrize("row", GOLDEN["networks"], ids=NAMES)
by_frame = pytest.mark.parametrize("frame", FRAME_NAMES)


def uniform(frame: FrameName, candidate: str) -> InvertedResidualArchitecture:
    blocks = (candidate,) * len(FRAMES[frame].blocks)
    return InvertedResidualArchitecture(frame=frame, blocks=blocks)  # type: ignore[arg-type]


def plan(arch: InvertedResidualArchitecture) -> Plan:
    return InvertedResidual().plan(arch, FULL, 19)


def reference_state(network: Network) -> dict[str, Tensor]:
    names = InvertedResidual.published_names(network, network.architecture).names
    own = network.state_dict()
    return {names[key][0]: deterministic(names[key][0], tuple(value.shape)) for key, value in own.items()}


@by_network
def test_counts_of_every_published_network_are_exact(row: dict[str, int]) -> None:
    count = segtailor.count(row["architecture"])
    assert count == (row["macs"], row["params"], row["params"])
    assert round(count.macs / 1e9, 2) == row["table_gmacs"]


@by_network
def test_state_dictionaries_have_the_published_entries(row: dict[str, int]) -> None:
    state = segtailor.create(row["architecture"]).state_dict()
    assert len(state) == row["state_entries"]
    assert sum(state[key].numel() for key in state if "running" in key) == row["norm_running_values"]


@by_frame
def test_every_candidate_of_every_block_has_the_published_cost(frame: FrameName) -> None:
    table = LOOKUP["spaces"][frame]
    assert list(CANDIDATES) == LOOKUP["candidate_order"]
    assert len(FRAMES[frame].blocks) == table["num_blocks"]
    for candidate in CANDIDATES:
        layers = plan(uniform(frame, candidate))
        for row in table["blocks"]:
            call = layers.call(f"block{row['index']}")
            assert call.source == (row["cin"], *row["in_hw"])
            assert (call.channels, call.stride) == (row["cout"], row["stride"])
            assert (call.macs(), call.params()) == (row["macs"][candidate], row["params"][candidate])


@by_frame
def test_constant_parts_and_extremes_are_exact(frame: FrameName) -> None:
    golden, rows = GOLDEN["frames"][frame], LOOKUP["spaces"][frame]["blocks"]
    layers = plan(uniform(frame, "skip"))
    fixed = [layers.call(node.name) for node in layers.nodes if not node.name.startswith("block")]
    macs = sum(call.macs() for call in fixed)
    assert macs == golden["constant_macs"]
    assert sum(call.params() for call in fixed) == golden["constant_params"]
    assert macs + sum(min(row["macs"].values()) for row in rows) == golden["least_macs"]
    most = [max(row["macs"], key=row["macs"].get) for row in rows]
    arch = InvertedResidualArchitecture(frame=frame, blocks=tuple(most))
    assert segtailor.count(arch).macs == golden["most_macs"]


def test_published_choices_are_those_of_the_released_networks() -> None:
    zoo = json.loads(shared("specs/squeezenas_zoo.json").read_text())
    for network in zoo["networks"]:
        arch = published("squeezenas-" + network["key"].replace("_", "-"))
        assert (arch.frame, list(arch.blocks)) == (network["space"], network["choices"])
        shapes = [[*block, name] for block, name in zip(FRAMES[arch.frame].blocks, arch.blocks, strict=True)]
        assert shapes == network["blocks"]


@pytest.mark.parametrize("size", ["half", "full"])
@pytest.mark.parametrize("name", ["mac_small", pytest.param("mac_large", marks=pytest.mark.slow)])
def test_published_weights_reproduce_the_reference_on_a_street_scene(name: str, size: str) -> None:
    folder = shared("fixtures/squeezenas")
    network = segtailor.create("squeezenas-" + name.replace("_", "-"))
    segtailor.load_published(network, read_state(folder / f"{name}.pth"))
    pixels = np.array(Image.open(folder / ("image.png" if size == "full" else "image_half.png")))
    image = torch.from_numpy(((pixels / 255 - Preprocessing().mean) / Preprocessing().std).astype(np.float32))
    with torch.inference_mode():
        logits = network(image.permute(2, 0, 1)[None])
        full = functional.interpolate(
            logits, size=pixels.shape[:2], mode="bilinear", align_corners=network.plan.align_corners
        )
    expected = np.load(folder / f"{name}_{size}_logits.npz")["logits"].astype(np.float32)
    assert (
        np.abs(logits[0].numpy() - expected).max() < 0.005
    )  # half a step of float16 at 8; the fixture allows 0.02
    labels = np.array(Image.open(folder / f"{name}_{size}_pred.png"))
    assert (full.argmax(1)[0].numpy() == labels).mean() >= 0.999


def test_xlarge_logits_equal_the_reference() -> None:
    facts, expected = fixture("squeezenas_xlarge_parity")
    network = segtailor.create("squeezenas-mac-xlarge")
    segtailor.load_published(network, deterministic_state(facts["state"]))
    with torch.inference_mode():
        logits = network(noise(1, 3, 256, 512)).numpy()
    assert np.abs(logits - expected["logits_256x512"]).max() < 1  # of 2e5; the fixture allows 7
    own = network.state_dict()
    names = InvertedResidual.published_names(network, network.architecture).names
    assert {names[key][0]: list(own[key].shape) for key in own} == dict(facts["state"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("outputs", ["main", "all"])
def test_every_published_network_loads_strictly(name: str, outputs: str) -> None:
    network = segtailor.create(name, classes=5, outputs=outputs)
    state = reference_state(network)
    assert len(state) == len(network.state_dict())  # no two weights share a published name
    segtailor.load_published(network, state)
    segtailor.load_published(network, {key: state[key] for key in state if "num_batches" not in key})
    with torch.inference_mode():
        logits = network.forward_all(torch.randn(1, 3, 96, 64))["main"]
    stride = 4 if "xlarge" in name else 8
    assert logits.shape == (1, 5, 96 // stride, 64 // stride)


@pytest.mark.parametrize("key", ["encoder.residuals.0.op.op.1.weight", "decoder._3x3_2_conv.bn.bias"])
def test_a_key_that_does_not_fit_is_named(key: str) -> None:
    network = segtailor.create("squeezenas-lat-xlarge")
    state = reference_state(network)
    for wrong in (
        {name: value for name, value in state.items() if name != key},
        {**state, key: torch.zeros(3, 1)},
    ):
        with pytest.raises(UserError, match=key):
            segtailor.load_published(network, wrong)
    with pytest.raises(UserError, match=r"unknown key 'encoder\.residuals\.99"):
        segtailor.load_published(network, {**state, "encoder.residuals.99.op.0.weight": torch.zeros(1)})


def test_skips_have_the_published_key_names() -> None:
    state = reference_state(segtailor.create(uniform("large", "skip")))
    blocks = {key for key in state if key.startswith("encoder.residuals.") and key.endswith("weight")}
    strided = {f"op.conv_{half}.{layer}.weight" for half in (1, 2) for layer in (0, 1)}
    widened = {f"op.op.{layer}.weight" for layer in (1, 2)}
    expected = {f"encoder.residuals.{index}.{key}" for index in (1, 5, 9) for key in strided}
    expected |= {f"encoder.residuals.{index}.{key}" for index in (13, 17) for key in widened}
    assert blocks == expected


def batch_norm(norm: nn.BatchNorm2d, value: Tensor) -> Tensor:
    return functional.batch_norm(value, norm.running_mean, norm.running_var, norm.weight, norm.bias)


def test_skips_compute_what_the_paper_says() -> None:
    network = segtailor.create(uniform("small", "skip"))
    segtailor.load_published(network, reference_state(network))
    strided, same, wider = (network.nodes[f"block{index}"] for index in (4, 5, 12))
    image = torch.randn(2, 16, 8, 12)
    assert same(image) is image
    active = image.relu()
    halves = [active[:, :, ::2, ::2], active[:, :, 1::2, 1::2]]
    expected = [
        batch_norm(norm, functional.conv2d(half, conv.weight))
        for half, conv, norm in zip(
            halves, (strided.conv1, strided.conv2), (strided.norm1, strided.norm2), strict=True
        )
    ]
    torch.testing.assert_close(strided(image), torch.cat(expected, dim=1))
    image = torch.randn(2, 40, 4, 6)
    expected_wider = batch_norm(wider.norm1, functional.conv2d(image.relu(), wider.conv1.weight))
    torch.testing.assert_close(wider(image), expected_wider)


@pytest.mark.parametrize(
    ("size", "gate"),
    [
        ((1024, 2048), (1, 4)),
        ((2048, 1024), (5, 1)),
        ((512, 1024), (1, 1)),
        ((784, 800), (1, 1)),
        ((65, 90), (1, 1)),
    ],
)
def test_the_gate_has_the_documented_size(size: tuple[int, int], gate: tuple[int, int]) -> None:
    layers = networks.expand("squeezenas-mac-small", image=size)
    assert layers.shape("decoder_attention")[1:] == gate
    assert layers.shape("head")[1:] == layers.shape("block7")[1:]


@pytest.mark.parametrize("name", NAMES)
def test_published_networks_count_and_run_as_built_at_any_size(name: str) -> None:
    arch = published(name)
    check_architecture(InvertedResidual(), arch, sizes=((64, 64), (65, 97), (131, 66)))


@by_frame
def test_random_architectures_keep_every_invariant(frame: FrameName) -> None:
    check_space(InvertedResidual(frame=frame), draws=200, image=Shape(3, 360, 481))


@pytest.mark.parametrize("seed", range(8))
def test_random_architectures_count_and_run_as_built(seed: int) -> None:
    space = InvertedResidual(frame=FRAME_NAMES[seed % 2])
    check_architecture(space, sample(space, Random(seed)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200))
def test_two_hundred_random_architectures_count_and_run_as_built(seed: int) -> None:
    space = InvertedResidual(frame=FRAME_NAMES[seed % 3])
    check_architecture(space, sample(space, Random(1000 + seed)))


@by_frame
@pytest.mark.parametrize("candidate", ["skip", "k3_d1_e1_g2", "k5_d1_e1_g1", "k3_d2_e1_g1"])
def test_uniform_architectures_count_and_run_as_built(frame: FrameName, candidate: str) -> None:
    check_architecture(InvertedResidual(frame=frame), uniform(frame, candidate), sizes=((64, 64), (97, 65)))


def test_published_networks_decode_and_encode() -> None:
    for name in NAMES:
        arch = published(name)
        space = InvertedResidual(frame=arch.frame)
        assert space.architecture(space.picks(arch)) == arch
    with pytest.raises(InvalidArchitecture, match=r"frame.*small"):
        InvertedResidual(frame="small").picks(published("squeezenas-mac-large"))


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("frame", "huge", "frame.*small.*xlarge"),
        ("frame", None, "frame"),
        ("frame", "large", "blocks: 20 candidates.*22"),
        ("blocks", ["skip"] * 21, "blocks: 21 candidates.*20"),
        ("blocks", [], "blocks: 0 candidates"),
        ("blocks", ["skip"] * 19 + ["k7_d1_e1_g1"], r"blocks\.19.*k5_d1_e6_g1"),
        ("blocks", ["skip"] * 19 + [12], r"blocks\.19"),
        ("blocks", "skip", "blocks"),
        ("width", 2, "width"),
    ],
)
def test_a_wrong_field_is_named(field: str, value: object, says: str) -> None:
    body = {"frame": "small", "blocks": ["skip"] * 20, field: value}
    with pytest.raises(InvalidArchitecture, match=says):
        parse_architecture({"format": 1, "family": "inverted_residual", "architecture": body})


def test_wrong_values_in_python_are_named_too() -> None:
    with pytest.raises(InvalidArchitecture, match="frame: 'huge'"):
        InvertedResidualArchitecture(frame="huge", blocks=())  # type: ignore[arg-type]
    with pytest.raises(InvalidArchitecture, match="frame: 'huge'"):
        InvertedResidual(frame="huge")  # type: ignore[arg-type]
    with pytest.raises(InvalidArchitecture, match=r"blocks\.0: 'conv'"):
        InvertedResidualArchitecture(frame="small", blocks=("conv",) * 20)  # type: ignore[arg-type]


def test_newer_and_truncated_files_are_explained(tmp_path: Path) -> None:
    document = architecture_document(uniform("small", "skip"))
    path = tmp_path / "arch.json"
    path.write_text(json.dumps({**document, "format": 2}))
    with pytest.raises(InvalidArchitecture, match="format is 2"):
        read_architecture(path)
    path.write_text(json.dumps(document)[:-20])
    with pytest.raises(InvalidArchitecture, match="truncated"):
        read_architecture(path)
