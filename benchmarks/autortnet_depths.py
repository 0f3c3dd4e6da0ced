"""AutoRTNet, Figures 5 and 6: depths of the hyper-cells by the weight of the latency term, and over a search.

    python -m benchmarks.autortnet_depths --scale paper --data camvid:PATH --image 360x480 --crop 352x480 --steps 8000 \
        --logits-lr 0.004 --device cuda --out runs/depths                       # a GPU: twice five searches per seed
    python -m benchmarks.autortnet_depths --data synthetic:size=64x128,train=160,val=40 --steps 300 --out runs/depths
    python -m benchmarks.autortnet_depths --show runs/depths.jsonl

Every search is the system's own, with one weight (the paper's gamma) and one way of training the exits before depths
are learnt: on mixtures of all exits (`drawn`, as published), or one exit at a time (`uniform`). The table has the
depths that were found and, in brackets, the expected depths at the end of the search. Before depths learn, `slopes` are
measured: by how much the loss on data and the weighted cost change towards a deeper hyper-cell, with the standard
deviation of the first over batches; where the second is larger than what can be seen of the first, the cost decides
alone. Called again, the program skips finished searches.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from benchmarks.comparing import Record, records_of
from segtailor.core.ranges import parse_size
from segtailor.recipes.search import SearchRecipe
from segtailor.runs import Context
from segtailor.strategies.gradient import GradientSearch
from segtailor.strategies.gradient_settings import Learning
from segtailor.verbs.search import SearchChoices, search_recipe

GAMMAS = (0.0, 0.001, 0.01, 0.05, 0.1)  # Figure 6
WAYS = ("drawn", "uniform")
SLOPE_BATCHES = 24


@dataclass(frozen=True, kw_only=True)
class Setting:
    """All settings that change a result."""

    data: str
    scale: str
    device: str
    steps: int | None
    batch: int | None
    image: tuple[int, int] | None
    crop: tuple[int, int] | None
    depths: tuple[int, int, int] | None
    warmup: float
    logits_lr: float | None
    pack: str | None


def recipe_of(setting: Setting, *, gamma: float, frozen: str, seed: int, context: Context) -> SearchRecipe:
    """Return the search of one cell of the table."""
    choices = SearchChoices(
        scale=setting.scale,  # type: ignore[arg-type]
        seed=seed,
        pack=None if setting.pack is None else Path(setting.pack),
    )
    recipe = search_recipe("autortnet", setting.data, choices, image=setting.image, context=context)
    strategy: Any = recipe.strategy
    fit: dict[str, Any] = {}
    if setting.steps is not None:
        fit["steps"] = setting.steps
    if setting.batch is not None:
        fit["batch"] = setting.batch
    augment = strategy.augment if setting.crop is None else replace(strategy.augment, crop=setting.crop)
    lr = strategy.logits.lr if setting.logits_lr is None else setting.logits_lr
    space: Any = recipe.space
    return replace(
        recipe,
        space=space if setting.depths is None else replace(space, depths=setting.depths),
        strategy=replace(
            strategy,
            fit=replace(strategy.fit, **fit),
            augment=augment,
            logits=replace(strategy.logits, lr=lr),
            cost=replace(strategy.cost, weight=gamma),
            groups={"depth": Learning(warmup=setting.warmup, frozen=frozen)},  # type: ignore[arg-type]
            choice=replace(strategy.choice, samples=0),
        ),
    )


def slopes(search: GradientSearch, *, gamma: float, batches: int = SLOPE_BATCHES) -> dict[str, Any]:
    """Return how loss and weighted log cost change with the logits of deeper exits, at the search's state now."""
    engine = search._engine
    role = engine.roles.names[0]
    names = [row.name for row in engine.supernet.decisions if row.group == "depth"]
    logits = [engine.roles.logits[role][name] for name in names]
    found: dict[str, list[float]] = {name: [] for name in names}
    costs: dict[str, list[float]] = {name: [] for name in names}
    for number in range(batches):
        batch = search._fit.at(search._total + number)  # seen by no step
        noise = engine.roles.noise(seed=number, images=None)
        soft = engine.roles.draw(role, noise=noise, temperature=search.temperature, images=None)
        options = {name: tuple(range(len(row))) for name, row in soft.items()}
        outputs = engine.supernet.forward(batch.images, soft, options)
        loss = engine.criterion(outputs, batch.labels, normaliser=engine.criterion.normaliser(batch.labels))
        cost = gamma * torch.log(engine.supernet.searched_cost(soft, engine.price).clamp(min=1e-6))  # type: ignore[attr-defined]
        for rows, total in ((found, loss), (costs, cost)):
            gradients = torch.autograd.grad(total, logits, retain_graph=True)
            for name, gradient in zip(names, gradients, strict=True):
                deeper = torch.arange(len(gradient), device=gradient.device) - (len(gradient) - 1) / 2
                rows[name].append(float((gradient * deeper).sum()))
    return {
        name: {"data": fmean(found[name]), "spread": stdev(found[name]), "cost": fmean(costs[name])}
        for name in names
    }


