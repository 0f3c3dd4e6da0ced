from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from segtailor.core.errors import Unsupported
from segtailor.core.plan import OpCall, Shape
from segtailor.nets.fused import NormState, compiled_kernels, norm_mix, spread
from segtailor.nets.mixed import Fuse, Mixed, mix
from segtailor.nets.relax import straight_through
from segtailor.ops import Conv, FactorisedReduction, Identity, InvertedBottleneck, MaxPool, Separable
from segtailor.spaces.hyper_cell.fused import FusedUnits, MaxPooling
from segtailor.spaces.inverted_residual.fused import FusedInverted
from segtailor.testing.supernets import scramble

SOURCE = Shape(4, 9, 11)
UNITS = {
    "skip": Identity(),
    "pool": MaxPool(),
    "conv3": Conv(first=True),
    "conv3_x2": Conv(repeats=2, first=True),
    "sep3": Separable(first=True),
    "sep3_x2": Separable(repeats=2, first=True),
    "dsep3_d2": Separable(dilation=2, first=True),
    "conv1_x2": Conv(kernel=1, repeats=2, first=True),
}
BLOCKS = {
    f"k{kernel}_d{dilation}_e{expansion}_g{groups}": InvertedBottleneck(
        kernel=kernel, dilation=dilation, expansion=expansion, groups=groups
    )
    for kernel, dilation in ((3, 1), (3, 2), (5, 1))
    for expansion, groups in ((1, 2), (1, 1), (3, 1))
}


def mixed_units(*, stride: int = 1, fuse: Fuse | None = None, recompute: bool = False) -> Mixed:
    calls: dict[str, OpCall | None] = {"zero": None}
    for name, op in UNITS.items():
        used = FactorisedReduction() if name == "skip" and stride == 2 else op
        calls[name] = OpCall(op=used, inputs=(SOURCE,), channels=4, stride=stride)
    return prepared(Mixed(calls, fuse=fuse, recompute=recompute))


def mixed_blocks(*, stride: int = 1, fuse: Fuse | None = None) -> Mixed:
    """Channels change, so nothing is added; the skip is a convolution or a factorised reduction."""
    skip = Conv(kernel=1, first=True) if stride == 1 else FactorisedReduction(norm="each")
    calls: dict[str, OpCall | None] = {
        name: OpCall(op=op, inputs=(SOURCE,), channels=6, stride=stride)
        for name, op in {**BLOCKS, "skip": skip}.items()
    }
    return prepared(Mixed(calls, fuse=fuse))


def prepared(mixed: Mixed) -> Mixed:
    scramble(mixed, seed=5)
    return mixed.double()


def draw(mixed: Mixed, images: int | None = None) -> Tensor:
    shape = (len(mixed.options),) if images is None else (images, len(mixed.options))
    return torch.softmax(torch.randn(shape, dtype=torch.float64), dim=-1).requires_grad_()


def image(count: int = 2) -> Tensor:
    return torch.randn(count, *SOURCE, dtype=torch.float64, requires_grad=True)


def gradients(mixed: Mixed, maps: Tensor, weights: Tensor) -> tuple[Tensor, list[Tensor]]:
    output = mixed(maps, weights)
    inputs = [maps, weights, *mixed.parameters()]
    return output, list(torch.autograd.grad(output.sin().sum(), inputs))


def assert_same(one: Mixed, other: Mixed, maps: Tensor, weights: Tensor) -> None:
    """Compare outputs, all gradients and the statistics left behind, at double precision."""
    (output, slopes), (wanted, wanted_slopes) = (gradients(mixed, maps, weights) for mixed in (one, other))
    torch.testing.assert_close(output, wanted, rtol=1e-9, atol=1e-9)
    for got, slope in zip(slopes, wanted_slopes, strict=True):
        torch.testing.assert_close(got, slope, rtol=1e-7, atol=1e-9)
    for name, value in other.state_dict().items():
        torch.testing.assert_close(one.state_dict()[name], value)


def runs(mixed: Mixed) -> dict[str, int]:
    """Count how often each candidate runs from now on."""
    counts = dict.fromkeys(mixed.candidates, 0)

    def counting(name: str) -> None:
        def count(*_: object) -> None:
            counts[name] += 1

        mixed.candidates[name].register_forward_hook(count)

    for name in counts:
        counting(name)
    return counts


@pytest.mark.parametrize("images", [None, 2])
def test_output_is_the_weighted_sum_of_the_candidates(images: int | None) -> None:
    mixed, maps = mixed_units().eval(), image()
    weights = draw(mixed, images)
    wanted = torch.zeros_like(maps)
    for index, name in enumerate(mixed.options):
        if name != "zero":
            for row in range(2):
                weight = weights[index] if images is None else weights[row, index]
                wanted[row] += weight * mixed.candidates[name](maps)[row]
    torch.testing.assert_close(mixed(maps, weights), wanted)


