"""The inverse Huber loss: equal to the formula written out pixel by pixel, blind to gaps, the same in parts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from segtailor.core.errors import Unsupported, UserError
from segtailor.core.task import Task
from segtailor.tasks import LossSettings, kind_of

TASK = Task(classes=("depth",), kind="depth", span=(0.5, 20.0))
CPU = torch.device("cpu")


def case(gaps: float = 0.3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    depths = 0.5 + 9 * torch.rand(2, 6, 8, generator=generator)
    depths[torch.rand(depths.shape, generator=generator) < gaps] = 0
    return (4 + 3 * torch.randn(2, 1, 6, 8, generator=generator)).requires_grad_(), depths


def loss_of(outputs: dict[str, Tensor], depths: Tensor, **how: object) -> Tensor:
    criterion = kind_of(TASK).criterion(LossSettings(**how), task=TASK, device=CPU)  # type: ignore[arg-type]
    return criterion(outputs, depths, normaliser=criterion.normaliser(depths))


def by_hand(predicted: Tensor, depths: Tensor, knee: float) -> float:
    pairs = zip(predicted.flatten().tolist(), depths.flatten().tolist(), strict=True)
    errors = [abs(found - true) for found, true in pairs if true > 0]
    limit = knee * max(errors)
    terms = [error if error <= limit else (error**2 + limit**2) / (2 * limit) for error in errors]
    return sum(terms) / len(terms)


@pytest.mark.parametrize("knee", [0.2, 0.5, 1.0])
def test_the_loss_is_the_published_formula_over_measured_pixels(knee: float) -> None:
    output, depths = case()
    assert loss_of({"main": output}, depths, knee=knee).item() == pytest.approx(
        by_hand(output[:, 0], depths, knee), rel=1e-5
    )


def test_gaps_neither_count_nor_get_a_gradient() -> None:
    output, depths = case()
    loss_of({"main": output}, depths).backward()
    assert output.grad is not None
    assert (output.grad[:, 0][depths == 0] == 0).all()
    assert (output.grad[:, 0][depths > 0] != 0).all()


def test_a_batch_without_any_depth_costs_nothing_and_moves_nothing() -> None:
    output, depths = case()
    loss = loss_of({"main": output}, torch.zeros_like(depths))
    loss.backward()
    assert loss.item() == 0
    assert output.grad is not None
    assert not output.grad.any()


def test_a_perfect_prediction_costs_nothing_and_has_a_finite_gradient() -> None:
    _, depths = case(gaps=0)
    output = depths[:, None].clone().requires_grad_()
    loss = loss_of({"main": output}, depths)
    loss.backward()
    assert loss.item() == 0
    assert output.grad is not None
    assert torch.isfinite(output.grad).all()


def test_outputs_at_the_networks_stride_are_enlarged_to_the_depth() -> None:
    _, depths = case()
    small = torch.rand(2, 1, 3, 4) * 5
    full = torch.nn.functional.interpolate(small, size=(6, 8), mode="bilinear", align_corners=False)
    assert loss_of({"main": small}, depths).item() == pytest.approx(
        by_hand(full[:, 0], depths, 0.2), rel=1e-5
    )


def test_depth_may_be_shrunk_to_the_output_instead_without_inventing_values() -> None:
    _, depths = case()
    small = torch.rand(2, 1, 3, 4) * 5
    assert loss_of({"main": small}, depths, resize="labels").item() == pytest.approx(
        by_hand(small[:, 0], depths[:, ::2, ::2], 0.2), rel=1e-5
    )


def test_auxiliary_outputs_count_by_their_coefficients() -> None:
    output, depths = case()
    alone = loss_of({"main": output}, depths)
    both = loss_of({"main": output, "aux": output}, depths, auxiliary={"aux": 0.25})
    assert both.item() == pytest.approx(1.25 * alone.item(), rel=1e-6)


@pytest.mark.parametrize(
    "how", [{"ohem": 0.7}, {"label_smoothing": 0.1}, {"class_weights": (1.0,)}, {"balance": True}]
)
def test_settings_that_mean_nothing_for_depth_are_refused(how: dict[str, object]) -> None:
    with pytest.raises(Unsupported, match=f"loss.{next(iter(how))} has no effect for the task 'depth'"):
        loss_of({"main": torch.zeros(1, 1, 2, 2)}, torch.ones(1, 2, 2), **how)


def test_a_knee_that_is_no_share_is_refused() -> None:
    with pytest.raises(UserError, match="knee"):
        LossSettings(knee=0.0)


def test_depth_settings_are_refused_for_classes() -> None:
    task = Task(classes=("a", "b"))
    with pytest.raises(Unsupported, match=r"loss\.knee has no effect"):
        kind_of(task).criterion(LossSettings(knee=0.5), task=task, device=CPU)
