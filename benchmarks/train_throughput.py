"""Compare images per second of the whole training pipeline with a plain loop over ready tensors, on one device.

    python -m benchmarks.train_throughput [--network lpsnet-s] [--crop 352x480] [--batch 16] [--rounds 5]

Both train the same network with SGD in bf16 and channels_last. The plain loop repeats one ready batch; the pipeline
adds random scale, crop, flip, colour jitter, the check for non-finite steps, weight averaging and progress records.
Pixels are random: their values do not change the speed. Rounds are interleaved, the median round is reported, and the
last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

import segtailor
from segtailor.core.task import Task
from segtailor.data.augment import Augment
from segtailor.data.batches import Batch, Batches
from segtailor.tasks.enlarging import enlarge
from segtailor.training.device import arrange, autocast, make_deterministic, pick_device, place
from segtailor.training.fit import Fit
from segtailor.training.settings import FitSettings

CLASSES, IMAGES = 11, 128


def main() -> None:
    arguments = parse()
    device = pick_device(arguments.device)
    make_deterministic(on=False)
    job = pipeline(arguments, device)
    plain = PlainLoop(arguments.network, job.source.at(0), device)
    rates: dict[str, list[float]] = {"plain": [], "pipeline": [], "batches": []}
    for number in range(arguments.rounds + 1):  # the first round warms up
        measured = {
            "plain": timed(plain.step, device, arguments),
            "pipeline": timed(
                lambda step: job.engine.step(job.source.at(step), rate=0.01), device, arguments
            ),
            "batches": timed(job.source.at, device, arguments),
        }
        for name, rate in measured.items():
            if number:
                rates[name].append(rate)
    middle = {name: statistics.median(values) for name, values in rates.items()}
    for name, rate in middle.items():
        print(f"{name:<12}{rate:>10.0f} images/s   {min(rates[name]):.0f} to {max(rates[name]):.0f}")
    share = middle["pipeline"] / middle["plain"]
    print(f"pipeline / plain: {share:.0%}")
    result = {**vars(arguments), "device": str(device), "images_per_s": middle, "share": share}
    print(json.dumps(result))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="lpsnet-s")
    parser.add_argument("--crop", type=lambda text: tuple(map(int, text.split("x"))), default=(352, 480))
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60, help="steps per round")
    parser.add_argument("--device")
    return parser.parse_args()


def pipeline(arguments: argparse.Namespace, device: torch.device) -> Fit:
    rng = np.random.default_rng(0)
    height, width = arguments.crop
    augment = Augment(crop=arguments.crop, brightness=0.3, contrast=0.3, saturation=0.3, hue=0.05)
    factory = partial(
        Batches,
        images=rng.integers(0, 256, (IMAGES, height, width, 3), dtype=np.uint8),
        labels=rng.integers(0, CLASSES, (IMAGES, height, width), dtype=np.uint8),
        sizes=np.tile(arguments.crop, (IMAGES, 1)),
        augment=augment,
        device=device,
    )
    settings = FitSettings(steps=10**6, batch=arguments.batch, precision="bf16", ema=0.999)
    task = Task(classes=tuple(f"class {k}" for k in range(CLASSES)))
    network = segtailor.create(arguments.network, classes=CLASSES)
    return Fit(network=network, batches=factory, settings=settings, task=task, device=device)


class PlainLoop:
    """Forward, cross-entropy, backward, step; nothing else."""

    def __init__(self, name: str, batch: Batch, device: torch.device) -> None:
        self.network = place(segtailor.create(name, classes=CLASSES), device, channels_last=True).train()
        self.images, self.labels = arrange(batch.images, channels_last=True), batch.labels.long()
        self.size = (self.labels.shape[1], self.labels.shape[2])
        self.optimiser = torch.optim.SGD(self.network.parameters(), lr=0.01, momentum=0.9, fused=True)
        self.device = device

    def step(self, _number: int) -> None:
        with autocast(self.device, "bf16"):
            logits = enlarge(self.network(self.images), self.size, align_corners=True)
            loss = F.cross_entropy(logits.float(), self.labels, ignore_index=255)
        loss.backward()
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)


def timed(step: object, device: torch.device, arguments: argparse.Namespace) -> float:
    start = time.perf_counter()
    for number in range(arguments.steps):
        step(number)  # type: ignore[operator]
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return arguments.steps * arguments.batch / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
