import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from segtailor.core.errors import Unsupported
from segtailor.core.space import Decision
from segtailor.nets import relax


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_removed_options_have_no_probability_and_no_gradient() -> None:
    logits = torch.tensor([0.3, 5.0, -1.0, 0.7], requires_grad=True)
    active = torch.tensor([True, False, True, True])
    probabilities = relax.softmax(logits, temperature=2.0, active=active)
    assert probabilities[1] == 0
    kept = torch.softmax(logits.detach()[active] / 2, dim=0)
    torch.testing.assert_close(probabilities.detach()[active], kept)
    probabilities[0].backward()
    assert logits.grad is not None
    assert logits.grad[1] == 0
    assert bool((logits.grad[active] != 0).all())


def test_draws_never_choose_removed_options() -> None:
    active = torch.tensor([False, True, True])
    draws = relax.gumbel(torch.zeros(3), temperature=0.5, generator=generator(), images=100, active=active)
    assert bool((draws[:, 0] == 0).all())
    torch.testing.assert_close(draws.sum(dim=1), torch.ones(100))


@pytest.mark.parametrize("images", [None, 2])
def test_a_decision_keeps_at_least_one_option(images: int | None) -> None:
    none = torch.zeros(3, dtype=torch.bool)
    with pytest.raises(Unsupported, match="keep at least one"):
        relax.gumbel(torch.zeros(3), temperature=1.0, generator=generator(), images=images, active=none)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize(
    "call",
    [
        lambda t: relax.softmax(torch.zeros(2), temperature=t),
        lambda t: relax.gumbel(torch.zeros(2), temperature=t, generator=generator()),
        lambda t: relax.linear(5.0, t, 0.5),
        lambda t: relax.geometric(t, 1.0, 0.5),
        lambda t: relax.exponential(t, 0.1, 3),
    ],
)
def test_temperatures_that_are_not_positive_are_refused(
    call: Callable[[float], object], temperature: float
) -> None:
    with pytest.raises(Unsupported, match="positive"):
        call(temperature)


@pytest.mark.parametrize("temperature", [0.1, 5.0])
def test_the_largest_weight_of_a_draw_is_a_categorical_sample(temperature: float) -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, 0.5])
    draws = relax.gumbel(logits, temperature=temperature, generator=generator(), images=40_000)
    shares = torch.bincount(draws.argmax(dim=1), minlength=4) / 40_000
    torch.testing.assert_close(shares, torch.softmax(logits, dim=0), atol=0.01, rtol=0)


def test_noise_follows_the_generator_and_differs_between_images() -> None:
    table = torch.zeros(3, 5)
    first = relax.gumbel(table, temperature=1.0, generator=generator(4), images=2)
    again = relax.gumbel(table, temperature=1.0, generator=generator(4), images=2)
    assert first.shape == (3, 2, 5)
    assert torch.equal(first, again)
    assert not torch.equal(first[:, 0], first[:, 1])
    assert relax.gumbel(table, temperature=1.0, generator=generator(4)).shape == (3, 5)


def test_noise_is_finite_and_has_the_mean_of_a_gumbel() -> None:
    noise = relax.gumbel_noise((200_000,), generator=generator())
    assert bool(torch.isfinite(noise).all())
    assert abs(float(noise.mean()) - 0.5772) < 0.01
    assert abs(float(noise.var()) - math.pi**2 / 6) < 0.03


