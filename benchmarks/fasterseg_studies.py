"""Two small studies of FasterSeg on synthetic street scenes.

    python -m benchmarks.fasterseg_studies collapse --out docs/figures/fasterseg-collapse.svg     # Figure 4
    python -m benchmarks.fasterseg_studies ablation --work runs/fasterseg-ablation                # Table 3

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
from statistics import fmean
from typing import Any

import torch

from segtailor.core.space import Architecture, parse_architecture
from segtailor.recipes.recipe import with_settings
from segtailor.recipes.search import SearchRecipe
from segtailor.recipes.train import train_recipe
from segtailor.report.charts import Value, chart
from segtailor.runs import Context
from segtailor.spaces.multi_resolution import BranchCell, MultiResolution, MultiResolutionArchitecture
from segtailor.strategies.gradient_settings import Gradient
from segtailor.systems import fasterseg
from segtailor.verbs.eval import evaluate
from segtailor.verbs.search import search
from segtailor.verbs.train import train

SMALL_SPACE: MultiResolution = fasterseg.SMALL.space  # type: ignore[assignment]


def latency_terms() -> dict[str, Gradient]:
    """Return the two searches of Figure 4, without a teacher: one latency term for everything, and decoupled ones."""
    decoupled = replace(fasterseg.SMALL_STRATEGY, roles=(fasterseg.STUDENT,), passes=fasterseg.STUDENT_PASSES)
    plain = replace(
        decoupled,
        cost=replace(decoupled.cost, others="current", shares="given"),
        groups={name: replace(group, cost=1.0) for name, group in decoupled.groups.items()},
    )
    return {"plain": plain, "decoupled": decoupled}


def ablation_spaces() -> dict[str, MultiResolution]:
    """Return the spaces behind the rows of Table 3; its last two rows prune or distil what the third one finds."""
    middle = (SMALL_SPACE.ratios[len(SMALL_SPACE.ratios) // 2],)
    return {
        "one branch": replace(SMALL_SPACE, ends=((32,),), ratios=middle),
        "two branches": replace(SMALL_SPACE, ratios=middle),
        "widths searched": SMALL_SPACE,
    }


def shortened(strategy: Gradient, options: argparse.Namespace) -> Gradient:
    """Return the search with the requested number of steps."""
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
    norms = options.width_gradient == "norms"
    supernet = replace(supernet, masked=norms, width_gradient=options.width_gradient)
    return replace(strategy, fit=fit, pretraining=ahead, cost=cost, logits=logits, supernet=supernet)


def recipe_of(
    options: argparse.Namespace,
    *,
    name: str = "fasterseg",
    space: MultiResolution = SMALL_SPACE,
    strategy: Gradient = fasterseg.SMALL_STRATEGY,
) -> SearchRecipe:
    """Return the recipe of the system for the data, with another space or strategy."""
    height, width = (int(side) for side in options.image.split("x"))
    fitted = fasterseg.SYSTEM.on(options.data, scale="small", size=(height, width), crop=(height, width))
    return replace(fitted, name=name, seed=options.seed, space=space, strategy=shortened(strategy, options))


def expected_width(probabilities: Mapping[str, list[float]], ratios: tuple[int, ...]) -> float:
    """Return the mean expected ratio over all connections."""
    rows = [row for name, row in probabilities.items() if name.startswith("width")]
    return sum(sum(p * ratio for p, ratio in zip(row, ratios, strict=True)) for row in rows) / len(rows)


def left_of(probabilities: Mapping[str, list[float]], ratios: tuple[int, ...]) -> dict[str, float]:
    """Return how much of the largest network a distribution leaves: the share of its work, widths, skips."""
    width = expected_width(probabilities, ratios)
    skips = fmean(odds[0] for name, odds in probabilities.items() if name.startswith("op"))
    return {"work_left": (1 - skips) * width / ratios[-1], "expected_width": width, "skip_share": skips}


def collapse(options: argparse.Namespace, context: Context) -> dict[str, Any]:
    """Search twice; plot over time how much of the largest network is left."""
    marks, found = [], {}
    ratios = SMALL_SPACE.ratios
    for name, strategy in latency_terms().items():
        recipe = recipe_of(options, strategy=strategy)
        result: dict[str, Any] = search(recipe, options.work / f"collapse-{name}", context=context)
        for record in result["trajectory"]:
            own = record["roles"]["student"]
            left = left_of(own["probabilities"], ratios)
            work = left["work_left"]
            marks.append(
                Value(series=name, label=str(record["step"]), value=work, hint=f"{name}: {work:.2f}")
            )
        found[name] = {
            **left,
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
    context: Context,
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
    recipe = with_settings(train_recipe(arch, options.data, context=context), changes)
    folder = options.work / f"train-{name.replace(' ', '-')}"
    train(recipe, folder, context=context)
    scores = evaluate(folder / "weights", options.data, context=context)
    return {"miou": scores["miou"], "weights": folder / "weights"}


def pruned(arch: MultiResolutionArchitecture, ratio: int) -> MultiResolutionArchitecture:
    """Return the network with all cells, stem and head at one width ratio."""
    branches = tuple(
        tuple(BranchCell(operator=cell.operator, ratio=ratio, stride=cell.stride) for cell in branch)
        for branch in arch.branches
    )
    return MultiResolutionArchitecture(branches=branches, stem_ratio=ratio, head_ratio=ratio)


def ablate(options: argparse.Namespace, context: Context) -> dict[str, Any]:
    """Search and train the rows of Table 3."""
    table: dict[str, Any] = {}
    for name, space in ablation_spaces().items():
        folder = options.work / f"search-{name.replace(' ', '-')}"
        result: dict[str, Any] = search(
            recipe_of(options, name=f"fasterseg {name}", space=space), folder, context=context
        )
        student = parse_architecture(json.loads(Path(result["architecture"]).read_text()))
        table[name] = {"cost": result["cost"], **trained(student, name, options, context)}
        teacher = parse_architecture(json.loads(Path(result["roles"]["teacher"]["architecture"]).read_text()))
    table["pruned teacher"] = trained(
        pruned(teacher, SMALL_SPACE.ratios[0]), "pruned teacher", options, context
    )
    guide = trained(teacher, "teacher", options, context)
    table["teacher"] = guide
    table["distilled"] = trained(student, "distilled", options, context, teacher=guide["weights"])
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
    context = Context(cache=options.work / "cache", device=options.device)
    rows = {"collapse": collapse, "ablation": ablate}[options.study](options, context)
    print(json.dumps({"study": options.study, "seed": options.seed, "rows": rows}, default=str))


if __name__ == "__main__":
    main()
