"""How many planted wrong labels does `data suggest` find? python -m benchmarks.planted_labels CAMVID

Of CamVid's training images 120 are taken, evenly spaced. In every tenth a mistake is planted, in turn: a class that
covers at least 3 % of the image becomes another class, or the whole mask is moved by 32 of 480 pixels. The figure is
the share of the planted samples among the first tenth of the ranking, by networks that were trained on the other
folds, mistakes included.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from segtailor.data.locate import locate
from segtailor.verbs.suggest import Suggestions, suggest

IMAGES, PLANTED_EVERY = 120, 10
MIN_SHARE, SHIFT_PIXELS = 0.03, 32


def plant(labels: np.ndarray, kind: int, classes: int, rng: np.random.Generator) -> tuple[np.ndarray, str]:
    """Return wrong labels, and what was done to them."""
    if kind % 2:
        shift = SHIFT_PIXELS * int(rng.choice([-1, 1]))
        moved = np.roll(labels, shift, axis=1)
        moved[:, : max(shift, 0)] = 255
        moved[:, labels.shape[1] + min(shift, 0) :] = 255
        return moved, f"moved by {shift}"
    common = [label for label in range(classes) if (labels == label).mean() >= MIN_SHARE]
    old = int(rng.choice(common))
    new = int(rng.choice([label for label in range(classes) if label != old]))
    return np.where(labels == old, new, labels).astype(np.uint8), f"class {old} as {new}"


def write_dataset(source: str, folder: Path, seed: int) -> tuple[str, dict[str, str]]:
    """Write the images and masks; return the dataset and what was planted, by sample."""
    dataset, rng = locate(f"camvid:{source}"), np.random.default_rng(seed)
    samples = dataset.samples("train")
    planted = {}
    wrong = set(rng.choice(IMAGES, IMAGES // PLANTED_EVERY, replace=False).tolist())
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    for number in range(IMAGES):
        sample = samples[number * len(samples) // IMAGES]
        image, labels = sample.read()
        if number in wrong:
            labels, planted[sample.name] = plant(labels, len(planted), dataset.task.outputs, rng)
        Image.fromarray(image).save(folder / "images" / f"{sample.name}.png", compress_level=1)
        Image.fromarray(labels).save(folder / "masks" / f"{sample.name}.png")
    (folder / "classes.txt").write_text("\n".join(dataset.task.classes) + "\n")
    return f"folder:{folder}?val=0", planted


def main() -> None:
    """Plant, rank, and print the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", help="CamVid's folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--folds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data, planted = write_dataset(given.path, Path(folder) / "data", given.seed)
        start = time.perf_counter()
        wanted = Suggestions(steps=given.steps, folds=given.folds, count=12)
        facts = suggest(data, Path(folder) / "out", settings=wanted)
        names = [row["name"] for row in facts["labels"]]
        tenth = set(names[: IMAGES // PLANTED_EVERY])
        ranks = {name: (what, names.index(name) + 1) for name, what in planted.items()}
        figures = {
            "planted": len(planted),
            "found_in_first_tenth": sum(name in tenth for name in planted),
            "share": round(sum(name in tenth for name in planted) / len(planted), 3),
            "steps": given.steps,
            "folds": given.folds,
            "seconds": round(time.perf_counter() - start),
            "ranks": ranks,
        }
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
