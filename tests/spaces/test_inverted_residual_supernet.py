import json
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from segtailor.core.errors import Unsupported
from segtailor.core.plan import OpCall, Shape
from segtailor.nets.network import Network
from segtailor.nets.relax import one_hot_weights, softmax
from segtailor.nets.supernet import Supernet, SupernetSettings
from segtailor.ops.modules.blocks import InvertedResidualBlock
from segtailor.spaces.inverted_residual import InvertedResidual
from segtailor.spaces.inverted_residual.architecture import CANDIDATES, FrameName
from segtailor.spaces.inverted_residual.fused import by_phases, depthwise
from segtailor.spaces.inverted_residual.names import BLOCK, DECODERS, ENCODER, STRIDE_SKIP, WIDTH_SKIP
from segtailor.spaces.inverted_residual.supernet import InvertedResidualSupernet
from segtailor.testing import check_supernet
from segtailor.testing.supernets import scramble
from tests.support import FIXTURES, deterministic, fixture, noise

SMALL = InvertedResidual()
FULL = Shape(3, 1024, 2048)
TINY = Shape(3, 32, 64)


@lru_cache(maxsize=1)
def reference() -> tuple[dict, dict]:  # type: ignore[type-arg]
    return fixture("squeezenas_supernet_parity")


def published_key(key: str) -> str:
    """Name one of our entries as the released supernet does (specification section 11)."""
    _, _, node, rest = key.split(".", 3)
    if not node.startswith("block"):
        goal, layers = (ENCODER | DECODERS["lr_aspp"])[node]
        return renamed(goal, rest, layers)
    _, candidate, rest = rest.split(".", 2)
    place = f"encoder.residuals.{node.removeprefix('block')}.ops"
    if candidate == "skip":
        kind = STRIDE_SKIP if int(node.removeprefix("block")) in (0, 4, 8) else WIDTH_SKIP
        return renamed(f"{place}.residual_skipish", rest, tuple((ours, theirs[3:]) for ours, theirs in kind))
    kernel, dilation, expansion, groups = candidate.split("_")
    name = f"inverse_residual_{kernel}_{expansion}_{groups}" + ("_d2" if dilation == "d2" else "")
    return renamed(f"{place}.{name}", rest, tuple((ours, theirs[3:]) for ours, theirs in BLOCK))


def renamed(goal: str, rest: str, layers: tuple[tuple[str, str], ...]) -> str:
    for ours, theirs in layers:
        if rest.startswith(f"{ours}."):
            return ".".join(filter(None, (goal, theirs, rest.removeprefix(f"{ours}."))))
    raise KeyError(rest)


def fixture_supernet(settings: SupernetSettings) -> InvertedResidualSupernet:
    supernet = SMALL.supernet(FULL, 19, settings=settings)
    state = {
        key: deterministic(published_key(key), tuple(value.shape))
        for key, value in supernet.state_dict().items()
    }
    supernet.load_state_dict(state)
    return supernet.eval()


def fixture_logits(index: int) -> tuple[Tensor, Tensor]:
    """Return architecture values and noise (images, options) of a superblock in our order of candidates."""
    order = [reference()[0]["candidate_order"].index(name) for name in CANDIDATES]
    theta = 0.5 * np.random.default_rng(1000 + index).standard_normal((13, 1))
    gumbel = np.random.default_rng(index).gumbel(size=(13, 2))
    pair = [torch.from_numpy(values.astype(np.float32))[order].T for values in (theta, gumbel)]
    return pair[0][0], pair[1]


def fixture_weights() -> dict[str, Tensor]:
    pairs = [fixture_logits(index) for index in range(20)]
    return {
        f"block{index}": softmax(theta + gumbel, temperature=2.0)
        for index, (theta, gumbel) in enumerate(pairs)
    }


def mega_macs(call: OpCall) -> float:
    return call.macs() / 1e6


def test_names_cover_the_released_supernet() -> None:
    ours = {published_key(key) for key in SMALL.supernet(TINY, 19).state_dict()}
    other = ("gumble_arch_params", "ops_cost", "gumbel_temperature")
    theirs = {key for key, _ in reference()[0]["state"] if not key.endswith(other)}
    assert ours == theirs


