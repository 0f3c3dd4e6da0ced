"""Compare samples per second of our batches with a usual `DataLoader` (augmentation per sample by PIL and NumPy).

    python -m benchmarks.data_throughput [DATA] [--crop 360x480] [--batch 16] [--repeats 5] [--out FILE]

DATA is a folder with `images/train/*.jpg` and `masks/train/*.png` (CamVid, 360x480); without it, synthetic scenes of
that size are written to a temporary folder. Both sides have the same augmentation: random scale 0.5-2, crop with
padding, flip, brightness, contrast, saturation, hue, normalisation. One loader has two workers that decode each file, a
second loader gets decoded pixels; ours decodes once before (the time is printed). Rounds are interleaved, the median
round is reported, and the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance
from torch.utils.data import DataLoader, Dataset

from segtailor.core.task import Preprocessing
from segtailor.data.augment import Augment
from segtailor.data.batches import Batches
from segtailor.data.synthetic import Synthetic

JITTER = {"brightness": 0.3, "contrast": 0.3, "saturation": 0.3, "hue": 0.05}
WORKERS = 2
SCENES = 96


def main() -> None:
    arguments = parse()
    with TemporaryDirectory() as scratch:
        measure(arguments, find(arguments.data or scenes(Path(scratch))))


def measure(arguments: argparse.Namespace, files: list[tuple[Path, Path]]) -> None:
    augment = Augment(crop=arguments.crop, **JITTER)
    start = time.perf_counter()
    images, labels = decode(files)
    decoding = time.perf_counter() - start
    sizes = np.tile(images.shape[1:3], (len(images), 1))
    device = torch.device("cpu")
    ours = Batches(
        images=images,
        labels=labels,
        sizes=sizes,
        augment=augment,
        batch=arguments.batch,
        seed=0,
        device=device,
    )
    shared = [torch.from_numpy(pixels).share_memory_() for pixels in (images, labels)]
    loaders = {
        "DataLoader": loader(Conventional(files, augment), arguments.batch),
        "DataLoader, decoded": loader(Conventional(files, augment, shared), arguments.batch),
    }
    threads = {f"ours, {count} threads": count for count in sorted({1, torch.get_num_threads()})}
    rounds: dict[str, list[float]] = {name: [] for name in [*loaders, *threads]}
    for repeat in range(arguments.repeats + 1):  # the first round warms up
        measured = {name: time_loader(each) for name, each in loaders.items()}
        for name, count in threads.items():
            torch.set_num_threads(count)
            measured[name] = time_ours(ours, arguments.batch)
        for name, rate in measured.items():
            if repeat:
                rounds[name].append(rate)
    report(rounds, decoding=decoding, out=arguments.out)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--crop", type=lambda text: tuple(map(int, text.split("x"))), default=(360, 480))
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def scenes(folder: Path) -> Path:
    """Write synthetic scenes in the layout of CamVid."""
    for kind in ("images", "masks"):
        (folder / kind / "train").mkdir(parents=True)
    for sample in Synthetic(size=(360, 480), images={"train": SCENES}).samples("train"):
        image, labels = sample.read()
        Image.fromarray(image).save(folder / "images" / "train" / f"{sample.name}.jpg", quality=90)
        Image.fromarray(labels).save(folder / "masks" / "train" / f"{sample.name}.png")
    return folder


def find(data: Path) -> list[tuple[Path, Path]]:
    images = sorted((data / "images" / "train").glob("*.jpg"))
    if not images:
        raise SystemExit(f"{data} holds no images/train/*.jpg; give the CamVid folder.")
    return [(image, data / "masks" / "train" / f"{image.stem}.png") for image in images]


def decode(files: list[tuple[Path, Path]]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    images = np.stack([np.asarray(Image.open(image).convert("RGB")) for image, _ in files])
    return images, np.stack([np.asarray(Image.open(mask)) for _, mask in files])


class Conventional(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The usual dataset of training programs: one sample at a time, PIL for pixels, NumPy for the rest."""

    def __init__(
        self, files: list[tuple[Path, Path]], augment: Augment, decoded: list[torch.Tensor] | None = None
    ) -> None:
        self.files = files
        self.augment = augment
        self.decoded = decoded

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        rng = np.random.default_rng()
        image, mask = self.read(index)
        scale = rng.uniform(*self.augment.scale)
        size = (round(image.width * scale), round(image.height * scale))
        image, mask = (
            image.resize(size, Image.Resampling.BILINEAR),
            mask.resize(size, Image.Resampling.NEAREST),
        )
        image, mask = self.cropped(image, mask, rng)
        if rng.random() < self.augment.flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            mask = mask.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        image = self.coloured(image, rng)
        how = Preprocessing()
        pixels = (np.asarray(image, np.float32) / 255 - np.float32(how.mean)) / np.float32(how.std)
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy()), torch.from_numpy(np.array(mask))

    def read(self, index: int) -> tuple[Image.Image, Image.Image]:
        if self.decoded is not None:
            image, mask = (Image.fromarray(pixels[index].numpy()) for pixels in self.decoded)
            return image, mask
        return Image.open(self.files[index][0]).convert("RGB"), Image.open(self.files[index][1])

    def cropped(
        self, image: Image.Image, mask: Image.Image, rng: np.random.Generator
    ) -> tuple[Image.Image, Image.Image]:
        height, width = self.augment.crop
        left, top = (
            int(np.sign(slack) * rng.integers(0, abs(slack) + 1))
            for slack in (image.width - width, image.height - height)
        )
        if left >= 0 and top >= 0:
            box = (left, top, left + width, top + height)
            return image.crop(box), mask.crop(box)
        canvas, labels = (
            Image.new("RGB", (width, height), (124, 116, 104)),
            Image.new("L", (width, height), 255),
        )
        canvas.paste(image, (-left, -top))
        labels.paste(mask, (-left, -top))
        return canvas, labels

    def coloured(self, image: Image.Image, rng: np.random.Generator) -> Image.Image:
        for name, enhance in (
            ("brightness", ImageEnhance.Brightness),
            ("contrast", ImageEnhance.Contrast),
            ("saturation", ImageEnhance.Color),
        ):
            strength = getattr(self.augment, name)
            image = enhance(image).enhance(rng.uniform(1 - strength, 1 + strength))
        turned = np.array(image.convert("HSV"))
        turned[..., 0] += np.uint8(int(rng.uniform(-self.augment.hue, self.augment.hue) * 255) % 256)
        return Image.fromarray(turned, "HSV").convert("RGB")