def test_one_hot_weights_run_the_chosen_candidate_alone() -> None:
    mixed = mixed_units()
    counts = runs(mixed)
    weights = torch.zeros(len(mixed.options), dtype=torch.float64)
    weights[mixed.options.index("sep3")] = 1
    mixed(image(), weights)
    assert counts == {name: int(name == "sep3") for name in counts}


@pytest.mark.parametrize(("stride", "shape"), [(1, (2, 4, 9, 11)), (2, (2, 4, 5, 6))])
def test_choosing_zero_gives_zeros_of_the_right_size(stride: int, shape: tuple[int, ...]) -> None:
    mixed = mixed_units(stride=stride)
    counts = runs(mixed)
    output = mixed(image(), torch.eye(len(mixed.options), dtype=torch.float64)[0])
    assert (tuple(output.shape), float(output.abs().sum())) == (shape, 0)
    assert not any(counts.values())


def test_a_path_scales_by_one_plus_weight_minus_its_constant() -> None:
    mixed, maps = mixed_units().eval(), image()
    soft = draw(mixed)
    chosen = int(soft.argmax())
    output = mixed(maps, straight_through(soft))
    alone = mixed.candidates[mixed.options[chosen]](maps).detach()
    assert torch.equal(output, alone)
    (slope,) = torch.autograd.grad(output.sum(), soft)
    assert float(slope[chosen]) == pytest.approx(float(alone.sum()))
    assert float(slope.abs().sum()) == pytest.approx(abs(float(slope[chosen])))


def test_the_input_is_added_once_whatever_the_weights() -> None:
    calls: Mapping[str, OpCall | None] = {
        name: OpCall(op=op, inputs=(SOURCE,), channels=4)
        for name, op in {"pool": MaxPool(), "conv": Conv(first=True), "skip": Identity()}.items()
    }
    mixed = prepared(Mixed(calls, silent=("skip",), residual=True)).eval()
    maps = image()
    weights = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    wanted = maps + 0.5 * mixed.candidates["pool"](maps) + 0.25 * mixed.candidates["conv"](maps)
    torch.testing.assert_close(mixed(maps, weights), wanted)
    skip = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    assert torch.equal(mixed(maps, skip), maps)


def test_removed_candidates_leave_no_weights_and_cannot_be_chosen() -> None:
    mixed = mixed_units()
    before = sum(value.numel() for value in mixed.parameters())
    mixed.remove(mixed.options.index("conv3_x2"))
    mixed.remove(mixed.options.index("conv3_x2"))
    assert before - sum(value.numel() for value in mixed.parameters()) == 2 * (9 * 16 + 8)
    assert mixed.options.index("conv3_x2") not in mixed.remaining
    weights = draw(mixed)
    with pytest.raises(Unsupported, match="'conv3_x2' was removed"):
        mixed(image(), weights)
    without = weights.detach().clone()
    without[mixed.options.index("conv3_x2")] = 0
    assert mixed(image(), without).shape == (2, *SOURCE)


def test_the_last_candidate_stays() -> None:
    mixed = mixed_units()
    for index in range(1, len(mixed.options)):
        mixed.remove(index)
    with pytest.raises(Unsupported, match="at least one must stay"):
        mixed.remove(0)
    assert mixed.remaining == (0,)


def test_the_number_of_weights_must_fit() -> None:
    mixed = mixed_units()
    with pytest.raises(Unsupported, match="2 weights were given for 9 candidates"):
        mixed(image(), torch.tensor([0.5, 0.5]))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("images", [None, 2])
def test_fused_units_equal_the_plain_path(training: bool, stride: int, images: int | None) -> None:
    plain, fused = mixed_units(stride=stride), mixed_units(stride=stride, fuse=FusedUnits())
    assert_same(fused.train(training), plain.train(training), image(), draw(plain, images))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("images", [None, 2])
def test_fused_inverted_residuals_equal_the_plain_path(
    training: bool, stride: int, images: int | None
) -> None:
    plain, fused = mixed_blocks(stride=stride), mixed_blocks(stride=stride, fuse=FusedInverted())
    assert_same(fused.train(training), plain.train(training), image(), draw(plain, images))


@pytest.mark.parametrize("kept", [(2, 4), (1, 3, 5, 7), (3,), (0, 1)])
def test_fusing_what_pruning_left_equals_the_plain_path(kept: tuple[int, ...]) -> None:
    plain, fused = mixed_units(), mixed_units(fuse=FusedUnits())
    mask = torch.zeros(len(plain.options), dtype=torch.float64)
    mask[list(kept)] = 1
    weights, maps = draw(plain), image()
    torch.testing.assert_close(fused(maps, weights * mask), plain(maps, weights * mask))


