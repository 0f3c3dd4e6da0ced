from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from random import Random

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from segtailor.core.errors import Unsupported
from segtailor.core.plan import OpCall, Shape
from segtailor.core.variation import sample_picks
from segtailor.nets.network import Network, initialise
from segtailor.nets.relax import (
    Mode,
    driving,
    gumbel,
    live,
    one_hot,
    one_hot_weights,
    softmax,
    straight_through,
)
from segtailor.nets.supernet import Supernet, SupernetSettings, keep_only
from segtailor.spaces.hyper_cell import ADJACENT_SCALES, OWN_PATHS, HyperCell, MultiScale
from segtailor.spaces.hyper_cell.architecture import CELL_OPS
from segtailor.spaces.hyper_cell.supernet import HyperCellSupernet
from segtailor.testing import check_supernet
from segtailor.testing.supernets import (
    arbitrary_price,
    check_architectures,
    check_cost,
    check_outputs,
    scramble,
)

TINY = HyperCell(depths=(2, 3, 3), widths=(4, 6, 8), stem=4, wiring=replace(OWN_PATHS, width=8),
                 context=MultiScale(branch=8, output=8, rates=(6, 12)))  # fmt: skip
PUBLISHED = HyperCell()
IMAGE = Shape(3, 32, 48)
SEARCH = SupernetSettings(affine=False)
MODES: tuple[Mode, ...] = ("soft", "path", "prune")


def uniform(space: HyperCell) -> dict[str, Tensor]:
    return {
        decision.name: torch.full((len(decision.options),), 1 / len(decision.options), dtype=torch.float64)
        for decision in space.decisions
    }


def logits(space: HyperCell, *, std: float = 0.01) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        decision.name: (std * torch.randn(len(decision.options), generator=generator)).requires_grad_()
        for decision in space.decisions
    }


def drawn(rows: Mapping[str, Tensor], *, seed: int = 0, temperature: float = 1.0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: gumbel(row, temperature=temperature, generator=generator) for name, row in rows.items()}


def prepared(space: HyperCell, settings: SupernetSettings = SEARCH) -> HyperCellSupernet:
    supernet = space.supernet(IMAGE, 4, settings=settings)
    initialise(supernet, seed=0)
    return supernet.train()


