"""Measure how much faster the first stage is on cached maps than with the encoder run in every step.

    python -m benchmarks.feature_cache                                  # small sizes, CPU
    python -m benchmarks.feature_cache --device cuda --encoders mobilenet_v2,resnet50 --crop 256x256,512x512 \\
        --images 256 --batch 64 --rounds 30 --out runs/feature-cache.json

One training step of a decoder (forward, loss with auxiliary outputs, backward, Adam, averaging) on maps from the cache
is compared with the same step after augmentation and encoder (evaluation mode, no gradients), and with one that also
runs a teacher, whose logits can be cached, too. The teacher is arch0 on ResNet-50, smaller than the paper's. All are
interleaved in one run, with the same decoder step. Making the cache is not included: it is done once per search.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import segtailor
from segtailor.core.plan import IMAGE
from segtailor.core.space import architecture_document
from segtailor.core.strategy import Trial
from segtailor.core.task import Preprocessing
from segtailor.core.variation import sample
from segtailor.data.augment import Augment
from segtailor.data.batches import Batches
from segtailor.nets.network import Network
from segtailor.nets.teacher import Teacher, teacher_of
from segtailor.recipes.evaluators import halved_pixels, open_encoder
from segtailor.spaces import published
from segtailor.spaces.decoder_cell import DecoderCell
from segtailor.strategies.evaluators.features import ENCODER_BATCH, FixedEncoder
from segtailor.strategies.evaluators.first_stage import DecoderLearner, FirstStage
from segtailor.strategies.evaluators.staged import STAGE1, StagedEvaluator
from segtailor.strategies.halves import HalvedPixels
from segtailor.tasks.enlarging import enlarge
from segtailor.training import device as devices

GOAL = 5.0  # speed-up


class Stepping:
    """A decoder trained by single steps, from the cache or through the encoder, with or without a teacher."""

    def __init__(
        self, settings: StagedEvaluator, stage: FirstStage, encoder: FixedEncoder, data: HalvedPixels,
        teacher: Teacher | None,
    ) -> None:  # fmt: skip
        self.stage, self.how, self.teacher = stage, settings.stage1, teacher
        stage.decoder.train()
        self.learner = DecoderLearner(stage)
        self.part = encoder.part.eval()
        devices.place(self.part, stage.device, channels_last=self.how.channels_last)
        images, labels = data.fit.canvas()
        self.batches = Batches(
            images=images, labels=labels, sizes=data.fit.sizes, augment=settings.features,
            preprocessing=encoder.preprocessing, batch=self.how.batch, seed=0, device=stage.device,
        )  # fmt: skip
        self.order, self.step = np.random.default_rng(0), 0

    def cached(self) -> None:
        """Train on random rows of the cache."""
        total = len(self.stage.maps.fit["labels"])
        self.learner(self.stage.batch(np.sort(self.order.permutation(total)[: self.how.batch])))

    def encoded(self) -> None:
        """Augment and encode a batch, run the teacher, then train on it."""
        self.step += 1
        batch = self.batches.at(self.step)
        images = devices.arrange(batch.images, channels_last=self.how.channels_last)
        with torch.no_grad(), devices.autocast(self.stage.device, self.how.precision):
            maps = list(self.part({IMAGE: images}).values())
            size = (int(maps[0].shape[2]), int(maps[0].shape[3]))
            labels = functional.interpolate(batch.labels[:, None], size=size, mode="nearest")[:, 0]
            found: dict[str, Tensor] = {f"tap{level}": value.float() for level, value in enumerate(maps)}
            if self.teacher is not None:
                found["logits"] = enlarge(self.teacher.logits(images).float(), size, align_corners=False)
        self.learner({**found, "labels": labels})


def macs_bound(network: Network, stage: FirstStage, encoder: FixedEncoder) -> float:
    """Return the largest possible speed-up by MACs; forward and backward of a decoder count three times its forward."""
    plan = network.plan
    before = sum(plan.call(node.name).macs() for node in encoder.part.order)
    decoder = 3 * sum(plan.call(node.name).macs() for node in stage.decoder.order)
    return (before + decoder) / decoder


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Time one call until the device has finished."""
    wait = partial(torch.cuda.synchronize, device) if device.type == "cuda" else int
    wait()
    started = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - started