def run_one(piece: str, options: argparse.Namespace) -> None:
    """Search once and record depths, their course and the slopes."""
    torch.set_num_threads(options.threads)
    frozen, gamma, seed = piece.split("_")
    setting = setting_of(options)
    plain = json.loads(json.dumps(asdict(setting)))  # lists instead of tuples, as in the file
    record = Record(options.out / f"{piece}.json", {**plain, "frozen": frozen, "gamma": gamma})

    def row() -> dict[str, Any]:
        context = Context(cache=options.cache, device=options.device)
        recipe = recipe_of(setting, gamma=float(gamma), frozen=frozen, seed=int(seed), context=context)
        search = recipe.job(context).search
        if not isinstance(search, GradientSearch):
            raise SystemExit("the system searches by gradients")
        before: dict[str, Any] | None = None
        for _ in search.steps():
            if before is None and "depth" in search.learning and search._done < search._total:
                before = slopes(search, gamma=float(gamma))
        result: Any = search.result()
        roles = [moment["roles"]["student"] for moment in result["trajectory"]]
        course = [[moment[f"expected_depth{number}"] for number in (1, 2, 3)] for moment in roles]
        stages = result["architecture"]["architecture"]["stages"]
        return {
            "depths": [stage["depth"] for stage in stages],
            "course": course,
            "quality": result["quality"],
            "cost": result["cost"],
            "unit": result["unit"],
            "slopes": before,
        }

    record.once("search", row)
    record.finish()


def setting_of(options: argparse.Namespace) -> Setting:
    """Return the settings that change results."""
    names = ("data", "scale", "device", "steps", "batch", "image", "crop", "warmup", "logits_lr")
    return Setting(
        **{name: getattr(options, name) for name in names},
        depths=None if options.depths is None else tuple(options.depths),
        pack=None if options.pack is None else str(options.pack),
    )


def table(records: dict[str, dict[str, Any]]) -> str:
    """Return a line for each weight, with the depths of every seed in both ways, then the slopes."""
    rows = {name: record["search"] for name, record in records.items()}
    gammas = sorted({name.split("_")[1] for name in rows}, key=float)
    ways = [way for way in WAYS if any(name.startswith(f"{way}_") for name in rows)]
    lines = [f"| gamma | {' | '.join(f'exits {way}' for way in ways)} |", "|---" * (1 + len(ways)) + "|"]
    for gamma in gammas:
        cells = []
        for way in ways:
            found = [row for name, row in rows.items() if name.startswith(f"{way}_{gamma}_")]
            cells.append(", ".join(_depths(row) for row in found) or "-")
        lines.append(f"| {gamma} | {' | '.join(cells)} |")
    lines += [
        "",
        "| search | hyper-cell | slope of the data | its spread | slope of the cost |",
        "|---" * 5 + "|",
    ]
    for name, row in rows.items():
        for key, figures in (row["slopes"] or {}).items():
            values = " | ".join(f"{figures[part]:+.5f}" for part in ("data", "spread", "cost"))
            lines.append(f"| {name} | {key} | {values} |")
    return "\n".join(lines)


def _depths(row: dict[str, Any]) -> str:
    expected = " ".join(f"{value:.1f}" for value in row["course"][-1])
    return f"{{{','.join(map(str, row['depths']))}}} ({expected})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="synthetic:size=64x128,train=160,val=40")
    parser.add_argument("--scale", choices=("small", "paper"), default="small")
    parser.add_argument("--gammas", type=float, nargs="+", default=GAMMAS)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--warmup", type=float, default=1 / 3, help="share of the search before depths learn")
    parser.add_argument("--depths", type=int, nargs=3, help="greatest depths; by default those of the scale")
    parser.add_argument("--steps", type=int, help="of a search; by default those of the scale")
    parser.add_argument("--batch", type=int)
    parser.add_argument(
        "--logits-lr", type=float, help="raise it where steps are fewer: the paper's is for 28,000"
    )
    parser.add_argument("--image", type=parse_size, help="HEIGHTxWIDTH that networks are priced at")
    parser.add_argument("--crop", type=parse_size, help="HEIGHTxWIDTH of training crops")
    parser.add_argument("--pack", type=Path, help="latency from a device pack; by default MACs")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="searches at a time")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "segtailor")
    parser.add_argument("--out", type=Path, help="folder with one JSON file for each search")
    parser.add_argument("--only", help="run only this search, in this process")
    parser.add_argument("--show", type=Path, help="print the table of stored records (JSON lines)")
    options = parser.parse_args()
    if options.show is None and options.out is None:
        parser.error("give --out, the folder for results, or --show, a file of stored results")
    if options.only:
        run_one(options.only, options)
        return
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    pieces = [
        f"{way}_{gamma:g}_{seed}"
        for seed in range(options.seeds)
        for gamma in options.gammas
        for way in options.ways
    ]
    found = records_of("benchmarks.autortnet_depths", pieces, options=options)
    print(table(found))


if __name__ == "__main__":
    main()
