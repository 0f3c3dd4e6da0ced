"""Make a small set of images and masks with typical defects: mixed sizes, colour masks, a damaged file.

python examples/custom_set.py FOLDER [--images 40]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from segtailor.data.locate import locate

SIZES = (
    (96, 160),
    (96, 160),
    (96, 160),
    (112, 144),
    (128, 128),
)  # most images have one size


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=40)
    chosen = parser.parse_args()
    make(chosen.folder, count=chosen.images)
    print(f"{chosen.images} images in {chosen.folder}; next: segtailor data check folder:{chosen.folder}")


def make(folder: Path, *, count: int) -> None:
    """Write images with colour masks, divided into train and val; one image is truncated."""
    for kind in ("images", "masks"):
        for split in ("train", "val"):
            (folder / kind / split).mkdir(parents=True, exist_ok=True)
    for index in range(count):
        height, width = SIZES[index % len(SIZES)]
        scenes = locate(f"synthetic:size={height}x{width},train=1,val=1,seed={index}")
        pixels, labels = scenes.samples("train")[0].read()
        split = "val" if index % 5 == 4 else "train"
        if split == "val":  # one class is missing in val: `data check` should report it
            labels = np.where(labels == len(scenes.task.classes) - 1, 0, labels).astype(np.uint8)
        colours = np.array(
            [*scenes.task.palette, *[(0, 0, 0)] * (256 - len(scenes.task.palette))], dtype=np.uint8
        )
        Image.fromarray(pixels).save(folder / "images" / split / f"scene{index:03d}.jpg", quality=92)
        Image.fromarray(colours[labels]).save(folder / "masks" / split / f"scene{index:03d}.png")
    damaged = folder / "images" / "train" / "scene001.jpg"
    damaged.write_bytes(damaged.read_bytes()[:400])


if __name__ == "__main__":
    main()
