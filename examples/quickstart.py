"""Train a small network on the embedded street scenes and look at what it predicts: a few minutes on two cores.

python examples/quickstart.py [--out runs/quickstart] [--epochs 20]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from segtailor.api.models import load
from segtailor.api.training import Surroundings, evaluate, train, train_recipe
from segtailor.data.colour import overlay
from segtailor.data.locate import locate
from segtailor.runs import display_for

DATA = "synthetic:size=128x256,train=240,val=40,seed=0"
NETWORK = "lpsnet-step2"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/quickstart"))
    parser.add_argument("--epochs", type=int, default=20)
    chosen = parser.parse_args()
    around = Surroundings(display=display_for(sys.stderr))
    changes = [
        f"fit.epochs={chosen.epochs}",
        "fit.batch=16",
        "fit.optimiser=adamw",
        "fit.lr=0.003",
        "fit.ema=0.98",
    ]
    recipe = train_recipe(NETWORK, DATA, crop=(128, 256), changes=changes, surroundings=around)
    result = train(recipe, chosen.out, surroundings=around)
    scores = evaluate(str(result["model"]), DATA, split="val", surroundings=around)
    picture = chosen.out / "predictions.png"
    sheet(Path(str(result["model"])), count=4).save(picture)
    print(
        f"mIoU on {scores['images']} unseen scenes: {100 * scores['miou']:.1f} % (majority class: {majority():.1f} %)"
    )
    print(f"trained bundle: {result['model']}")
    print(f"predictions:    {picture}")


def sheet(bundle: Path, *, count: int) -> Image.Image:
    """Return rows of image, truth, prediction."""
    model, dataset = load(bundle), locate(DATA)
    rows = []
    for sample in dataset.samples("val")[:count]:
        image, labels = sample.read()
        views = [
            image,
            *(overlay(image, found, dataset.task.palette) for found in (labels, model.predict(image))),
        ]
        rows.append(np.concatenate(views, axis=1))
    return Image.fromarray(np.concatenate(rows))


def majority() -> float:
    """Return the mIoU, in percent, of always predicting the most frequent class."""
    dataset = locate(DATA)
    counts = sum(
        np.bincount(sample.read().labels.ravel(), minlength=256)[: dataset.task.outputs]
        for sample in dataset.samples("val")
    )
    shares = np.asarray(counts) / np.sum(counts)
    return 100 * float(shares.max()) / int((shares > 0).sum())


if __name__ == "__main__":
    main()
