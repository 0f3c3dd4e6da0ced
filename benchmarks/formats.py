"""Write networks in every format, check each file against its network, and time all runtimes in one run.

    python -m benchmarks.formats [NETWORK ...] [--image HxW] [--threads N] [--seconds S]

A network is shipped weights or a published architecture (with random weights: latency does not depend on them, and
equality is checked all the same). Prints a Markdown table. Runtimes are timed in turns, so the ratios within a row of
one run can be compared even on a busy machine; milliseconds cannot.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import segtailor
from segtailor.core.errors import Unsupported
from segtailor.core.shipped import is_shipped
from segtailor.core.target import parse_target
from segtailor.core.task import Task
from segtailor.deploy.verify import ExportMismatch
from segtailor.nets.bundle import Model, save_bundle
from segtailor.recipes.export import export
from segtailor.targets.runtime import runtime_for
from segtailor.targets.timing import TimingSettings
from segtailor.verbs.bench import bench

NETWORKS = ("camvid-fast", "squeezenas-mac-small", "lr-aspp-mobilenetv3-large")
CLASSES = 11
FORMATS = {
    "onnx": "cpu/onnxruntime/fp32",
    "openvino": "cpu/openvino/fp32",
    "ncnn": "cpu/ncnn/fp32",
    "litert": "cpu/litert/fp32",
    "executorch": "cpu/executorch/fp32",
}


def main() -> None:
    chosen = parse()
    print(
        "| network | format | agreement of labels | largest difference of logits | median ms | ratio to onnx |"
    )
    print("|---|---|---|---|---|---|")
    with TemporaryDirectory() as scratch:
        for name in chosen.networks:
            bundle = prepared(name, Path(scratch) / name)
            for row in rows(name, bundle, chosen):
                print(row, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--image", type=lambda text: tuple(map(int, text.split("x"))), default=(360, 480))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    return parser.parse_args()


def prepared(name: str, folder: Path) -> str:
    """Return what can be exported: the name of shipped weights, or a bundle with random weights."""
    if is_shipped(name):
        return name
    task = Task(classes=tuple(f"class {index}" for index in range(CLASSES)))
    save_bundle(folder, Model(network=segtailor.create(name, classes=CLASSES, seed=0), task=task))
    return str(folder)


def rows(name: str, bundle: str, chosen: argparse.Namespace) -> list[str]:
    """Return the rows of one network; the runtime of a file that is not equal is timed all the same."""
    told, targets = {}, {}
    with TemporaryDirectory() as out:
        for to, text in FORMATS.items():
            target = parse_target(f"{text}?threads={chosen.threads}")
            try:
                runtime_for(target)
                told[to] = equality(bundle, to, chosen.image, Path(out) / to)
            except Unsupported as problem:
                print(f"| {name} | {to} | not written: {problem} | | | |")
                continue
            targets[to] = target
    times = bench(
        [bundle], list(targets.values()), image=chosen.image, settings=TimingSettings(seconds=chosen.seconds)
    )
    median = {to: row.median_ms for to, row in zip(targets, times, strict=True)}
    return [
        f"| {name} | {to} | {told[to]} | {median[to]:.1f} | {median[to] / median['onnx']:.2f} |"
        for to in targets
    ]


def equality(bundle: str, to: str, image: tuple[int, int], out: Path) -> str:
    """Return two cells: the agreement of labels, and the largest difference of logits relative to the largest one."""
    try:
        figures = export(bundle, to=to, image=image, out=out).figures
    except ExportMismatch as problem:
        return f"refused: {problem} | "
    return f"{figures['label_agreement']:.4%} | {figures['max_relative_logit_difference']:.1e}"


if __name__ == "__main__":
    main()
