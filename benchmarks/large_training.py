"""Train on very large pictures and score on one, and measure peak memory, the cache and the time of a step.

python -m benchmarks.large_training --side 12000 --count 4 --masks tif

Pictures and masks are TIFF files in compressed tiles of 512x512, made of rendered street scenes; with `--masks png` the
masks are PNG files.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

from benchmarks.large_picture import write_picture
from segtailor.data.scene import CLASSES


def write_set(root: Path, side: int, count: int, masks: str) -> None:
    """Write `count` training pictures and one to score on."""
    for number in range(count + 1):
        split = "val" if number == count else "train"
        picture, mask = (root / kind / split / f"p{number}.tif" for kind in ("images", "masks"))
        for path in (picture, mask):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_picture(picture, side)
        write_picture(mask, side, masks=True)
        if masks == "png":
            Image.MAX_IMAGE_PIXELS = None
            with Image.open(mask) as opened:
                opened.save(mask.with_suffix(".png"), compress_level=1)
            mask.unlink()
    (root / "classes.txt").write_text("\n".join(CLASSES))


def measured(words: list[str], folder: str) -> tuple[dict[str, float], str]:
    """Run a command in a process of its own; return seconds and peak memory of it, and what it printed."""
    start = time.perf_counter()
    watched = [sys.executable, "-c", WATCH, *words]
    done = subprocess.run(
        watched, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "TMPDIR": folder}
    )
    seconds = time.perf_counter() - start
    text, _, peak = done.stdout.rpartition("\n#")
    return {"seconds": round(seconds, 1), "peak_gib": round(int(peak) / 2**20, 2)}, text


WATCH = (
    "import resource, sys; from segtailor.verbs.main import run; code = run(sys.argv[1:]); "
    "print(f'\\n#{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}', flush=True); sys.exit(code)"
)


def main() -> None:
    """Write the set, train and score, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=12000)
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--masks", choices=("tif", "png"), default="tif")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--model", default="fast-scnn")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root, cache = Path(folder, "set"), Path(folder, "cache")
        write_set(root, wanted.side, wanted.count, wanted.masks)
        where = ["--cache", str(cache), "--device", "cpu", "--json"]
        words = [
            "train",
            wanted.model,
            "--data",
            f"folder:{root}",
            "--out",
            f"{folder}/run",
            "--start",
            "none",
        ]
        words += ["--batch", "4", "--crop", "512x512", "--set", f"fit.steps={wanted.steps}"]
        train, _ = measured([*words, "--set", "val_split=null", *where], folder)
        score, text = measured(["eval", f"{folder}/run/weights", "--data", f"folder:{root}", *where], folder)
        files = [path for path in cache.rglob("*") if path.is_file()] if cache.exists() else []
        figures = {
            "side": wanted.side,
            "pictures": wanted.count,
            "masks": wanted.masks,
            "files_gib": round(sum(path.stat().st_size for path in root.rglob("*.*")) / 2**30, 2),
            "decoded_gib": round(4 * wanted.side**2 * (wanted.count + 1) / 2**30, 2),
            "cache_gib": round(sum(path.stat().st_size for path in files) / 2**30, 2),
            "train": train,
            "eval": {**score, "tile": json.loads(text).get("tile")},
        }
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