def loader(samples: Conventional, batch: int) -> DataLoader[tuple[torch.Tensor, torch.Tensor]]:
    return DataLoader(
        samples, batch, shuffle=True, drop_last=True,
        num_workers=WORKERS, persistent_workers=True, multiprocessing_context="spawn",
    )  # fmt: skip


def time_loader(batches: DataLoader[tuple[torch.Tensor, torch.Tensor]]) -> float:
    start, count = time.perf_counter(), 0
    for images, _ in batches:
        count += len(images)
    return count / (time.perf_counter() - start)


def time_ours(batches: Batches, batch: int) -> float:
    start = time.perf_counter()
    for step in range(batches.steps_per_epoch):
        batches.at(step)
    return batches.steps_per_epoch * batch / (time.perf_counter() - start)


def report(rounds: dict[str, list[float]], *, decoding: float, out: Path | None) -> None:
    reference = statistics.median(rounds["DataLoader"])
    print(f"{'pipeline':<22}{'samples/s':>12}{'lowest':>10}{'highest':>10}{'ratio':>8}")
    result: dict[str, object] = {"decoded_once_s": round(decoding, 2), "workers": WORKERS}
    for name, rates in rounds.items():
        middle = statistics.median(rates)
        print(f"{name:<22}{middle:>12.0f}{min(rates):>10.0f}{max(rates):>10.0f}{middle / reference:>8.1f}")
        result[name] = {"samples_per_s": middle, "rounds": rates, "ratio": middle / reference}
    best = max(statistics.median(rates) for name, rates in rounds.items() if name.startswith("ours"))
    result["ratio"] = (
        best / reference
    )  # with the better thread count: two threads are slow if other programs use the cores
    text = json.dumps(result)
    print(text)
    if out:
        out.write_text(text + "\n")


if __name__ == "__main__":
    main()