def medians(
    ways: Sequence[Callable[[], object]], options: argparse.Namespace, device: torch.device
) -> list[float]:
    """Time several functions, interleaved; return the median of each."""
    for _ in range(options.warmup):
        for way in ways:
            way()
    times = [[seconds(way, device) for way in ways] for _ in range(options.rounds)]
    return [statistics.median(column) for column in zip(*times, strict=True)]


def compared(name: str, crop: tuple[int, int], options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure one encoder at one crop, for several random decoders."""
    device = torch.device(options.device)
    cut = Augment(crop=crop, scale=(0.7, 1.4))
    how = replace(STAGE1, batch=options.batch, precision=options.precision)
    settings = StagedEvaluator(features=cut, augment=cut, judge=crop, images=options.images, stage1=how)
    space = DecoderCell(encoder=name, channels=options.channels, repeats=1)
    scenes = f"synthetic:size={crop[0]}x{crop[1]},train={2 * ENCODER_BATCH},val=2"
    data = halved_pixels(scenes, str(folder), judging=0.5)
    encoder = open_encoder(name, settings, data.fit)
    classes = data.task.outputs
    stand_in = segtailor.create(replace(published("auxcells-arch0"), encoder="resnet50"), classes=classes)
    devices.place(stand_in, device, channels_last=how.channels_last)
    teacher = teacher_of(stand_in, Preprocessing(), device=device)
    files = settings.stores(folder, encoder, data, teacher)
    opened = partial(settings.open, files, encoder, data, device=device, teacher=teacher)
    made = seconds(opened, device)
    maps = opened()
    rows = []
    for seed in range(options.architectures):
        trial = Trial(id=seed, architecture=architecture_document(sample(space, Random(seed))), seed=seed)
        row: dict[str, float] = {}
        for kind, own, guide in (("", maps._replace(logits=None), None), ("_taught", maps, teacher)):
            network = settings._network(trial, encoder, classes)
            stage = FirstStage(settings, network, encoder, data.task, own, device)
            stepping = Stepping(settings, stage, encoder, data, guide)
            cached, encoded = medians((stepping.cached, stepping.encoded), options, device)
            row |= {f"cached_ms{kind}": 1000 * cached, f"encoded_ms{kind}": 1000 * encoded}
            row[f"gain{kind}"] = encoded / cached
        rows.append({**row, "macs_bound": macs_bound(network, stage, encoder)})
    middle = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    kept = "device" if isinstance(maps.fit["labels"], Tensor) else "file"
    return {
        "encoder": name, "crop": list(crop), "cache_mib": files.fit.nbytes / 2**20, "cache_s": made, "kept": kept,
        "median": middle, "architectures": rows,
    }  # fmt: skip


def line(row: dict[str, Any]) -> str:
    middle, crop = row["median"], "x".join(map(str, row["crop"]))
    return (
        f"| {row['encoder']} | {crop} | {row['kept']} | {middle['cached_ms']:.2f} | {middle['encoded_ms']:.2f} | "
        f"{middle['gain']:.1f} | {middle['gain_taught']:.1f} | {middle['macs_bound']:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--encoders", default="mobilenet_v2", help="separated by commas")
    parser.add_argument("--crop", default="256x256", help="separated by commas")
    parser.add_argument("--channels", type=int, default=48)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=1, help="at least 5 on a GPU, where steps are recorded")
    parser.add_argument("--architectures", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON file, written after every row")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    crops = [(int(h), int(w)) for h, w in (crop.split("x") for crop in options.crop.split(","))]
    rows = []
    for name in options.encoders.split(","):
        for crop in crops:
            with tempfile.TemporaryDirectory() as folder:
                rows.append(compared(name, crop, options, Path(folder)))
            print(line(rows[-1]), flush=True)
            if options.out:
                facts = {key: str(value) for key, value in vars(options).items()}
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps({"setting": facts, "rows": rows}, indent=1))
    print(
        "\n| encoder | crop | maps kept in | cached ms | encoder every time ms | gain | with teacher | MACs allow |"
    )
    print("|---|---|---|---|---|---|---|---|")
    print("\n".join(map(line, rows)))
    print(f"goal: {GOAL} times; batch {options.batch}, {options.channels} channels, {options.device}")


if __name__ == "__main__":
    main()
