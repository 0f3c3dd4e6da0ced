"""The temperature of a network's confidence, fitted to labelled pixels of a split."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from segtailor.core.task import Preprocessing
from segtailor.nets.bundle import Model, set_temperature
from segtailor.nets.inference import aligns_corners, inference, normalise
from segtailor.tasks.enlarging import enlarge
from segtailor.tasks.segmentation.confidence import ConfidenceCalibration, calibrate, sample_pixels
from segtailor.training.evaluate import LabelledImages
from segtailor.training.threads import chosen_threads

MAX_SAMPLED_PIXELS = 2**20  # of all images: 44 MB for 11 classes
MIN_PIXELS_PER_IMAGE = 256


def calibrate_model(
    model: Model,
    samples: LabelledImages,
    *,
    classes: int,
    device: torch.device,
    split: str,
    data: str,
    folder: Path | None = None,
) -> dict[str, Any]:
    """Fit the temperature of a model's confidence and return the figures; the bundle in `folder`, if given, keeps both.

    The figures name `split` and `data`, which the samples come from. The expected calibration error after the fit is
    measured on images that it did not use; fewer than two images with labels raise `DataProblem`.
    """
    found = fit_calibration(
        model.network.to(device),
        samples,
        classes=classes,
        preprocessing=model.preprocessing,
        device=device,
    )
    figures: dict[str, Any] = {**asdict(found), "split": split, "data": data}
    if folder is not None:
        set_temperature(folder, found.temperature, figures)
    return figures


def fit_calibration(
    network: nn.Module,
    samples: LabelledImages,
    *,
    classes: int,
    preprocessing: Preprocessing,
    device: torch.device,
    seed: int = 0,
) -> ConfidenceCalibration:
    """Run a network on all images, and fit a temperature to some labelled pixels of each."""
    most = max(MIN_PIXELS_PER_IMAGE, MAX_SAMPLED_PIXELS // max(len(samples), 1))
    generator = torch.Generator().manual_seed(seed)
    logits, labels = [], []
    with inference(network), chosen_threads(device):
        for index in range(len(samples)):
            image, target = samples.pair(index)
            found = network(normalise(image[None], preprocessing, device))
            full = enlarge(found, image.shape[:2], align_corners=aligns_corners(network))[0].cpu()
            truth = torch.from_numpy(np.array(target))
            some, true = sample_pixels(full, truth, classes=classes, most=most, generator=generator)
            logits.append(some.clone())
            labels.append(true)
    return calibrate(logits, labels)
