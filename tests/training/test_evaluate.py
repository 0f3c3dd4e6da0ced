"""Evaluation at full resolution, pictures of any size, resize flag of the plan."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segtailor.core.task import Preprocessing
from segtailor.nets.inference import predict_picture
from segtailor.tasks.segmentation.metrics import Confusion
from segtailor.training.evaluate import evaluate, group_by_size
from tests.training.toys import CPU, TASK, Shots, Toy

SIZES = [(20, 24), (18, 30), (20, 24), (21, 25), (20, 24), (18, 30)]
HOW = Preprocessing()


class Colour(nn.Module):
    """Tells the classes of the toy pictures by colour, without error, at full size."""

    def forward(self, image: Tensor) -> Tensor:
        red, green = image[:, 0], image[:, 1]
        return torch.stack([torch.full_like(red, 1.3), red - green, green - red], 1)


def test_a_perfect_network_scores_one() -> None:
    scores = evaluate(Colour(), Shots(SIZES), task=TASK, preprocessing=HOW, device=CPU, batch=2)
    assert scores.miou == pytest.approx(1.0)
    assert scores.images == len(SIZES)


@pytest.mark.parametrize("align_corners", [False, True])
def test_scores_equal_those_of_one_picture_at_a_time(align_corners: bool) -> None:
    network, shots = Toy(), Shots(SIZES)
    network.plan = SimpleNamespace(align_corners=align_corners)
    scores = evaluate(network, shots, task=TASK, preprocessing=HOW, device=CPU, batch=2)
    confusion = Confusion(3)
    mean, std = (torch.tensor(values)[:, None, None] for values in (HOW.mean, HOW.std))
    for image, labels in shots.pairs:
        pixels = (torch.from_numpy(image).permute(2, 0, 1) / 255 - mean) / std
        logits = network.eval()(pixels[None])
        large = F.interpolate(logits, size=labels.shape, mode="bilinear", align_corners=align_corners)
        predicted = large.argmax(1)
        confusion.add(predicted, torch.from_numpy(labels)[None])
        shown = predict_picture(network, image, task=TASK, preprocessing=HOW, device=CPU)
        assert shown.dtype == np.uint8
        assert (shown == predicted[0].numpy()).all()
    assert scores.iou == confusion.scores().iou


def test_the_network_is_left_as_it_was() -> None:
    network = Toy().train()
    before = network.norm.running_mean.clone()  # type: ignore[operator,union-attr]
    evaluate(network, Shots(SIZES), task=TASK, preprocessing=HOW, device=CPU)
    assert network.training
    assert torch.equal(before, network.norm.running_mean)  # type: ignore[arg-type]
    network(torch.rand(1, 3, 8, 8)).sum().backward()  # gradients still flow


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_processes_share_the_pictures_and_none_is_missed(processes: int) -> None:
    sizes = np.array(SIZES)
    parts = [list(group_by_size(sizes, batch=2, part=(rank, processes))) for rank in range(processes)]
    groups = [group for part in parts for group in part]
    assert sorted(index for group in groups for index in group) == list(range(len(SIZES)))
    assert all(len(group) <= 2 and len({SIZES[index] for index in group}) == 1 for group in groups)
