"""Measure latency and mIoU of int8 against fp32, on ONNX Runtime, OpenVINO and ncnn.

    python -m benchmarks.int8 [NETWORK ...] [--data DATASET] [--image HxW] [--targets TARGET ...] [--images N]
                              [--method onnxruntime|nncf] [--tune-steps N] [--tune-always]
                              [--steps N] [--crop HxW] [--out DIR]

A network is a bundle, the name of shipped weights, or a published name, which is trained for `--steps` first; lpsnet-s
when none is given. Data are built-in street scenes, or `--data camvid:PATH`. Each bundle is copied and exported: for
ONNX Runtime and OpenVINO with resize and arg max inside (labels at full size), for the others up to the logits. Both
precisions are scored on the validation split (`--images` of it) and timed, interleaved, on the same runtime. A network
that loses more than a point is fine-tuned with rounding inside, unless `--tune-steps 0`; with `--tune-always` every
network is. Prints a Markdown table and, on stderr, the reasons; ratios of one row can be compared even on a busy
machine, milliseconds cannot.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from segtailor.core.shipped import is_shipped
from segtailor.core.target import CONVERTED_RUNTIMES, parse_target
from segtailor.deploy.export import export_onnx
from segtailor.deploy.quantise import Int8Decision
from segtailor.nets.bundle import Model, save_bundle
from segtailor.nets.models import load
from segtailor.recipes.export import export
from segtailor.recipes.quantise import FP32_FILE, Int8Settings, quantise
from segtailor.recipes.quantise_aware import TuningSettings
from segtailor.recipes.recipe import with_settings
from segtailor.recipes.train import train_recipe
from segtailor.runs import Context, display_for
from segtailor.verbs.train import train

SIZE = (192, 384)
DATA = "synthetic:size=192x384,train=240,val=60"
TARGETS = (
    "cpu/onnxruntime/int8?spin=0&threads=1",
    "cpu/openvino/int8?threads=1",
    "cpu/ncnn/int8?threads=1",
)
TRAINING = ("fit.optimiser=adamw", "fit.lr=0.003", "fit.batch=8", "fit.ema=0.95")


def main() -> None:
    chosen = parse()
    tuning = TuningSettings(steps=chosen.tune_steps, always=chosen.tune_always) if chosen.tune_steps else None
    settings = Int8Settings(method=chosen.method, samples=chosen.samples, images=chosen.images, tuning=tuning)
    with TemporaryDirectory() as scratch:
        out = chosen.out or Path(scratch)
        heading()
        for number, name in enumerate(chosen.networks):
            source = network(name, out, chosen)
            folder = prepared(
                source, out / f"int8-{number}", image=chosen.image, runtimes=runtimes(chosen.targets)
            )
            for target in chosen.targets:
                found = quantise(folder, data=chosen.data, target=target, settings=settings)
                print(row(Path(name).name, found), flush=True)
                print(f"{name}: {found.reason} {' '.join(found.warnings)}", file=sys.stderr)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", default=["lpsnet-s"])
    parser.add_argument("--data", default=DATA)
    parser.add_argument("--image", type=size, default=SIZE)
    parser.add_argument("--method", default="onnxruntime")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--images", type=int)
    parser.add_argument("--tune-steps", type=int, default=300)
    parser.add_argument("--tune-always", action="store_true")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--crop", type=size)
    parser.add_argument("--targets", nargs="+", default=list(TARGETS))
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def size(text: str) -> tuple[int, int]:
    height, width = map(int, text.split("x"))
    return height, width


def runtimes(targets: Iterable[str]) -> set[str]:
    return {parse_target(target).runtime for target in targets}


def network(name: str, out: Path, chosen: argparse.Namespace) -> Model:
    """Return a bundle, shipped weights, or a published network after a short training."""
    ready = is_shipped(name) or Path(name).is_dir()
    model = load(name if ready else trained(name, out / name, chosen))
    if not isinstance(model, Model):
        raise SystemExit(f"{name} is no bundle")
    return model


def trained(name: str, run: Path, chosen: argparse.Namespace) -> Path:
    """Train briefly; an existing run is used without training."""
    bundle = run / "weights"
    if bundle.is_dir():
        return bundle
    context = Context(display=display_for(sys.stderr))
    recipe = with_settings(
        train_recipe(name, chosen.data, crop=chosen.crop, context=context),
        [*TRAINING, f"fit.steps={chosen.steps}"],
    )
    return Path(str(train(recipe, run, check=False, context=context)["model"]))


def prepared(model: Model, folder: Path, *, image: tuple[int, int], runtimes: set[str]) -> Path:
    """Save a copy of a bundle and export the copy for some runtimes."""
    save_bundle(folder, model)
    for runtime in sorted(runtimes & set(CONVERTED_RUNTIMES)):
        export(folder, to=runtime, image=image)
    if runtimes - set(CONVERTED_RUNTIMES):
        export_onnx(
            model.network,
            folder / FP32_FILE,
            image=image,
            includes="network+resize+argmax",
            preprocessing=model.preprocessing,
        )
    return folder


def heading() -> None:
    columns = (
        "network|image|target|method|fp32 ms|int8 ms|ratio|spread|mIoU fp32|mIoU rounded|mIoU tuned|change|"
        "labels equal|kept"
    )
    print(f"| {columns.replace('|', ' | ')} |")
    print("|" + "---|" * (columns.count("|") + 1))


def row(name: str, found: Int8Decision) -> str:
    cells = [
        name,
        f"{found.image[0]}x{found.image[1]}",
        found.target,
        found.method,
        f"{found.before.median_ms:.2f}",
        f"{found.after.median_ms:.2f}",
        f"{found.ratio:.2f}",
        f"{max(found.before.spread, found.after.spread):.0%}",
        f"{100 * found.before.miou:.2f}",
        f"{100 * (found.tuning.miou_before if found.tuning else found.after.miou):.2f}",
        f"{100 * found.tuning.miou_after:.2f}" if found.tuning else "-",
        f"{100 * found.miou_change:+.2f}",
        f"{found.label_agreement:.2%}",
        "yes" if found.kept else "no",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
