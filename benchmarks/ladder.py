"""Measure what each optimisation adds to the speed of FasterSeg's search step; every variant runs in its own process.

    python -m benchmarks.ladder --device cuda --out runs/ladder                        # both steps, about 8 minutes
    python -m benchmarks.ladder --device cuda --out runs/ladder --kind pretrain --batch 32
    python -m benchmarks.ladder --image 32x64 --layers 8 --batch 2 --steps 1 --warmup 0 --threads 1 \\
        --ideas plain,fused --out runs/ladder                                                              # CPU

Each rung adds one optimisation to the one before it. Every variant has a time limit and a result file in `--out`,
written as soon as it is measured; existing results are not measured again, so a call after a timeout continues. The
fastest variants and the settings of the recipe come first, since they matter most.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

MODULE = "benchmarks.search_throughput"
IDEAS = (
    "plain",
    "fused",
    "fused-gemm",
    "fused-gemm-bf16",
    "fused-gemm-bf16-last",
    "fused-gemm-bf16-last-graph",
)
LAST = IDEAS[-1]
NAMES = {
    "plain": "plain",
    "fused": "operators of an input fused",
    "fused-gemm": "resizing by matrix products",
    "fused-gemm-bf16": "bf16",
    "fused-gemm-bf16-last": "channels last",
    LAST: "recorded as a CUDA graph",
    "default": "the recipe as it is",
}


class Rung(NamedTuple):
    """One variant at one batch size."""

    kind: str
    variant: str
    batch: int
    memory: float | None = None

    @property
    def name(self) -> str:
        return "-".join(
            map(str, [self.kind, self.variant, self.batch, *([self.memory] if self.memory else [])])
        )

    @property
    def idea(self) -> str:
        return NAMES[self.variant] + (f", within {self.memory:g} GiB" if self.memory else "")


def rungs(kind: str, options: argparse.Namespace) -> list[Rung]:
    """Return all rungs: optimisations at one batch size, then larger batches, then the recipe."""
    larger = [Rung(kind, LAST, options.batch * factor) for factor in options.larger]
    ideas = [Rung(kind, variant, options.batch) for variant in IDEAS]
    ladder = [*ideas, *larger, Rung(kind, "default", 0, options.memory_gib)]
    return [rung for rung in ladder if rung.variant in options.ideas.split(",")]


def measured(rung: Rung, options: argparse.Namespace, *, left: float) -> dict[str, Any]:
    """Run one variant in its own process, so that a hang or a crash does not affect the others."""
    command = [
        sys.executable, "-m", MODULE, "--space", "multi_resolution", "--device", options.device,
        "--kind", rung.kind, "--variants", rung.variant, "--batch", str(rung.batch or options.batch),
        "--image", options.image, "--layers", str(options.layers),
        "--steps", str(options.steps), "--warmup", str(options.warmup),
    ]  # fmt: skip
    command += ["--memory-gib", str(rung.memory)] if rung.memory and options.device != "cpu" else []
    command += ["--no-tune"] if options.no_tune else []
    command += ["--threads", str(options.threads)] if options.threads else []
    limit = min(options.limit, left)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done within {limit:.0f} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no message"])[-1][:200]}
    found = json.loads(done.stdout)
    row: dict[str, Any] = found["results"][rung.kind][rung.variant]
    return {**row, "device": found["device"], "torch": found["torch"], "image": options.image}


def climb(options: argparse.Namespace, kinds: list[str]) -> None:
    """Measure missing variants, the most important first, until the time is over."""
    started = time.monotonic()
    ladder = [rung for kind in kinds for rung in rungs(kind, options)]
    first = {LAST: 0, "default": 1, "plain": 2}
    for rung in sorted(ladder, key=lambda rung: (first.get(rung.variant, 3), rung.batch)):
        file = options.out / f"{rung.name}.json"
        left = 60 * options.minutes - (time.monotonic() - started)
        if known(file) or left < 5:
            continue
        begun = time.monotonic()
        row = measured(rung, options, left=left)
        row |= {"kind": rung.kind, "variant": rung.variant, "seconds": round(time.monotonic() - begun, 1)}
        file.write_text(json.dumps(row, indent=2))
        print(
            f"{rung.name}: {row.get('failed') or round(row['images_per_s'], 2)}", file=sys.stderr, flush=True
        )


def known(file: Path) -> dict[str, Any] | None:
    """Return earlier results; failures are tried again."""
    row: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return row if "images_per_s" in row else None


def table(options: argparse.Namespace, kinds: list[str]) -> str:
    """Return a Markdown table: each rung against the one before it and against plain."""
    lines = [
        "| step | idea | batch | images/s | gain | over plain | peak GiB |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in kinds:
        first = before = 0.0
        for rung in rungs(kind, options):
            row = known(options.out / f"{rung.name}.json")
            if row is None:
                lines.append(f"| {kind} | {rung.idea} | {rung.batch or ''} | not measured | | | |")
                continue
            speed = row["images_per_s"]
            first = first or (speed if rung.variant == "plain" else 0.0)
            gain = f"x{speed / before:.2f}" if before and rung.batch else ""
            over = f"x{speed / first:.2f}" if first else ""
            peak = f"{row['peak_gib']:.2f}" if "peak_gib" in row else ""
            lines.append(
                f"| {kind} | {rung.idea} | {row['batch']} | {speed:.2f} | {gain} | {over} | {peak} |"
            )
            before = speed
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kind", default="both", choices=("both", "cosearch", "pretrain"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--image", default="224x448")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument(
        "--ideas", default=",".join(NAMES), help="variants, separated by commas; all by default"
    )
    parser.add_argument("--larger", type=int, nargs="*", default=[2, 4], help="factors of larger batches")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument(
        "--memory-gib", type=float, default=11.0, help="memory limit for the settings of the recipe"
    )
    parser.add_argument("--limit", type=float, default=100, help="seconds for one variant")
    parser.add_argument("--minutes", type=float, default=8.5, help="time for all variants")
    parser.add_argument("--no-tune", action="store_true", help="let cuDNN choose kernels by heuristics")
    parser.add_argument("--threads", type=int, help="CPU threads; all by default")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    return parser.parse_args()


def main() -> None:
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    kinds = ["cosearch", "pretrain"] if options.kind == "both" else [options.kind]
    climb(options, kinds)
    print(table(options, kinds))


if __name__ == "__main__":
    main()