def cross_entropy(supernet: HyperCellSupernet, weights: Mapping[str, Tensor], *, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randn(2, *IMAGE, generator=generator)
    labels = torch.randint(4, (2, IMAGE.height, IMAGE.width), generator=generator)
    full = functional.interpolate(supernet(pixels, weights)["main"], size=labels.shape[1:], mode="bilinear")
    return functional.cross_entropy(full, labels)


def one(call: OpCall) -> float:
    return 1.0


def busy(space: HyperCell, depths: tuple[int, ...], seed: int = 0) -> dict[str, int]:
    """Return picks without `zero` at given depths."""
    picks = sample_picks(space, Random(seed))
    picks |= {name: 1 + pick % 9 for name, pick in picks.items() if "_edge" in name}
    return picks | {f"depth{stage + 1}": depth - 1 for stage, depth in enumerate(depths)}


@pytest.mark.parametrize("wiring", [OWN_PATHS, ADJACENT_SCALES, None])
def test_supernet_stands_for_its_networks(wiring: object) -> None:
    space = replace(TINY, wiring=wiring and replace(wiring, width=8))  # type: ignore[type-var,call-overload]
    check_supernet(space, image=Shape(3, 33, 47), draws=6)


@pytest.mark.slow
def test_every_combination_of_depths_equals_its_network() -> None:
    supernet = TINY.supernet(IMAGE, 4)
    combinations = product(*(range(1, deepest + 1) for deepest in TINY.depths))
    architectures = [TINY.architecture(busy(TINY, depths, seed)) for seed, depths in enumerate(combinations)]
    assert len(architectures) == 18
    check_architectures(TINY, supernet, architectures, image=IMAGE, classes=4)


@pytest.mark.slow
def test_all_48_depths_of_the_specification_equal_their_networks() -> None:  # section 5.2
    space = replace(TINY, depths=(3, 4, 4))
    supernet = space.supernet(IMAGE, 4)
    combinations = list(product(range(3), range(4), range(4)))
    rng = Random(0)
    picks = [
        sample_picks(space, rng) | {"depth1": one, "depth2": two, "depth3": three}
        for one, two, three in combinations
    ]
    check_architectures(space, supernet, map(space.architecture, picks), image=IMAGE, classes=4)


def test_costs_follow_what_zero_operators_leave_unread() -> None:
    supernet, rng, sizes = TINY.supernet(IMAGE, 4), Random(1), set()
    for _ in range(60):
        picks = sample_picks(TINY, rng)
        picks |= {name: 0 for name in picks if "_edge" in name and rng.random() < 0.6}
        arch = TINY.architecture(picks)
        check_cost(TINY, supernet, arch, image=IMAGE, classes=4)
        names = {node.name for node in TINY.plan(arch, IMAGE, 4).nodes}
        cells = sum(stage.depth for stage in arch.stages)
        sizes.add(cells - sum(name.endswith("_out") and name.startswith("hyper") for name in names))
    assert max(sizes) > 0  # some plans lack whole cells, so the test has seen them


@pytest.mark.slow
def test_published_supernet_has_twelve_million_weights() -> None:  # specification section 8.4
    with torch.device("meta"):
        supernet = PUBLISHED.supernet(Shape(3, 768, 1536), 19)
    assert sum(value.numel() for value in supernet.parameters()) == pytest.approx(12.0e6, rel=0.005)


def test_latency_of_uniform_weights_is_that_of_the_specification() -> None:  # section 11, test 3
    with torch.device("meta"):
        supernet = PUBLISHED.supernet(Shape(3, 768, 1536), 19)
    assert float(supernet.searched_cost(uniform(PUBLISHED), one)) == pytest.approx(14 * 5 * 0.9)
    picks = busy(PUBLISHED, (2, 4, 6))
    weights = one_hot_weights(PUBLISHED.decisions, picks)
    assert float(supernet.searched_cost(weights, one)) == 60


@pytest.mark.slow
def test_a_later_exit_costs_every_cell_up_to_it() -> None:  # section 11, test 4
    supernet = PUBLISHED.supernet(Shape(3, 64, 64), 4)
    weights = {name: row.requires_grad_() for name, row in uniform(PUBLISHED).items()}
    supernet.searched_cost(weights, arbitrary_price).backward()
    for stage in supernet._stages():
        costs = torch.stack([cell.operator_cost(weights, arbitrary_price) for cell in stage.supercells()])
        torch.testing.assert_close(weights[stage.depth_key].grad, costs.detach().cumsum(0))
        assert bool((costs > 0).all())


def test_relaxed_cost_of_depths_is_exact_in_expectation() -> None:
    supernet = TINY.supernet(IMAGE, 4)
    rng = torch.Generator().manual_seed(0)
    chances = [torch.softmax(torch.randn(deepest, generator=rng).double(), 0) for deepest in TINY.depths]
    fixed = one_hot_weights(TINY.decisions, busy(TINY, (1, 1, 1)))
    weights = {name: row.double() for name, row in fixed.items()}
    weights |= {f"depth{stage + 1}": row for stage, row in enumerate(chances)}
    wanted = 0.0
    for depths in product(*(range(1, deepest + 1) for deepest in TINY.depths)):
        chance = torch.stack([row[depth - 1] for row, depth in zip(chances, depths, strict=True)]).prod()
        plan = TINY.plan(TINY.architecture(busy(TINY, depths)), IMAGE, 4)
        wanted += float(chance) * sum(arbitrary_price(call) for call in plan.calls)
    assert float(supernet.cost(weights, arbitrary_price)) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.slow
def test_searched_cost_is_the_mean_over_drawn_architectures() -> None:
    supernet = TINY.supernet(IMAGE, 4)
    rows = {name: row.detach() for name, row in logits(TINY, std=1.0).items()}
    means = {name: torch.softmax(row, dim=0) for name, row in rows.items()}
    generator = torch.Generator().manual_seed(0)
    hard = {
        name: straight_through(gumbel(row, temperature=1.0, generator=generator, images=4000))
        for name, row in rows.items()
    }
    draws = [{name: row[draw] for name, row in hard.items()} for draw in range(4000)]
    sampled = [float(supernet.searched_cost(weights, one)) for weights in draws[:400]]
    expected = float(supernet.searched_cost(means, one))
    assert sum(sampled) / 400 == pytest.approx(expected, rel=0.05)


def test_latency_alone_shrinks_the_expected_depths() -> None:
    supernet = TINY.supernet(IMAGE, 4)
    rows = logits(TINY)
    keys = [name for name in rows if name.startswith("depth")]

    def depth() -> list[float]:
        chances = [softmax(rows[key].detach()) for key in keys]
        return [float((row * torch.arange(1, len(row) + 1)).sum()) for row in chances]

    before = depth()
    optimiser = torch.optim.Adam([rows[key] for key in keys], lr=0.05)
    for _ in range(20):
        optimiser.zero_grad()
        weights = {name: softmax(row) for name, row in rows.items()}
        supernet.searched_cost(weights, one).log().backward()
        optimiser.step()
    assert all(after < start - 0.1 for after, start in zip(depth(), before, strict=True))


def test_the_aggregation_cell_has_no_latency_term_but_is_part_of_the_cost() -> None:
    supernet = TINY.supernet(IMAGE, 4)
    weights = {name: row.requires_grad_() for name, row in uniform(TINY).items()}
    keys = [name for name in weights if name.startswith("aggregation")]
    assert len(keys) == 7
    supernet.searched_cost(weights, arbitrary_price).backward()
    assert all(weights[key].grad is None for key in keys)
    supernet.cost(weights, arbitrary_price).backward()
    assert all(weights[key].grad is not None for key in keys)


@pytest.mark.slow
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_cross_entropy_reaches_the_depths_in_every_mode(mode: Mode, fused: bool) -> None:
    supernet, rows = prepared(TINY, replace(SEARCH, fused=fused)), logits(TINY)
    weights = driving(TINY.decisions, drawn(rows), mode)
    cross_entropy(supernet, weights).backward()
    for number in (1, 2, 3):
        slope = rows[f"depth{number}"].grad
        assert slope is not None
        assert float(slope.abs().sum()) > 1e-4


def test_a_single_straight_through_exit_would_kill_the_gradient() -> None:
    supernet, rows = prepared(TINY), logits(TINY)
    soft = drawn(rows)
    weights = soft | {name: straight_through(row) for name, row in soft.items() if name.startswith("depth")}
    cross_entropy(supernet, weights).backward()
    slope = rows["depth3"].grad
    assert slope is not None
    assert float(slope.abs().sum()) < 1e-5  # the trap that `driving` avoids (specification section 8.4)


@pytest.mark.parametrize("settings", [SupernetSettings(), SEARCH, SupernetSettings(fused=True)])
def test_every_weight_gets_a_gradient(settings: SupernetSettings) -> None:
    supernet = prepared(TINY, settings)
    cross_entropy(supernet, drawn(logits(TINY))).backward()
    trained = [(name, value) for name, value in supernet.named_parameters() if value.requires_grad]
    missing = [name for name, value in trained if value.grad is None or not bool(value.grad.any())]
    assert not missing


def test_a_path_runs_one_operator_per_edge() -> None:
    supernet = prepared(TINY)
    soft = drawn(logits(TINY))
    cross_entropy(supernet, driving(TINY.decisions, soft, "path")).backward()
    for stage in supernet._stages():
        for cell in stage.supercells():
            for key, mixed in zip(cell.frame.keys, cell.mixed, strict=True):
                chosen = CELL_OPS[int(soft[key].argmax())]
                used = {
                    name
                    for name, module in mixed.candidates.items()
                    if any(value.grad is not None for value in module.parameters())
                }
                assert used <= {chosen}


@pytest.mark.slow
def test_pruning_runs_no_cells_behind_the_last_exit_and_approaches_soft_weights() -> None:
    supernet, runs = prepared(TINY), []
    last = supernet._stages()[2].supercells()[-1]
    last.register_forward_hook(lambda *_: runs.append(1))
    soft = drawn(logits(TINY)) | {"depth3": torch.tensor([0.5, 0.4995, 0.0005])}
    wanted = cross_entropy(supernet, soft)
    assert len(runs) == 1
    pruned = cross_entropy(supernet, driving(TINY.decisions, soft, "prune"))
    assert len(runs) == 1
    assert float((pruned - wanted).detach().abs()) < 0.05
    exact = cross_entropy(supernet, driving(TINY.decisions, soft, "prune", threshold=0.0))
    torch.testing.assert_close(exact, wanted)


@pytest.mark.parametrize("size", [(48, 96), (45, 60), (47, 61)])
def test_one_image_of_any_size_can_be_trained_on(size: tuple[int, int]) -> None:
    supernet = prepared(TINY)
    outputs = supernet(torch.randn(1, 3, *size), drawn(logits(TINY)))
    outputs["main"].mean().backward()
    assert outputs["main"].shape[2:] == tuple(-(-side // 16) for side in size)


@pytest.mark.parametrize("images", [None, 2])
@pytest.mark.slow
def test_fused_training_step_equals_the_plain_one(images: int | None) -> None:
    pixels, steps = torch.randn(2, *IMAGE, dtype=torch.float64), []
    generator = torch.Generator().manual_seed(0)
    rows = {
        name: gumbel(row.detach().double(), temperature=1.0, generator=generator, images=images)
        for name, row in logits(TINY).items()
    }
    for settings in (SupernetSettings(), SupernetSettings(fused=True)):
        supernet = TINY.supernet(IMAGE, 4, settings=settings)
        scramble(supernet, seed=2)
        supernet.double().train()
        weights = {name: row.clone().requires_grad_() for name, row in rows.items()}
        loss = supernet(pixels, weights)["main"].square().mean()
        slopes = torch.autograd.grad(loss, [*weights.values(), *supernet.parameters()])
        steps.append((loss, slopes, supernet.state_dict()))
    torch.testing.assert_close(steps[1], steps[0], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("mode", ["path", "pair"])
def test_fused_edges_of_few_operators_equal_the_plain_ones(mode: Mode) -> None:
    pixels, supernets = torch.randn(1, *IMAGE, dtype=torch.float64), []
    for settings in (SupernetSettings(), SupernetSettings(fused=True)):
        supernet = TINY.supernet(IMAGE, 4, settings=settings)
        scramble(supernet, seed=2)
        supernets.append(supernet.double().eval())
    for seed in range(8):  # edges of one map then differ in what runs, and in its kind
        rows = drawn({name: row.detach().double() for name, row in logits(TINY).items()}, seed=seed)
        weights = driving(TINY.decisions, rows, mode)
        kept = live(weights)
        plain, fused = (supernet(pixels, weights, kept)["main"] for supernet in supernets)
        torch.testing.assert_close(fused, plain)


def test_norms_without_scale_transfer_as_identity() -> None:
    supernet = prepared(TINY)
    arch = TINY.architecture(busy(TINY, (2, 2, 2)))
    network = Network(TINY.plan(arch, IMAGE, 4))
    scramble(network, seed=1)
    supernet.transfer(arch, network)
    norm = network.nodes["hyper2_cell1_edge02"]
    scales = [value for name, value in norm.state_dict().items() if name.endswith("norm1.weight")]
    assert all(torch.equal(scale, torch.ones_like(scale)) for scale in scales)
    supernet.eval()
    check_outputs(TINY, supernet, arch, torch.randn(1, *IMAGE), classes=4)


def test_removing_an_operator_removes_it_from_all_cells_that_share_it() -> None:
    supernet = TINY.supernet(IMAGE, 4)
    assert isinstance(supernet, Supernet)
    before = sum(value.numel() for value in supernet.parameters())
    supernet.remove("normal2_edge02", CELL_OPS.index("conv3"))
    gone = before - sum(value.numel() for value in supernet.parameters())
    assert gone == 2 * (9 * 36 + 12)  # two normal cells of width 6
    assert CELL_OPS.index("conv3") not in supernet.remaining()["normal2_edge02"]
    assert supernet.remaining()["depth2"] == (0, 1, 2)
    with pytest.raises(Unsupported, match="edges are called"):
        supernet.remove("depth2", 1)


@pytest.mark.slow
def test_a_resumed_search_restores_what_was_removed() -> None:
    supernet, again = TINY.supernet(IMAGE, 4), TINY.supernet(IMAGE, 4)
    for decision, option in (("normal1_edge13", 4), ("reduction3_edge02", 0), ("aggregation_H1_N1", 2)):
        supernet.remove(decision, option)
    with pytest.raises(RuntimeError, match="Missing key"):
        again.load_state_dict(supernet.state_dict())
    keep_only(again, supernet.remaining())
    again.load_state_dict(supernet.state_dict())
    assert again.remaining() == supernet.remaining()


@pytest.mark.parametrize("depths", [(1, 1, 1), (2, 1, 2)])
def test_spaces_of_little_depth_have_supernets_too(depths: tuple[int, int, int]) -> None:
    check_supernet(replace(TINY, depths=depths), image=IMAGE, draws=3)


def test_a_cell_whose_operators_are_all_zero_still_runs() -> None:
    supernet = prepared(TINY)
    weights = drawn(logits(TINY))
    weights |= {name: one_hot(0, 10) for name in weights if name.startswith("normal1")}
    assert bool(torch.isfinite(cross_entropy(supernet, weights)))
