"""Depth: pictures and predictions, the inverse Huber loss and the figures, against formulas written out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from segtailor.core.errors import DataProblem, Unsupported, UserError
from segtailor.core.task import Preprocessing, Task
from segtailor.data.augment import Augment, draw, resample
from segtailor.tasks import Look, LossSettings, kind_of
from segtailor.tasks.depth import (
    DepthMaps,
    DepthMeter,
    DepthScores,
    colourise_depth,
    depth_colours,
    scale_ticks,
    shown_span,
)
from tests.support import shared

TASK = Task(classes=("depth",), kind="depth", span=(0.5, 20.0))
PLAIN = Preprocessing(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
CPU = torch.device("cpu")
SPAN = (0.1, 10.0)
SCORED_TASK = Task(classes=("depth",), kind="depth", span=SPAN)
NYU = ("231", "255", "437", "438")


def crops(depth: torch.Tensor, augment: Augment, seed: int = 0) -> torch.Tensor:
    count, height, width = depth.shape
    drawn = draw(augment, np.array([[height, width]] * count), rng=np.random.default_rng(seed))
    images = torch.zeros(count, 3, height, width, dtype=torch.uint8)
    _, found = resample(
        images, depth, index=np.arange(count), drawn=drawn, preprocessing=PLAIN, targets=DepthMaps()
    )
    return found


def test_an_enlarged_picture_is_nearer_by_its_scale() -> None:
    depth = torch.full((2, 16, 16), 8.0)
    assert (crops(depth, Augment(crop=(8, 8), scale=(2.0, 2.0))) == 4.0).all()
    assert (crops(depth, Augment(crop=(8, 8), scale=(0.5, 0.5))) == 16.0).all()
    assert (crops(depth, Augment(crop=(8, 8), scale=(2.0, 2.0), rescale_depth=False)) == 8.0).all()


def test_a_mirrored_picture_keeps_its_depth() -> None:
    depth = torch.arange(1.0, 9.0).repeat(1, 4, 1)
    assert torch.equal(crops(depth, Augment(crop=(4, 8), scale=(1.0, 1.0), flip=1.0)), depth.flip(2))


def test_gaps_are_never_mixed_with_depths_and_outside_is_a_gap() -> None:
    depth = torch.where(torch.rand(4, 12, 12, generator=torch.Generator().manual_seed(0)) < 0.5, 6.0, 0.0)
    found = crops(depth, Augment(crop=(24, 24), scale=(0.7, 1.6), rescale_depth=False))
    assert set(found.unique().tolist()) == {0.0, 6.0}
    assert (found[:, 0, 0] == 0).any()


def test_predictions_stay_within_the_span_of_the_task() -> None:
    logits = torch.tensor([-3.0, 4.0, 99.0]).view(1, 1, 1, 3)
    found = kind_of(TASK).decode(logits, (1, 3), task=TASK, align_corners=False)
    assert found.flatten().tolist() == [0.5, 4.0, 20.0]


def test_samples_with_impossible_depths_are_refused() -> None:
    targets = kind_of(TASK).targets(TASK)
    for bad in (np.nan, -1.0, np.inf):
        with pytest.raises(DataProblem, match="'x'"):
            targets.check(np.array([[1.0, bad]], np.float32), name="x")


def test_near_is_light_far_is_dark_and_gaps_are_black() -> None:
    light = depth_colours() @ np.array([0.299, 0.587, 0.114])
    assert (np.diff(light) > 0).all()
    painted = colourise_depth(np.array([[1.0, 10.0, 0.0]], np.float32), (1.0, 10.0))
    assert painted[0, 0].tolist() == depth_colours()[255].tolist()
    assert painted[0, 1].tolist() == depth_colours()[0].tolist()
    assert painted[0, 2].tolist() == [0, 0, 0]


@pytest.mark.parametrize(("near", "far"), [(0.5, 0.6), (0.7, 8.0), (1.0, 80.0), (0.01, 5000.0)])
def test_the_scale_names_few_round_depths_within_the_picture(near: float, far: float) -> None:
    ticks = scale_ticks(near, far)
    assert 2 <= len(ticks) <= 6
    assert ticks == sorted(ticks)
    assert near * 0.99 <= ticks[0] < ticks[-1] <= far * 1.01


def test_pictures_keep_their_size_and_show_a_scale_where_there_is_room() -> None:
    kind, depth = kind_of(TASK), np.linspace(1, 9, 120 * 300, dtype=np.float32).reshape(120, 300)
    image = np.full((120, 300, 3), 90, np.uint8)
    painted = kind.paint(image, depth, TASK, Look())
    assert painted.size == (300, 120)
    assert not np.array_equal(np.asarray(painted), colourise_depth(depth, shown_span(depth)))
    tiny = kind.paint(image[:8, :8], depth[:8, :8], TASK, Look(form="overlay", opacity=0.0))
    assert np.array_equal(np.asarray(tiny), image[:8, :8])


def test_bare_values_are_millimetres_in_16_bits() -> None:
    depth = np.array([[0.5, 2.3456]], np.float32)
    painted = kind_of(TASK).paint(np.zeros((1, 2, 3), np.uint8), depth, TASK, Look(form="ids"))
    assert painted.mode == "I;16"
    assert np.asarray(painted).tolist() == [[500, 2346]]


def test_a_finished_output_of_another_size_is_resized_and_nonsense_refused() -> None:
    kind = kind_of(TASK)
    found = kind.finish(np.full((4, 6), 3.0, np.float32), (8, 12), task=TASK)
    assert found.shape == (8, 12)
    assert np.allclose(found, 3.0)
    with pytest.raises(UserError, match="not numbers"):
        kind.finish(np.array([[np.nan]]), (1, 1), task=TASK)


def test_targets_of_another_size_take_the_nearest_depth() -> None:
    depth = np.array([[1.0, 0.0], [3.0, 4.0]], np.float32)
    bigger = DepthMaps().resized(depth, (2, 2), (4, 4))
    assert bigger.shape == (4, 4)
    assert set(bigger.ravel().tolist()) == {0.0, 1.0, 3.0, 4.0}
    assert Image.fromarray(bigger).mode == "F"


def case(gaps: float = 0.3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    depths = 0.5 + 9 * torch.rand(2, 6, 8, generator=generator)
    depths[torch.rand(depths.shape, generator=generator) < gaps] = 0
    return (4 + 3 * torch.randn(2, 1, 6, 8, generator=generator)).requires_grad_(), depths


def loss_of(outputs: dict[str, Tensor], depths: Tensor, **how: object) -> Tensor:
    criterion = kind_of(TASK).criterion(LossSettings(**how), task=TASK, device=CPU)  # type: ignore[arg-type]
    return criterion(outputs, depths, normaliser=criterion.normaliser(depths))


def loss_by_hand(predicted: Tensor, depths: Tensor, knee: float) -> float:
    pairs = zip(predicted.flatten().tolist(), depths.flatten().tolist(), strict=True)
    errors = [abs(found - true) for found, true in pairs if true > 0]
    limit = knee * max(errors)
    terms = [error if error <= limit else (error**2 + limit**2) / (2 * limit) for error in errors]
    return sum(terms) / len(terms)


@pytest.mark.parametrize("knee", [0.2, 0.5, 1.0])
def test_the_loss_is_the_published_formula_over_measured_pixels(knee: float) -> None:
    output, depths = case()
    assert loss_of({"main": output}, depths, knee=knee).item() == pytest.approx(
        loss_by_hand(output[:, 0], depths, knee), rel=1e-5
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
        loss_by_hand(full[:, 0], depths, 0.2), rel=1e-5
    )


def test_depth_may_be_shrunk_to_the_output_instead_without_inventing_values() -> None:
    _, depths = case()
    small = torch.rand(2, 1, 3, 4) * 5
    assert loss_of({"main": small}, depths, resize="labels").item() == pytest.approx(
        loss_by_hand(small[:, 0], depths[:, ::2, ::2], 0.2), rel=1e-5
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


def scored(*pairs: tuple[NDArray[np.float32], NDArray[np.float32]]) -> DepthScores:
    meter = kind_of(SCORED_TASK).meter(SCORED_TASK, torch.device("cpu"))
    assert isinstance(meter, DepthMeter)
    for found, truth in pairs:
        meter.add(torch.from_numpy(found)[None], torch.from_numpy(truth)[None])
    return meter.scores()


def figures_by_hand(found: NDArray[np.float32], truth: NDArray[np.float32]) -> dict[str, float]:
    """Eigen et al. (2014), section 4.2, written for one picture with plain NumPy."""
    known = (truth >= SPAN[0]) & (truth <= SPAN[1])
    p, d = found[known].astype(float), truth[known].astype(float)
    ratio = np.maximum(p / d, d / p)
    return {
        "rmse": float(np.sqrt(np.mean((p - d) ** 2))),
        "rmse_log": float(np.sqrt(np.mean((np.log(p) - np.log(d)) ** 2))),
        "abs_rel": float(np.mean(np.abs(p - d) / d)),
        "sqr_rel": float(np.mean((p - d) ** 2 / d)),
        **{f"delta{k}": float(np.mean(ratio < 1.25**k)) for k in (1, 2, 3)},
    }


def random_pair(seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    truth = rng.uniform(0.2, 12, (20, 30)).astype(np.float32)
    truth[rng.random(truth.shape) < 0.2] = 0
    return (truth * rng.uniform(0.5, 1.8, truth.shape) + 0.05).astype(np.float32), truth


def test_figures_are_those_of_each_picture_averaged() -> None:
    pairs = [random_pair(seed) for seed in range(3)]
    found = scored(*pairs).figures()
    expected = [figures_by_hand(*pair) for pair in pairs]
    for name in expected[0]:
        assert found[name] == pytest.approx(np.mean([row[name] for row in expected]), rel=1e-6), name


def test_the_truth_itself_has_no_error() -> None:
    _, truth = random_pair(1)
    result = scored((truth, truth))
    assert (result.rmse, result.rmse_log, result.abs_rel, result.sqr_rel) == (0, 0, 0, 0)
    assert (result.delta1, result.delta2, result.delta3) == (1, 1, 1)
    assert result.quality == result.reward == 1


def test_a_picture_without_depth_is_left_out_of_the_averages() -> None:
    pair, blank = random_pair(2), (np.ones((4, 4), np.float32), np.zeros((4, 4), np.float32))
    assert scored(pair, blank).figures() == scored(pair).figures()
    assert scored(blank).figures() == dict.fromkeys(scored(blank).figures(), 0.0)


def test_predictions_that_are_not_positive_are_bad_not_fatal() -> None:
    _, truth = random_pair(3)
    result = scored((np.zeros_like(truth), truth))
    assert result.delta1 == 0
    assert np.isfinite(result.rmse_log)


def test_processes_add_up_to_the_whole() -> None:
    pairs = [random_pair(seed) for seed in range(4)]
    parts = [DepthMeter(SPAN), DepthMeter(SPAN)]
    for index, (found, truth) in enumerate(pairs):
        parts[index % 2].add(torch.from_numpy(found)[None], torch.from_numpy(truth)[None])
    other = parts[1].sums
    parts[0].merge(lambda own: own + other)
    assert parts[0].scores().figures() == pytest.approx(scored(*pairs).figures())


def nyu(name: str) -> NDArray[np.float32]:
    file = shared(f"data/samples/nyud/{name}_depth_mm.png")
    return (np.asarray(Image.open(file)).astype(np.float64) / 1000).astype(np.float32)


def test_real_depth_has_no_error_against_itself() -> None:
    result = scored(*((nyu(name), nyu(name)) for name in NYU))
    assert result.rmse == 0
    assert result.delta1 == 1


@pytest.mark.parametrize("metres", [1.5, 2.5, 4.0])
def test_constants_score_on_real_pictures_what_an_independent_program_says(metres: float) -> None:
    truths = [nyu(name) for name in NYU]
    pairs = [(np.full_like(truth, metres), truth) for truth in truths]
    expected = [figures_by_hand(*pair) for pair in pairs]
    found = scored(*pairs).figures()
    for name in expected[0]:
        assert found[name] == pytest.approx(np.mean([row[name] for row in expected]), rel=1e-5), name


def test_published_predictions_beat_the_best_constant_on_real_pictures() -> None:
    """The orientation figures (RMSE 0.357 m, abs rel 0.112, delta 0.910) must be far better than any constant."""
    truths = [nyu(name) for name in NYU]
    best = min(
        scored(*((np.full_like(truth, metres), truth) for truth in truths)).rmse
        for metres in np.arange(1.0, 5.0, 0.25)
    )
    assert best > 1.3 * 0.422  # the worst of the three published networks


def test_figures_are_averaged_over_images_and_pooled_over_pixels() -> None:
    truth = torch.full((2, 2, 4), 2.0)
    truth[1, :, 1:] = 0  # two pixels of the second image are measured, eight of the first
    found = torch.stack([torch.full((2, 4), 3.0), torch.full((2, 4), 2.0)])
    meter = DepthMeter((0.1, 10.0))
    for one, other in zip(found.split(1), truth.split(1), strict=True):
        meter.add(one, other)
    scores = meter.scores()
    assert scores.rmse == pytest.approx((1 + 0) / 2)
    assert scores.pooled_rmse == pytest.approx(math.sqrt(8 / 10))
    assert scores.delta1 == pytest.approx(0.5)
    assert scores.pooled_delta1 == pytest.approx(2 / 10)
    assert scores.pooled_abs_rel == pytest.approx(0.5 * 8 / 10)
    assert {"rmse", "pooled_rmse"} <= set(scores.document(()))
