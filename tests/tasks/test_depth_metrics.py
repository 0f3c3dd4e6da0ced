"""The figures of depth: equal to plain NumPy, exact on the truth, and right for constants on real pictures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from segtailor.core.task import Task
from segtailor.tasks import kind_of
from segtailor.tasks.depth import DepthMeter, DepthScores
from tests.support import shared

SPAN = (0.1, 10.0)
TASK = Task(classes=("depth",), kind="depth", span=SPAN)
NYU = ("231", "255", "437", "438")


def scored(*pairs: tuple[NDArray[np.float32], NDArray[np.float32]]) -> DepthScores:
    meter = kind_of(TASK).meter(TASK, torch.device("cpu"))
    assert isinstance(meter, DepthMeter)
    for found, truth in pairs:
        meter.add(torch.from_numpy(found)[None], torch.from_numpy(truth)[None])
    return meter.scores()


def by_hand(found: NDArray[np.float32], truth: NDArray[np.float32]) -> dict[str, float]:
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
    expected = [by_hand(*pair) for pair in pairs]
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
    expected = [by_hand(*pair) for pair in pairs]
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