def test_fused_candidates_do_not_run_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    supernet = SMALL.supernet(TINY, 4, settings=SupernetSettings(fused=True)).eval()
    weights = {f"block{index}": torch.full((1, len(CANDIDATES)), 1 / len(CANDIDATES)) for index in range(20)}
    ran: list[InvertedResidualBlock] = []
    for module in supernet.modules():
        if isinstance(module, InvertedResidualBlock) and not module.residual:
            module.register_forward_pre_hook(lambda block, _: ran.append(block))
    with torch.no_grad():
        supernet(noise(1, 3, 32, 64), weights)
    assert not ran


@pytest.mark.parametrize("fused", [False, True])
def test_sampled_output_equals_the_released_supernet(fused: bool) -> None:
    record, arrays = reference()
    supernet = fixture_supernet(SupernetSettings(fused=fused))
    with torch.no_grad():
        logits = supernet(noise(2, 3, 128, 256), fixture_weights())["main"]
    error = (logits - torch.from_numpy(arrays["logits"])).abs().max()
    assert float(error) <= record["suggested_tolerance"]
    labels = torch.from_numpy(np.random.default_rng(7).integers(0, 19, (2, 128, 256)))
    full = functional.interpolate(logits, size=(128, 256), mode="bilinear", align_corners=True)
    assert float(functional.cross_entropy(full, labels)) == pytest.approx(record["cross_entropy"], abs=1e-4)


def test_sampled_and_expected_costs_equal_the_released_supernet() -> None:
    record, _ = reference()
    supernet = SMALL.supernet(FULL, 19)
    sampled = fixture_weights()
    for image, wanted in enumerate(record["sampled_cost_per_image"]):
        row = {name: weights[image] for name, weights in sampled.items()}
        assert float(supernet.searched_cost(row, mega_macs)) == pytest.approx(wanted, rel=1e-6)
    mean = float(supernet.searched_cost(sampled, mega_macs))
    assert mean == pytest.approx(sum(record["sampled_cost_per_image"]) / 2, rel=1e-6)
    expected = {f"block{index}": softmax(fixture_logits(index)[0]) for index in range(20)}
    wanted = record["softmax_expected_cost"]
    assert float(supernet.searched_cost(expected, mega_macs)) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(
    ("frame", "weights"), [("small", 3_668_366), ("large", 11_581_606), ("xlarge", 26_146_171)]
)
def test_supernets_have_the_published_number_of_weights(frame: FrameName, weights: int) -> None:
    with torch.device("meta"):
        supernet = InvertedResidual(frame=frame).supernet(TINY, 19)
    assert sum(value.numel() for value in supernet.parameters()) == weights


@pytest.mark.parametrize("frame", ["small", "large"])
def test_supernet_stands_for_its_networks(frame: FrameName) -> None:
    check_supernet(InvertedResidual(frame=frame), image=TINY, draws=2)


@pytest.mark.slow
@pytest.mark.parametrize("frame", ["small", "large", "xlarge"])
def test_supernet_stands_for_many_networks(frame: FrameName) -> None:
    check_supernet(InvertedResidual(frame=frame), image=Shape(3, 64, 96), draws=20, seed=1)


def test_constant_parts_are_those_of_the_lookup_table() -> None:
    lookup = json.loads((FIXTURES / "squeezenas_mac_lookup.json").read_text())
    supernet = SMALL.supernet(FULL, 19)
    picks = {decision.name: CANDIDATES.index("skip") for decision in supernet.decisions}
    weights = {name: row.double() for name, row in one_hot_weights(supernet.decisions, picks).items()}
    macs = [
        float(cost(weights, lambda call: call.macs())) for cost in (supernet.cost, supernet.searched_cost)
    ]
    rows = lookup["spaces"]["small"]["blocks"]
    assert macs[1] == sum(row["macs"]["skip"] for row in rows)
    assert macs[0] - macs[1] == 791_019_520


def test_every_weight_and_every_decision_gets_a_gradient() -> None:
    supernet = SMALL.supernet(TINY, 4).train()
    weights = uniform_weights()
    supernet(torch.randn(2, *TINY), weights)["main"].square().mean().backward()
    silent = [name for name, value in supernet.named_parameters() if value.grad is None]
    assert not silent
    for name, row in weights.items():
        assert row.grad is not None
        assert int((row.grad != 0).sum()) >= len(CANDIDATES) - 1, name


def uniform_weights() -> dict[str, Tensor]:
    return {decision.name: torch.full((13,), 1 / 13).requires_grad_() for decision in SMALL.decisions}


