"""A short training on rendered scenes and people beats every predictor that never looks at a picture."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from segtailor.api.training import Surroundings, train
from segtailor.data.augment import Augment
from segtailor.data.batches import Batches
from segtailor.data.cache import open_pixels
from segtailor.data.locate import locate
from segtailor.training.fit import Fit
from segtailor.training.settings import FitSettings
from tests.tasks.test_end_to_end import trivial

torch.set_num_threads(1)
CPU = torch.device("cpu")


def learnt(network: str, data: str, folder: Path, *changes: str) -> dict[str, float]:
    usual = ("fit.batch=16", "fit.optimiser=adamw", "fit.weight_decay=0.0001", "fit.validate_batch=20")
    around = Surroundings(cache=folder / "cache", device="cpu")
    result = train(
        network, folder / "run", data=data, changes=[*usual, *changes], check=False, surroundings=around
    )
    return {name: value for name, value in result.items() if isinstance(value, float)}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_depth_is_learnt_far_beyond_constants_and_row_means(tmp_path: Path) -> None:
    data = "synthetic:task=depth,size=64x128,train=400,val=60"
    changes = ("fit.steps=500", "fit.lr=0.01", "augment.scale=[1.0,1.0]")
    found = learnt("fast-scnn", data, tmp_path, *changes)
    guesses = trivial(data, tmp_path / "cache")
    for name, least in (("median", 0.35), ("row means", 0.2)):
        for figure in ("rmse", "abs_rel", "rmse_log"):
            assert found[figure] < (1 - least) * guesses[name][figure], (name, figure)
        assert found["delta1"] > guesses[name]["delta1"] + 0.05


class Hourglass(nn.Module):
    """Down to a sixteenth and up to a quarter again: the least that can tell where a joint is."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.quarter = nn.Sequential(_block(3, 24, 2), _block(24, 32, 2))
        self.eighth = nn.Sequential(_block(32, 64, 2), _block(64, 64))
        self.sixteenth = nn.Sequential(_block(64, 96, 2), _block(96, 96), _block(96, 64))
        self.up = nn.Sequential(_block(64, 64), _block(64, 32))
        self.last = nn.Sequential(_block(32, 32), nn.Conv2d(32, outputs, 1))

    def forward(self, images: Tensor) -> Tensor:
        quarter = self.quarter(images)
        eighth = self.eighth(quarter)
        joined = self.up(_twice(self.sixteenth(eighth)) + eighth)
        heat: Tensor = self.last(_twice(joined) + quarter)
        return heat


def _block(inputs: int, outputs: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


def _twice(maps: Tensor) -> Tensor:
    return nn.functional.interpolate(maps, scale_factor=2.0, mode="bilinear")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_people_are_found_far_better_than_by_the_mean_pose(tmp_path: Path) -> None:
    data = "synthetic:task=pose,size=96x96,crop=96x96,train=500,val=60"
    dataset = locate(data)
    train_pixels, val_pixels = (open_pixels(dataset, split, tmp_path) for split in ("train", "val"))
    images, joints = train_pixels.canvas()
    torch.manual_seed(0)
    fit = Fit(
        network=Hourglass(dataset.task.outputs),
        batches=partial(
            Batches,
            images=images,
            labels=joints,
            sizes=train_pixels.sizes,
            targets=train_pixels.targets,
            augment=Augment(crop=(96, 96), scale=(0.9, 1.1), rotate=15.0),
            device=CPU,
        ),
        settings=FitSettings(
            steps=700, batch=16, optimiser="adam", lr=3e-3, weight_decay=0.0, validate_batch=20
        ),
        task=dataset.task,
        device=CPU,
        validation=val_pixels,
    )
    for _ in fit.steps():
        pass
    (mean_pose,) = trivial(data, tmp_path).values()
    assert fit.scores is not None
    assert fit.scores.quality > mean_pose["pckh"] + 0.3
