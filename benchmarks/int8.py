"""Measure latency and mIoU of int8 against fp32, on ONNX Runtime and OpenVINO.

    python -m benchmarks.int8 [BUNDLE ...] [--data DATASET] [--image HxW] [--method onnxruntime|nncf]
                              [--tune-steps N] [--tune-always] [--out DIR]

Without bundles, lpsnet-s is trained on built-in street scenes for a few minutes. Each bundle is copied and exported
with resize and arg max inside (labels at full size); both files are scored on the whole validation split and timed,
interleaved, on the same runtime. A network that loses more than a point is fine-tuned with rounding inside, unless
`--tune-steps 0`; with `--tune-always` every network is. Prints a Markdown table; run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from segtailor.deploy.export import export_onnx
from segtailor.deploy.quantise import Int8Decision
from segtailor.nets.bundle import load_bundle, save_bundle
from segtailor.recipes.quantise import FP32_FILE, Int8Settings, quantise
from segtailor.recipes.quantise_aware import TuningSettings
from segtailor.recipes.recipe import with_settings
from segtailor.recipes.train import train_recipe
from segtailor.runs import Context, display_for
from segtailor.verbs.train import train

SIZE = (192, 384)
DATA = "synthetic:size=192x384,train=240,val=60"
TARGETS = ("cpu/onnxruntime/int8?spin=0&threads=2", "cpu/openvino/int8?threads=2")
TRAINING = ("fit.optimiser=adamw", "fit.lr=0.003", "fit.batch=8", "fit.ema=0.95")


def main() -> None:
    chosen = parse()
    tuning = TuningSettings(steps=chosen.tune_steps, always=chosen.tune_always) if chosen.tune_steps else None
    settings = Int8Settings(method=chosen.method, samples=chosen.samples, tuning=tuning)
    with TemporaryDirectory() as scratch:
        out = chosen.out or Path(scratch)
        bundles = chosen.bundles or [trained(out / "lpsnet-s", data=chosen.data, epochs=chosen.epochs)]
        heading()
        for number, bundle in enumerate(bundles):
            folder = prepared(bundle, out / f"int8-{number}", image=chosen.image)
            name = bundle.parent.name if bundle.name == "weights" else bundle.name
            for target in chosen.targets:
                found = quantise(folder, data=chosen.data, target=target, settings=settings)
                print(row(name, found), flush=True)
                print(f"{name}: {found.reason} {' '.join(found.warnings)}", file=sys.stderr)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundles", type=Path, nargs="*")
    parser.add_argument("--data", default=DATA)
    parser.add_argument("--image", type=lambda text: tuple(map(int, text.split("x"))), default=SIZE)
    parser.add_argument("--method", default="onnxruntime")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--tune-steps", type=int, default=300)
    parser.add_argument("--tune-always", action="store_true")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--targets", nargs="+", default=list(TARGETS))
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def trained(run: Path, *, data: str, epochs: int) -> Path:
    """Train briefly; an existing run is used without training."""
    context = Context(display=display_for(sys.stderr))
    recipe = with_settings(
        train_recipe("lpsnet-s", data, context=context), [*TRAINING, f"fit.epochs={epochs}"]
    )
    return Path(str(train(recipe, run, check=False, context=context)["model"]))


def prepared(bundle: Path, folder: Path, *, image: tuple[int, int]) -> Path:
    """Copy a bundle and export the copy, so that the original does not change."""
    model = load_bundle(bundle)
    save_bundle(folder, model)
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
