"""Convert FasterSeg's published latency table to a device pack.

The table is given as JSON rows: op, h, w, c_in, c_out, kernel, stride, ms.

python tools/write_fasterseg_pack.py TABLE.json src/segtailor/costs/packs/fasterseg-1080ti.json

The rows come from the table that the authors released with their code (github.com/VITA-Group/FasterSeg, `latency/`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from segtailor.core.codec import to_json
from segtailor.core.plan import OpCall, Operator, Shape
from segtailor.costs.keys import key_of
from segtailor.costs.pack import Entry, Pack
from segtailor.ops import Conv, FactorisedReduction, Identity
from segtailor.ops.convolutions import HiddenClassifier, ZoomedConv
from segtailor.spaces.multi_resolution.space import MultiResolution

SOURCE = (
    "FasterSeg (Chen et al., ICLR 2020), latency table released with the authors' code: GeForce GTX 1080 Ti, "
    "TensorRT 5.1.5, float32, batch 1, means over about 6 s. Resizing inside operators was timed as nearest "
    "neighbour; a stride-1 skip as a copy, a stride-2 skip as one 1x1 convolution. Upsampling and concatenation have "
    "no entries and count as zero. Zoomed convolution x2 has its own entries here; the authors' estimator read those "
    "of the plain x2 convolution instead."
)
CELLS: dict[str, Operator] = {
    "conv": Conv(),
    "conv_2x": Conv(repeats=2),
    "zoomed_conv": ZoomedConv(),
    "zoomed_conv_2x": ZoomedConv(repeats=2),
}


def operator(row: dict[str, Any]) -> Operator:
    """Return the operator of a row."""
    if row["op"] == "skip":
        return Identity() if row["stride"] == 1 else FactorisedReduction(first=False)
    if row["op"] == "classifier":
        return HiddenClassifier()
    return CELLS.get(row["op"]) or Conv(kernel=row["kernel"])


def convert(rows: list[dict[str, Any]]) -> Pack:
    """Return the pack; two layers of the head are also cells: the later row, that of the head, is used."""
    entries: dict[str, Entry] = {}
    for row in rows:
        call = OpCall(
            op=operator(row),
            inputs=(Shape(row["c_in"], row["h"], row["w"]),),
            channels=row["c_out"],
            stride=row["stride"],
        )
        entries[key_of(call)] = Entry(us=round(1000 * row["ms"], 6), runs=1)
    return Pack(
        space="multi_resolution",
        settings=to_json(MultiResolution()),
        image=(1024, 2048),
        classes=19,
        target="cuda/tensorrt/fp32",
        machine={"gpus": ["NVIDIA GeForce GTX 1080 Ti"], "versions": {"tensorrt": "5.1.5"}},
        entries=entries,
        free=("concat", "resize"),
        source=SOURCE,
    )


def main() -> None:
    """Read the table, write the pack."""
    table, pack = map(Path, sys.argv[1:3])
    convert(json.loads(table.read_text(encoding="utf-8"))["entries"]).write(pack)


if __name__ == "__main__":
    main()