def test_straight_through_weights_are_exactly_one_hot_with_the_soft_gradient() -> None:
    logits = torch.randn(6, 7, requires_grad=True)
    factors = torch.randn(6, 7)
    soft = relax.softmax(logits, temperature=0.3)
    (wanted,) = torch.autograd.grad((soft * factors).sum(), logits, retain_graph=True)
    hard = relax.straight_through(soft)
    (got,) = torch.autograd.grad((hard * factors).sum(), logits)
    assert set(hard.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(hard.argmax(dim=1), soft.argmax(dim=1))
    torch.testing.assert_close(got, wanted)


def test_pruned_weights_are_rescaled_and_never_all_zero() -> None:
    soft = torch.tensor([0.7, 0.2995, 0.0005])
    torch.testing.assert_close(relax.pruned(soft), torch.tensor([0.7, 0.2995, 0.0]) / 0.9995)
    even = torch.full((10,), 0.1)
    torch.testing.assert_close(relax.pruned(even, threshold=0.5), even)
    torch.testing.assert_close(relax.pruned(soft, threshold=0.0), soft)
    with pytest.raises(Unsupported, match="threshold"):
        relax.pruned(soft, threshold=1.0)


def test_a_pair_keeps_two_options_for_each_image_and_fewer_where_fewer_are_left() -> None:
    soft = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.0, 1.0, 0.0]])
    wanted = torch.tensor([[0.625, 0.375, 0.0], [0.0, 2 / 9, 7 / 9], [0.0, 1.0, 0.0]])
    torch.testing.assert_close(relax.paired(soft), wanted)
    row = soft[0].clone().requires_grad_()
    (relax.paired(row) * torch.tensor([1.0, 0.0, 5.0])).sum().backward()  # type: ignore[no-untyped-call]
    assert row.grad is not None
    assert row.grad[0] > 0 > row.grad[1]  # the two that run are compared with each other
    assert row.grad[2] == 0


def test_a_temperature_on_the_device_relaxes_as_a_number_does() -> None:
    logits = torch.tensor([0.3, -1.0, 2.0])
    wanted = relax.softmax(logits, temperature=0.7)
    assert torch.equal(relax.softmax(logits, temperature=torch.tensor(0.7)), wanted)


def test_modes_leave_depths_soft_on_a_path_and_prune_everything() -> None:
    decisions = [
        Decision(name="edge", options=("a", "b", "c"), group="op"),
        Decision(name="depth", options=(1, 2, 3), group="depth", ordered=True),
    ]
    soft = {name: torch.tensor([0.6, 0.3996, 0.0004]) for name in ("edge", "depth")}
    assert relax.driving(decisions, soft, "soft") == soft
    path = relax.driving(decisions, soft, "path")
    assert path["edge"].tolist() == [1, 0, 0]
    assert path["depth"] is soft["depth"]
    pair = relax.driving(decisions, soft, "pair")
    torch.testing.assert_close(pair["edge"], torch.tensor([0.6, 0.3996, 0.0]) / 0.9996)
    assert pair["depth"] is soft["depth"]
    assert relax.live(relax.driving(decisions, soft, "prune")) == {"edge": (0, 1), "depth": (0, 1)}


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(Unsupported, match="soft, pair, path, prune"):
        relax.driving([], {}, "hard")  # type: ignore[arg-type]


def test_live_options_are_those_with_weight_for_any_image() -> None:
    weights: dict[str, Tensor] = {
        "batch": torch.tensor([0.0, 0.4, 0.6]),
        "images": torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        "one": relax.one_hot(2, 4),
    }
    assert relax.live(weights) == {"batch": (1, 2), "images": (0, 1), "one": (2,)}
    assert relax.live({}) == {}


def test_one_hot_refuses_an_option_that_does_not_exist() -> None:
    with pytest.raises(Unsupported, match="there are 3"):
        relax.one_hot(3, 3)


def test_entropy_is_zero_for_choices_and_greatest_when_uniform() -> None:
    assert float(relax.entropy(relax.one_hot(1, 4))) == 0
    assert float(relax.entropy(torch.full((4,), 0.25))) == pytest.approx(math.log(4))


def test_linear_schedule_has_the_values_of_autortnet() -> None:  # specification section 8.2
    values = [relax.linear(3.0, 0.03, epoch / 150) for epoch in (0, 75, 149)]
    assert values == pytest.approx([3.0, 1.515, 0.0498])


def test_geometric_schedule_goes_by_equal_factors() -> None:
    values = [relax.geometric(5.0, 1.0, part / 4) for part in range(5)]
    assert (values[0], values[-1]) == pytest.approx((5.0, 1.0))
    assert values[1] / values[0] == pytest.approx(values[4] / values[3])


def test_exponential_schedule_reaches_one_when_fbnet_does() -> None:
    assert relax.exponential(5.0, 0.045, 36) == pytest.approx(1.0, abs=0.02)


def test_schedules_refuse_progress_outside_the_plan() -> None:
    with pytest.raises(Unsupported, match="from 0 to 1"):
        relax.linear(5.0, 1.0, 1.2)
