import json
from fractions import Fraction
from random import Random

import numpy as np
import pytest
import torch
from torch.nn import functional

import segtailor
from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import Shape
from segtailor.core.space import parse_architecture
from segtailor.core.variation import sample
from segtailor.nets.network import Network
from segtailor.spaces import networks, published
from segtailor.spaces.scalable_path import ScalablePath, ScalablePathArchitecture
from segtailor.spaces.scalable_path.architecture import BLOCKS, INTERACTIONS
from segtailor.testing import check_architecture, check_space
from tests.support import FIXTURES, deterministic_state, fixture, noise

GOLDEN = json.loads((FIXTURES.parent / "golden" / "lpsnet.json").read_text())
TINY = ScalablePath(depths=(1, 2), width_steps=(1, 2), ratios=("0", "1/4", "1/2", "1"), paths=3)


def small(**changes: object) -> ScalablePathArchitecture:
    values = {"depth": (1, 1, 1, 2, 1), "width": (4, 8, 8, 8, 8), "resolution": (Fraction(1), Fraction(1, 2))}
    return ScalablePathArchitecture(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("row", GOLDEN["steps"], ids=lambda row: f"step{row['step']}")
def test_counts_of_every_published_step_are_exact(row: dict[str, int]) -> None:
    assert segtailor.count(f"lpsnet-step{row['step']}") == (row["macs"], row["deploy"], row["params"])


def test_every_published_step_is_one_delta_times_one_integer() -> None:
    for row in GOLDEN["steps"][1:]:
        parent = published(f"lpsnet-step{row['step'] - 1}")
        child = published(f"lpsnet-step{row['step']}")
        before = [*parent.resolution, *[Fraction(0)] * (3 - len(parent.resolution))]
        after = [*child.resolution, *[Fraction(0)] * (3 - len(child.resolution))]
        changes = {
            "depth": [b - a for a, b in zip(parent.depth, child.depth, strict=True)],
            "width": [b - a for a, b in zip(parent.width, child.width, strict=True)],
            "resolution": [b - a for a, b in zip(before, after, strict=True)],
        }
        for dimension, change in changes.items():
            delta = [Fraction(value) * row["k"] for value in row["delta"]]
            assert change == (delta if dimension == row["expanded"] else [0] * len(change))


@pytest.mark.parametrize("name", ["lps_s_parity", "lps_3path_parity"])
def test_logits_equal_the_reference(name: str) -> None:
    facts, expected = fixture(name)
    arch = ScalablePathArchitecture(
        depth=tuple(facts["depth"]),
        width=tuple(facts["width"]),
        resolution=tuple(map(Fraction, facts["resolution"])),
    )
    network = segtailor.create(arch, classes=facts["num_classes"])
    segtailor.load_published(network, deterministic_state(facts["state"]))
    with torch.no_grad():
        logits = network(noise(1, 3, 256, 512))
        full = functional.interpolate(
            logits, size=(256, 512), mode="bilinear", align_corners=network.plan.align_corners
        )
    assert np.abs(logits.numpy() - expected["logits"]).max() < 1e-4  # the fixture allows 3.2e-3
    assert (full.argmax(1).numpy() == expected["pred"]).mean() > 0.9999


@pytest.mark.parametrize(
    ("size", "logits"), [((300, 500), (15, 24)), ((769, 1537), (36, 72)), ((33, 65), (2, 3))]
)
def test_odd_sizes_round_as_the_reference_does(size: tuple[int, int], logits: tuple[int, int]) -> None:
    plan = networks.expand("lpsnet-s", image=size)
    assert plan.shape("head")[1:] == logits
    if max(size) < 400:
        assert segtailor.create("lpsnet-s")(torch.zeros(1, 3, *size)).shape[2:] == logits


def test_an_inference_form_checkpoint_gives_the_same_logits() -> None:
    source = segtailor.create(small(), classes=5, seed=1)
    for module in source.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.normal_(module.running_mean, std=0.1)
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
    state = {}
    for path, prefix in enumerate(("netH", "netL")):
        for stage, depth in enumerate(small().depth):
            for block in range(depth):
                conv = source.nodes[f"path{path}_stage{stage}_block{block}"].fold()[0]
                state[f"{prefix}.stages.{stage}.{block}.0.weight"] = conv.weight
                state[f"{prefix}.stages.{stage}.{block}.0.bias"] = conv.bias
    state |= {"head.weight": source.nodes["head"].conv1.weight, "head.bias": source.nodes["head"].conv1.bias}
    target = segtailor.create(small(), classes=5, seed=2)
    segtailor.load_published(target, state)
    image = torch.randn(1, 3, 64, 96)
    torch.testing.assert_close(target(image), source(image), rtol=1e-4, atol=1e-5)


def test_random_architectures_keep_every_invariant() -> None:
    check_space(TINY, draws=200, image=Shape(3, 96, 128))


@pytest.mark.slow
def test_the_default_space_contains_the_calls_of_its_architectures() -> None:
    check_space(ScalablePath(), draws=20, image=Shape(3, 360, 480))


@pytest.mark.parametrize("seed", range(8))
def test_random_architectures_count_and_run_as_built(seed: int) -> None:
    check_architecture(TINY, sample(TINY, Random(seed)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200))
def test_two_hundred_random_architectures_count_and_run_as_built(seed: int) -> None:
    check_architecture(TINY, sample(TINY, Random(1000 + seed)))


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("paths", [1, 2])
def test_every_block_type_counts_and_runs_as_built(block: str, paths: int) -> None:
    arch = small(block=block, resolution=(Fraction(1), Fraction(1, 2))[:paths])
    check_architecture(ScalablePath(), arch, sizes=((64, 96), (65, 67)))


@pytest.mark.parametrize("interaction", INTERACTIONS)
@pytest.mark.parametrize("paths", [2, 3])
def test_every_interaction_counts_and_runs_as_built(interaction: str, paths: int) -> None:
    arch = small(interaction=interaction, resolution=(Fraction(1), Fraction(1, 2), Fraction(1, 4))[:paths])
    check_architecture(ScalablePath(), arch, sizes=((64, 96), (65, 67)))


def test_table_3_network_has_the_published_size() -> None:
    arch = ScalablePathArchitecture(
        depth=(1, 2, 4, 7, 7), width=(16, 32, 64, 128, 128), resolution=(Fraction(1), Fraction(1, 4))
    )
    count = segtailor.count(arch)
    assert count.train_params == 4_281_267
    assert round(count.macs / 1e9, 2) == 24.02


def test_table_2_conv_networks_have_the_published_macs() -> None:
    found = {}
    for c in (13, 14, 15):
        arch = ScalablePathArchitecture(
            depth=(1, 2, 4, 7, 7), width=(c, 2 * c, 4 * c, 8 * c, 8 * c),
            resolution=(Fraction(1), Fraction(1, 4)), interaction="none",
        )  # fmt: skip
        found[c] = round(segtailor.count(arch).macs / 1e9, 2)
    assert found == {13: 15.90, 14: 18.42, 15: 21.13}


@pytest.mark.parametrize("branches", [False, True])
def test_the_training_form_folds_exactly(branches: bool) -> None:
    from segtailor.ops import RepConv

    plan = ScalablePath().plan(small(), Shape(3, 64, 96), 4)
    plan = plan.with_operators(
        lambda call: RepConv(branches=branches) if isinstance(call.op, RepConv) else call.op
    )
    network = Network(plan).double()
    for _ in range(3):  # give the norms statistics of their own
        network.train()(torch.randn(4, 3, 64, 96, dtype=torch.float64))
    network.eval()
    image = torch.randn(1, 3, 65, 97, dtype=torch.float64)
    before = network(image)
    for name, module in list(network.nodes.items()):
        if hasattr(module, "fold"):
            network.replace(name, module.fold())
    torch.testing.assert_close(network(image), before, rtol=1e-10, atol=1e-10)
    assert sum(p.numel() for p in network.parameters()) == plan.params()


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("depth", [1, 1, 1, 1], "depth"),
        ("depth", [1, 1, 0, 1, 1], "depth"),
        ("width", [4, 8, "x", 8, 8], "width"),
        ("resolution", [], "resolution"),
        ("resolution", ["1/0"], "resolution"),
        ("resolution", ["-1/2"], "resolution"),
        ("resolution", ["1e-999999999999"], "resolution"),
        ("resolution", ["0.5"], "resolution"),
        ("resolution", [0.5], "resolution"),
        ("resolution", ["1\n"], "resolution"),
        ("block", "unknown", "block"),
        ("interaction", "telepathy", "interaction"),
    ],
)
def test_a_wrong_field_is_named(field: str, value: object, says: str) -> None:
    body = {"depth": [1, 1, 1, 1, 1], "width": [4, 8, 8, 8, 8], "resolution": ["1"], field: value}
    with pytest.raises(InvalidArchitecture, match=says):
        parse_architecture({"format": 1, "family": "scalable_path", "architecture": body})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("depth", 3),
        ("depth", ("a",) * 5),
        ("width", (1.5,) * 5),
        ("width", (8193,) * 5),
        ("resolution", None),
        ("resolution", ("x",)),
        ("resolution", (float("nan"),)),
        ("resolution", (0,)),
        ("resolution", (1,) * 9),
        ("block", "unknown"),
        ("interaction", "telepathy"),
    ],
)
def test_a_wrong_value_in_python_is_named_too(field: str, value: object) -> None:
    body = {"depth": (1,) * 5, "width": (4,) * 5, "resolution": (1,), field: value}
    with pytest.raises(InvalidArchitecture, match=f"^{field}: .*allowed"):
        ScalablePathArchitecture(**body)  # type: ignore[arg-type]