@pytest.mark.slow
def test_recomputing_and_fusing_give_the_same_training_step() -> None:
    pixels, steps = torch.randn(2, 3, 16, 32, dtype=torch.float64), []
    for settings in (SupernetSettings(), SupernetSettings(fused=True, recompute=True)):
        supernet = SMALL.supernet(TINY, 4, settings=settings)
        scramble(supernet, seed=2)
        supernet.double().train()
        weights = {name: row.detach().double().requires_grad_() for name, row in uniform_weights().items()}
        loss = supernet(pixels, weights)["main"].square().mean()
        steps.append((loss, torch.autograd.grad(loss, list(weights.values()))))
    torch.testing.assert_close(*(loss for loss, _ in steps))
    torch.testing.assert_close(*(slopes for _, slopes in steps), rtol=1e-6, atol=1e-9)


def test_candidates_can_be_removed_while_running() -> None:
    supernet = SMALL.supernet(TINY, 4).eval()
    before = sum(value.numel() for value in supernet.parameters())
    assert isinstance(supernet, Supernet)
    supernet.remove("block3", CANDIDATES.index("k3_d1_e6_g1"))
    assert supernet.remaining()["block3"] == tuple(n for n in range(13) if n != 3)
    assert supernet.remaining()["block2"] == tuple(range(13))
    lost = OpCall(op=SMALL_E6, inputs=(Shape(16, 8, 16),), channels=16).params()
    assert before - sum(value.numel() for value in supernet.parameters()) == lost
    weights = {name: row.detach() for name, row in uniform_weights().items()}
    with pytest.raises(Unsupported, match="was removed"):
        supernet(torch.randn(1, *TINY), weights)
    weights["block3"] = softmax(torch.zeros(13), active=torch.arange(13) != 3)
    assert supernet(torch.randn(1, *TINY), weights)["main"].shape == (1, 4, 4, 8)


SMALL_E6 = (
    SMALL.plan(SMALL.architecture(dict.fromkeys((d.name for d in SMALL.decisions), 3)), TINY, 4)
    .by_name["block3"]
    .op
)


def test_networks_that_use_a_removed_candidate_are_refused() -> None:
    supernet = SMALL.supernet(TINY, 4)
    arch = SMALL.architecture({decision.name: 2 for decision in SMALL.decisions})
    supernet.remove("block5", 2)
    with pytest.raises(Unsupported, match="removed"):
        supernet.transfer(arch, Network(SMALL.plan(arch, TINY, 4)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights.pop("block7"), "no weights for the decision 'block7'"),
        (lambda weights: weights.update(block7=torch.ones(12)), r"shape \(12,\)"),
        (lambda weights: weights.update(block7=torch.ones(3, 13)), r"allowed: \(13,\), or \(2, 13\)"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    change: Callable[[dict[str, Tensor]], object], message: str
) -> None:
    weights = dict(uniform_weights())
    change(weights)
    with pytest.raises(Unsupported, match=message):
        SMALL.supernet(TINY, 4)(torch.randn(2, *TINY), weights)


@pytest.mark.parametrize("size", [(8, 12), (7, 9), (2, 3), (1, 1)])
@pytest.mark.parametrize(
    ("kernel", "dilation", "stride"), [(3, 2, 1), (3, 2, 2), (5, 3, 1), (3, 2, 4), (3, 3, 3)]
)
def test_phases_equal_the_dilated_convolution(
    size: tuple[int, int], kernel: int, dilation: int, stride: int
) -> None:
    generator = torch.Generator().manual_seed(kernel)
    maps = torch.randn(2, 4, *size, generator=generator, dtype=torch.float64, requires_grad=True)
    kernels = torch.randn(4, 1, kernel, kernel, generator=generator, dtype=torch.float64, requires_grad=True)
    padding = dilation * (kernel // 2)
    wanted = functional.conv2d(maps, kernels, None, stride, padding, dilation, groups=4)
    found = by_phases(maps, kernels, stride=stride, dilation=dilation)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(depthwise(maps, kernels, stride=stride, dilation=dilation), wanted)
    slope = torch.randn(wanted.shape, generator=generator, dtype=torch.float64)
    for got, right in zip(
        *(torch.autograd.grad(out, (maps, kernels), slope) for out in (found, wanted)), strict=True
    ):
        torch.testing.assert_close(got, right)


def test_channels_stay_last_in_memory() -> None:
    maps = torch.randn(2, 4, 6, 10).contiguous(memory_format=torch.channels_last)
    found = by_phases(maps, torch.randn(4, 1, 3, 3), stride=1, dilation=2)
    assert found.is_contiguous(memory_format=torch.channels_last)
