"""Two small studies of FasterSeg on synthetic street scenes.

    python benchmarks/fasterseg_studies.py collapse --out docs/figures/fasterseg-collapse.svg     # Figure 4
    python benchmarks/fasterseg_studies.py ablation --work runs/fasterseg-ablation                # Table 3

`collapse` searches with one latency term for all decisions and with decoupled terms, and plots how much of the largest
network is left: the share of operators that are not skips, times the expected width. `ablation` searches with one
branch, with two branches, and with widths; then it trains the networks found, the teacher pruned to the narrowest
width, and the student distilled from the teacher, all with the same settings, and scores them on the validation split.
Both print one line of JSON with study, seed and rows; `>> results/fasterseg.jsonl` keeps it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from segtailor.recipes.gradient_row import GradientRow
from segtailor.recipes.parts import Part
from segtailor.recipes.systems import Occasion

from segtailor.core.codec import to_json
from segtailor.core.registry import SYSTEMS
from segtailor.core.space import Architecture, parse_architecture
from segtailor.recipes.search import SearchRecipe
from segtailor.recipes.train import train_recipe
from segtailor.report.charts import Value, chart
from segtailor.runs import Context
from segtailor.spaces.multi_resolution import BranchCell, MultiResolutionArchitecture
from segtailor.strategies.gradient_settings import Gradient
from segtailor.systems.fasterseg import ablation, latency_terms
from segtailor.verbs.eval import evaluate
from segtailor.verbs.search import search
from segtailor.verbs.train import train


def shortened(row: GradientRow, options: argparse.Namespace) -> GradientRow:
    """Return the search with the requested number of steps."""
    strategy: Gradient = row.strategy
    first = strategy.pretraining
    ahead = (
        None
        if first is None or not options.ahead
        else replace(first, fit=replace(first.fit, steps=options.ahead))
    )
    fit = replace(strategy.fit, steps=options.steps)
    cost = replace(strategy.cost, weight=options.weight) if options.weight else strategy.cost
    logits = replace(strategy.logits, lr=options.logit_lr) if options.logit_lr else strategy.logits
    supernet = strategy.supernet
    if options.width_gradient == "norms":
        supernet = replace(supernet, masked=True, width_gradient="norms")
    changed = replace(strategy, fit=fit, pretraining=ahead, cost=cost, logits=logits, supernet=supernet)
    return replace(row, strategy=changed)


def recipe_of(row: GradientRow, options: argparse.Namespace) -> SearchRecipe:
    """Return the recipe of the system with the space and strategy of a row."""
    size = tuple(int(side) for side in options.image.split("x"))
    occasion = Occasion(data=options.data, size=(size[0], size[1]), crop=(size[0], size[1]))
    own = SYSTEMS.get("fasterseg")("small", occasion)
    short = shortened(row, options)
    return replace(
        own,
        name=row.name,
        seed=options.seed,
        space=Part(kind=own.space.kind, settings=to_json(short.space)),
        strategy=Part(kind=own.strategy.kind, settings=to_json(short.strategy)),
    )


def expected_width(probabilities: Mapping[str, list[float]], ratios: tuple[int, ...]) -> float:
    """Return the mean expected ratio over all connections."""
    rows = [row for name, row in probabilities.items() if name.startswith("width")]
    return sum(sum(p * ratio for p, ratio in zip(row, ratios, strict=True)) for row in rows) / len(rows)


def collapse(options: argparse.Namespace, around: Context) -> dict[str, Any]:
    """Search twice; plot over time how much of the largest network is left."""
    marks, found = [], {}
    for name, row in latency_terms().items():
        result: dict[str, Any] = search(
            recipe_of(row, options), options.work / f"collapse-{name}", surroundings=around
        )
        for record in result["trajectory"]:
            own = record["roles"]["student"]
            width = expected_width(own["probabilities"], row.space.ratios)  # type: ignore[attr-defined]
            skips = [odds[0] for key, odds in own["probabilities"].items() if key.startswith("op")]
            work = (1 - sum(skips) / len(skips)) * width / row.space.ratios[-1]  # type: ignore[attr-defined]
            marks.append(
                Value(series=name, label=str(record["step"]), value=work, hint=f"{name}: {work:.2f}")
            )
        found[name] = {
            "work_left": work,
            "expected_width": width,
            "skip_share": sum(skips) / len(skips),
            "cost": result["cost"],
            "quality": result["quality"],
            "entropy": {key: value for key, value in own.items() if key.startswith("entropy")},
            "warnings": result["warnings"],
        }
    title = "A plain latency term collapses, decoupled ones do not"
    drawing = chart(
        marks,
        title=title,
        subtitle=f"(1 - skips) x expected width / greatest; {options.data}, seed {options.seed}",
        unit="share",
        lines=True,
    )
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(drawing)
    return found


def trained(
    arch: Architecture,
    name: str,
    options: argparse.Namespace,
    around: Context,
    teacher: Path | None = None,
) -> dict[str, Any]:
    """Train a network with the common settings and score it."""
    changes = [
        f"fit.steps={options.train_steps}",
        "fit.batch=8",
        "fit.loss.ohem=0.7",
        f"fit.seed={options.seed}",
    ]
    if teacher is not None:
        changes += [f"teacher={json.dumps(str(teacher))}", 'fit.distill={"mean_over_classes": true}']
    recipe = train_recipe(arch, options.data, changes=changes, surroundings=around)
    folder = options.work / f"train-{name.replace(' ', '-')}"
    train(recipe, folder, surroundings=around)
    scores = evaluate(folder / "weights", options.data, surroundings=around)
    return {"miou": scores["miou"], "weights": folder / "weights"}


def pruned(arch: MultiResolutionArchitecture, ratio: int) -> MultiResolutionArchitecture:
    """Return the network with all cells, stem and head at one width ratio."""
    branches = tuple(
        tuple(BranchCell(operator=cell.operator, ratio=ratio, stride=cell.stride) for cell in branch)
        for branch in arch.branches
    )
    return MultiResolutionArchitecture(branches=branches, stem_ratio=ratio, head_ratio=ratio)


def ablate(options: argparse.Namespace, around: Context) -> dict[str, Any]:
    """Search and train the rows of Table 3."""
    table: dict[str, Any] = {}
    for name, row in ablation().items():
        folder = options.work / f"search-{name.replace(' ', '-')}"
        result: dict[str, Any] = search(recipe_of(row, options), folder, surroundings=around)
        student = parse_architecture(json.loads(Path(result["architecture"]).read_text()))
        table[name] = {"cost": result["cost"], **trained(student, name, options, around)}
        teacher = parse_architecture(json.loads(Path(result["roles"]["teacher"]["architecture"]).read_text()))
    ratio = row.space.ratios[0]  # type: ignore[attr-defined]
    table["pruned teacher"] = trained(pruned(teacher, ratio), "pruned teacher", options, around)
    guide = trained(teacher, "teacher", options, around)
    table["teacher"] = guide
    table["distilled"] = trained(student, "distilled", options, around, teacher=guide["weights"])
    for name, values in table.items():
        print(f"{name:18} {100 * values['miou']:6.2f} % mIoU  {values.get('cost', '')}", file=sys.stderr)
    return {
        name: {key: value for key, value in row.items() if key != "weights"} for name, row in table.items()
    }


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("study", choices=("collapse", "ablation"))
    parser.add_argument("--data", default="synthetic:size=64x128,train=80,val=20")
    parser.add_argument("--image", default="64x128")
    parser.add_argument("--work", type=Path, default=Path("runs/fasterseg-studies"))
    parser.add_argument("--out", type=Path, help="file for the plot")
    parser.add_argument("--steps", type=int, default=100, help="steps of search")
    parser.add_argument("--ahead", type=int, default=40, help="steps of pretraining")
    parser.add_argument("--train-steps", type=int, default=300)
    parser.add_argument("--weight", type=float, help="weight of the cost term")
    parser.add_argument("--logit-lr", type=float, help="learning rate of logits")
    parser.add_argument("--width-gradient", default="norms", choices=("score", "norms"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    around = Context(cache=options.work / "cache", device=options.device)
    rows = {"collapse": collapse, "ablation": ablate}[options.study](options, around)
    print(json.dumps({"study": options.study, "seed": options.seed, "rows": rows}, default=str))


if __name__ == "__main__":
    main()
