"""How much faster the first stage is on cached maps than with the encoder run every time.

    python benchmarks/feature_cache.py                                  # small sizes, CPU
    python benchmarks/feature_cache.py --crop 256x256 --images 64 --batch 16 --encoder mobilenet_v2

One training step of a decoder (forward, loss with auxiliary outputs, backward, Adam, averaging) on maps from the cache,
against the same step with augmentation and encoder before it, and against one that asks a teacher besides: its logits
are cached, too. The stand-in teacher is arch0 on ResNet-50, smaller than the paper's. All take turns in the same run.
The making of the cache is paid once per search.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import psutil
import torch
from torch import nn

import segtailor
from segtailor.core.plan import IMAGE
from segtailor.core.sampling import sample
from segtailor.core.space import architecture_document
from segtailor.core.strategy import Trial
from segtailor.core.task import Preprocessing
from segtailor.data.augment import Augment
from segtailor.nets.teacher import Teacher, teacher_of
from segtailor.recipes.evaluators import halved_pixels
from segtailor.recipes.staged_judging import open_encoder
from segtailor.search.evaluators.features import AT_ONCE, FixedEncoder, crops
from segtailor.search.evaluators.staged import STAGE1, FirstStage, Maps, StagedEvaluator
from segtailor.search.evaluators.train import HalvedPixels
from segtailor.spaces import published
from segtailor.spaces.decoder_cell import DecoderCell
from segtailor.training.averaging import Average
from segtailor.training.optimiser import make_optimiser

WANTED = 5.0
CPU = torch.device("cpu")


class Stepping:
    """A decoder that takes single steps, from the cache or through the encoder."""

    def __init__(
        self, settings: StagedEvaluator, encoder: FixedEncoder, data: HalvedPixels, maps: Maps, trial: Trial
    ) -> None:
        self.network = network = settings._network(trial, encoder, data.task.outputs)
        self.stage = FirstStage(settings, network, encoder, data.task, maps, CPU)
        self.stage.decoder.train()
        self.settings, self.encoder, self.data, self.maps = settings, encoder, data, maps
        self.part = encoder.part.eval()
        self.adam = make_optimiser(self.stage.decoder, settings.stage1)
        self.average = Average(self.stage.decoder, decay=0.9, warm_up=False)
        self.rows = np.arange(settings.stage1.batch)

    def cached(self) -> None:
        self.learn()

    def encoded(self, teacher: Teacher | None = None) -> None:
        """Augment and encode a batch, ask the teacher, then learn from it."""
        wanted = self.settings._wanted._replace(images=len(self.rows))
        for images, _ in crops(self.data.fit, wanted, self.encoder.preprocessing, device=CPU):
            with torch.inference_mode():
                self.part({IMAGE: images})
            if teacher is not None:
                teacher(images, self.encoder.preprocessing)
        self.learn()

    def learn(self) -> None:
        loss = self.stage.loss(self.rows)
        self.adam.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.stage.decoder.parameters(), 3.0)
        self.adam.step()
        self.average.update()


def macs_bound(stepping: Stepping) -> float:
    """Return the speed-up that counting allows: forward and backward of a decoder are three times its forward."""
    plan = stepping.network.plan
    encoder = sum(plan.call(node.name).macs() for node in stepping.part.order)
    decoder = 3 * sum(plan.call(node.name).macs() for node in stepping.stage.decoder.order)
    return (encoder + decoder) / decoder


def seconds(work: object) -> float:
    started = time.perf_counter()
    work()  # type: ignore[operator]
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--encoder", default="mobilenet_v2")
    parser.add_argument("--channels", type=int, default=48)
    parser.add_argument("--crop", default="256x256")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--architectures", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    height, width = (int(side) for side in options.crop.split("x"))
    cut = Augment(crop=(height, width), scale=(0.7, 1.4))
    settings = StagedEvaluator(
        features=cut, augment=cut, judge=(height, width), images=options.images,
        stage1=replace(STAGE1, batch=options.batch),
    )  # fmt: skip
    space = DecoderCell(encoder=options.encoder, channels=options.channels, repeats=1)
    with tempfile.TemporaryDirectory() as folder:
        data = halved_pixels(f"synthetic:size={height}x{width},train={2 * AT_ONCE},val=2", folder)
        encoder = open_encoder(options.encoder, settings, data.fit)
        files = settings.stores(Path(folder), encoder, data, None)
        made = seconds(lambda: settings.open(files, encoder, data, device=CPU, teacher=None))
        maps = settings.open(files, encoder, data, device=CPU, teacher=None)
        print(
            f"{psutil.cpu_count()} cores, load {psutil.getloadavg()[0]:.1f}, {options.threads} thread(s); "
            f"{options.encoder}, {options.channels} channels, {options.crop}, batch {options.batch}; "
            f"cache of {files.fit.nbytes / 2**20:.0f} MiB made in {made:.1f} s"
        )
        classes = data.task.outputs
        stand_in = replace(published("auxcells-arch0"), encoder="resnet50")
        teacher = teacher_of(segtailor.create(stand_in, classes=classes), Preprocessing(), device=CPU)
        ratios: list[tuple[float, float]] = []
        for seed in range(options.architectures):
            trial = Trial(id=seed, architecture=architecture_document(sample(space, Random(seed))), seed=seed)
            stepping = Stepping(settings, encoder, data, maps, trial)
            stepping.cached()  # warm up
            rows = [
                (
                    seconds(stepping.cached),
                    seconds(stepping.encoded),
                    seconds(partial(stepping.encoded, teacher)),
                )
                for _ in range(options.rounds)
            ]
            cached, encoded, taught = (statistics.median(column) for column in zip(*rows, strict=True))
            ratios.append((encoded / cached, taught / cached))
            print(
                f"architecture {seed}: cached {cached:.3f} s; encoder every time {encoded:.3f} s, "
                f"{ratios[-1][0]:.1f} times (by multiply-accumulates at most {macs_bound(stepping):.1f}); "
                f"encoder and teacher every time {taught:.3f} s, {ratios[-1][1]:.1f} times"
            )
    plain, taught = (statistics.median(column) for column in zip(*ratios, strict=True))
    print(f"median {plain:.1f} times faster, with the teacher {taught:.1f} (wanted {WANTED})")


if __name__ == "__main__":
    main()
