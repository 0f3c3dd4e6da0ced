"""Depth as a kind: crops keep values whole, pictures have a scale, files say what they give."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from segtailor.core.errors import DataProblem, UserError
from segtailor.core.task import Preprocessing, Task
from segtailor.data.augment import Augment, draw, resample
from segtailor.tasks import Look, kind_of
from segtailor.tasks.depth import DepthMaps, colourise_depth, depth_colours, scale_ticks, shown_span

TASK = Task(classes=("depth",), kind="depth", span=(0.5, 20.0))
PLAIN = Preprocessing(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


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
