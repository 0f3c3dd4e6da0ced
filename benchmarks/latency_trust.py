"""Figures of docs/results.md on latency tables: errors on unseen networks, and repeatability of calibrations.

    python -m benchmarks.latency_trust trust OUT [--only NAME ...]     # trust reports; packs and plots go to OUT
    python -m benchmarks.latency_trust repeat FIRST.json SECOND.json   # compare two packs of one target

Run it on a quiet machine. After an interruption, `trust` continues when it is called again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from segtailor.costs.pack import read_pack
from segtailor.recipes.calibrate import CalibrateRecipe
from segtailor.runs import display_for
from segtailor.verbs.calibrate import calibrate

ORT = "cpu/onnxruntime/fp32?threads=2&spin=0"  # spinning threads on shared cores switch between two speeds
CASES = {
    "scalable_path": CalibrateRecipe(space="scalable_path", target=ORT, image=(360, 480), minutes=5.0),
    "inverted_residual": CalibrateRecipe(space="inverted_residual", target=ORT, image=(360, 480)),
    "multi_resolution": CalibrateRecipe(space="multi_resolution", target=ORT, image=(512, 1024), minutes=5.0),
    "multi_resolution_gpu": CalibrateRecipe(
        space="multi_resolution", target="cuda/graph/fp16?tune=0", image=(1024, 2048), minutes=3.5
    ),
}
MIN_ENTRY_US = 50.0  # smaller entries depend on the resolution of the clock


def trust(out: Path, names: list[str]) -> None:
    """Calibrate each case and print a row per case."""
    out.mkdir(parents=True, exist_ok=True)
    print("| case | target | image | entries (estimated) | networks | Pearson | Spearman | MAPE |")
    print("|---|---|---|---|---|---|---|---|")
    for name in names:
        recipe = CASES[name]
        found = calibrate(recipe, out / f"{name}.json", display=display_for(sys.stderr, json=False))
        height, width = recipe.image
        print(
            f"| {name} | {recipe.target} | {height}x{width} | {found['entries']} ({found['estimated']}) "
            f"| {found['networks']} | {found['pearson']} | {found['spearman']} | {100 * found['mape']:.1f} % |",  # type: ignore[operator]
            flush=True,
        )


def repeat(first: Path, second: Path) -> None:
    """Print how much the entries of two packs differ."""
    one, other = read_pack(first).entries, read_pack(second).entries
    shares = [
        abs(other[key].us / entry.us - 1)
        for key, entry in one.items()
        if key in other and entry.us > MIN_ENTRY_US and entry.runs and other[key].runs
    ]
    print(
        f"{len(shares)} entries above {MIN_ENTRY_US:g} us: median difference {statistics.median(shares):.1%}"
    )


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    verbs = parser.add_subparsers(dest="verb", required=True)
    first = verbs.add_parser("trust")
    first.add_argument("out", type=Path)
    first.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES)[:3])
    second = verbs.add_parser("repeat")
    second.add_argument("packs", type=Path, nargs=2)
    chosen = parser.parse_args()
    if chosen.verb == "trust":
        trust(chosen.out, chosen.only)
    else:
        repeat(*chosen.packs)


if __name__ == "__main__":
    main()
