"""A worker that trains: what a recipe's worker entry does, in miniature."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from segtailor import spaces as spaces  # registers the families in a fresh worker
from segtailor.core.codec import from_json
from segtailor.core.strategy import Trial, TrialResult
from segtailor.data.cache import open_pixels
from segtailor.data.locate import locate
from segtailor.strategies.evaluators.train import HalvedPixels, TrainEvaluator
from segtailor.strategies.halves import FIT, JUDGE, HalvedTrain


def evaluate(trial: Trial, device: str) -> TrialResult:
    settings = dict(trial.evaluator)
    data = _pixels(settings.pop("data"), settings.pop("cache"))
    evaluator = from_json(TrainEvaluator, settings, what="evaluator")
    return evaluator.judge(trial, data=data, device=torch.device(device))


@cache
def _pixels(data: str, folder: str) -> HalvedPixels:
    halved = HalvedTrain(dataset=locate(data))
    fit, judge = (open_pixels(halved, half, Path(folder)) for half in (FIT, JUDGE))
    return HalvedPixels(halved.task, fit, judge)
