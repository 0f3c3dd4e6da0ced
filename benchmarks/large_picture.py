"""Label one very large picture in tiles, and measure time and peak memory of the command.

python -m benchmarks.large_picture --side 20000

The picture is a TIFF in compressed tiles, made of rendered street scenes; it is written tile by tile.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

from segtailor.data.scene import render

TILE = 512
SCENES = 16
DEFLATE = 8


def write_picture(path: Path, side: int, *, masks: bool = False) -> None:
    """Write a square TIFF of repeated scenes in tiles, or their `masks`, without holding it in memory."""
    pairs = [render(0, index, (TILE, TILE), split="verify") for index in range(SCENES)]
    scenes = [zlib.compress((pair.labels if masks else pair.image).tobytes(), 1) for pair in pairs]
    count = math.ceil(side / TILE) ** 2
    offsets, lengths, end = [], [], 8
    with path.open("wb") as stream:
        stream.write(b"\0" * 8)
        for index in range(count):
            data = scenes[index * 7 % SCENES]
            stream.write(data)
            offsets.append(end)
            lengths.append(len(data))
            end += len(data)
        places = {}
        for name, values in (("offsets", offsets), ("lengths", lengths)):
            places[name] = stream.tell()
            stream.write(struct.pack(f"<{count}I", *values))
        bits = stream.tell()
        stream.write(struct.pack("<3H", 8, 8, 8))
        fields = [
            (256, 4, 1, side), (257, 4, 1, side),
            (258, 3, 1, 8) if masks else (258, 3, 3, bits), (259, 3, 1, DEFLATE), (262, 3, 1, 1 if masks else 2),
            (277, 3, 1, 1 if masks else 3), (284, 3, 1, 1), (322, 4, 1, TILE), (323, 4, 1, TILE),
            (324, 4, count, places["offsets"]), (325, 4, count, places["lengths"]),
        ]  # fmt: skip
        directory = stream.tell()
        stream.write(struct.pack("<H", len(fields)))
        for field in fields:
            stream.write(struct.pack("<HHII", *field))
        stream.write(b"\0" * 4)
        stream.seek(0)
        stream.write(b"II" + struct.pack("<HI", 42, directory))


def main() -> None:
    """Write the picture, label it in a process of its own, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=20000)
    parser.add_argument("--model", default="camvid-fast")
    parser.add_argument("--tile", default=None)
    parser.add_argument("--confidence", action="store_true")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "large.tif"
        write_picture(picture, wanted.side)
        words = [sys.executable, "-m", "segtailor", "predict", wanted.model, str(picture), "--json"]
        words += ["--out", f"{folder}/out", "--as", "ids"]
        words += ["--tile", wanted.tile] if wanted.tile else []
        words += ["--confidence"] if wanted.confidence else []
        start = time.perf_counter()
        done = subprocess.run(
            words, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "TMPDIR": folder}
        )
        seconds = time.perf_counter() - start
        (result,) = json.loads(done.stdout)["results"]
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        figures = {
            "side": wanted.side,
            "tiles": result["tiles"],
            "tile": result["network_size"],
            "confidence": wanted.confidence,
            "seconds": round(seconds, 1),
            "peak_gib": round(peak, 2),
            "file_mib": round(picture.stat().st_size / 2**20, 1),
            "labels_mib": round(Path(result["output"]).stat().st_size / 2**20, 1),
        }
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