def test_mixes_of_one_map_fuse_together_to_the_same_sums() -> None:
    plain, fused = ([mixed_units(fuse=fuse) for _ in range(3)] for fuse in (None, FusedUnits()))
    maps, weights = image(), [draw(plain[0]) for _ in range(3)]
    weights[1] = weights[1].detach() * torch.tensor([1.0] * 4 + [0.0] * 5)
    kept = [tuple(range(9)), tuple(range(4)), tuple(range(9))]
    for got, wanted in zip(mix(fused, maps, weights, kept), mix(plain, maps, weights, kept), strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize(
    "kept", [[("sep3",), ("conv3",)], [("conv3",), ("sep3",)], [("skip", "sep3"), ("skip", "conv3")]]
)
def test_mixes_whose_units_differ_in_kind_alone_keep_their_own_kernels(kept: list[tuple[str, ...]]) -> None:
    plain, fused = ([mixed_units(fuse=fuse) for _ in kept] for fuse in (None, FusedUnits()))
    options = plain[0].options
    indices = [tuple(options.index(name) for name in names) for names in kept]
    maps, weights = image(), [draw(plain[0]) for _ in kept]
    found, wanted = (mix(mixed, maps, weights, indices) for mixed in (fused, plain))
    for got, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, right)


@pytest.mark.parametrize("fuse", [None, FusedUnits()])
def test_recomputing_changes_neither_gradients_nor_statistics(fuse: Fuse | None) -> None:
    plain, recomputed = mixed_units(), mixed_units(fuse=fuse, recompute=True)
    assert_same(recomputed.train(), plain.train(), image(), draw(plain))
    norms = [module for module in recomputed.modules() if isinstance(module, nn.BatchNorm2d)]
    assert {int(norm.num_batches_tracked) for norm in norms} == {1}  # type: ignore[arg-type]


@pytest.mark.parametrize("images", [None, 2])
def test_fused_candidates_run_under_autocast(images: int | None) -> None:
    for exact, fused in (
        (mixed_units().float(), mixed_units(fuse=FusedUnits()).float()),
        (mixed_blocks().float(), mixed_blocks(fuse=FusedInverted()).float()),
    ):
        maps, weights = image().detach().float(), draw(exact, images).detach().float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = fused.train()(maps, weights)
        wanted = exact.train()(maps, weights)
        assert float((output - wanted).detach().abs().max()) < 0.05 * float(wanted.detach().abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("images", [None, 2])
def test_compiled_kernels_equal_the_plain_path(images: int | None) -> None:
    plain, fused = mixed_blocks(), mixed_blocks(fuse=FusedInverted(compiled_kernels()))
    assert_same(fused.train(), plain.train(), image(), draw(plain, images))


@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("candidates", [2, 4])
def test_a_mix_of_channels_last_maps_stays_so_with_the_same_values(
    targets: int, weighed: bool, candidates: int
) -> None:
    generator = torch.Generator().manual_seed(candidates)
    maps = torch.randn(2, 5 * candidates, 4, 6, generator=generator, dtype=torch.float64)
    weights = torch.rand(2, candidates, generator=generator).double() if weighed else None
    found = []
    for memory in (torch.contiguous_format, torch.channels_last):
        width = maps.shape[1]
        mean, variance = torch.zeros(width).double(), torch.ones(width).double()
        scale, shift = torch.linspace(0.5, 2, width).double(), torch.linspace(-1, 1, width).double()
        state = NormState(mean, variance, scale, shift, True, 0.1, 1e-5)
        given = maps.clone(memory_format=memory).requires_grad_()
        sums = norm_mix(given, state, weights, candidates, targets).chunk(targets, dim=1)
        torch.stack([(each * (1 + index)).square().sum() for index, each in enumerate(sums)]).sum().backward()
        found.append((sums, given.grad, mean))
    (plain, gradient, first), (last, other, second) = found
    assert len(plain) == len(last) == targets
    for one, two in zip(plain, last, strict=True):
        torch.testing.assert_close(one, two)
        assert two.stride(1) == 1, "channels are no longer last in memory"
    torch.testing.assert_close(gradient, other)
    torch.testing.assert_close(first, second)


@pytest.mark.parametrize("stride", [1, 2])
def test_pooling_that_keeps_its_input_alone_is_pooling(stride: int) -> None:
    found, given = [], image().detach()
    for pool in (MaxPooling.apply, functional.max_pool2d):
        maps = given.clone().requires_grad_()
        pooled = pool(maps, 3, stride, 1)  # type: ignore[no-untyped-call, operator]
        pooled.square().sum().backward()
        found.append((pooled, maps.grad))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_fused_poolings_keep_no_places_of_maxima() -> None:
    kept: list[torch.dtype] = []
    fused = mixed_units(fuse=FusedUnits()).train()
    with torch.autograd.graph.saved_tensors_hooks(
        lambda value: kept.append(value.dtype) or value, lambda value: value
    ):
        fused(image(), draw(fused))
    assert torch.int64 not in kept


def test_the_sums_of_two_edges_are_added_as_one_map() -> None:
    maps, weights = image().detach(), torch.tensor([0.25, 2.0], dtype=torch.float64)
    for memory in (torch.contiguous_format, torch.channels_last):
        given = maps.clone(memory_format=memory)
        wanted = torch.cat([given * 0.25, given * 2], dim=1)
        torch.testing.assert_close(spread(given, weights), wanted)
        torch.testing.assert_close(spread(given, weights.expand(len(maps), 2)), wanted)
        assert spread(given, weights).is_contiguous(memory_format=memory)
