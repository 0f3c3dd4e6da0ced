"""How far a search can trust its judge: python -m benchmarks.judging CAMVID --out runs/judging.jsonl.

Networks drawn across a budget are trained in full (one drive of CamVid left out and scored): the truth. Then every
judge scores the same networks as a search would, on the training split alone: `train:STEPS` trains each one briefly,
`one_shot:STEPS` trains the weights that all share, once (its cost is divided by SEARCHED networks, as many as such a
search judges), `macs` counts. The table gives the rank correlation (Spearman) between the two and what a judge costs
per network, as a share of one full training. One JSON line per score goes to `--out`; what is there is not repeated.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import mean

from benchmarks.budgets import precision
from segtailor.core.plan import Shape, count
from segtailor.core.ranges import parse_size
from segtailor.core.space import Architecture, architecture_document, fingerprint_of, plan_of
from segtailor.core.statistics import spearman
from segtailor.core.strategy import Trial
from segtailor.core.variation import sample
from segtailor.recipes.search import SearchRecipe
from segtailor.recipes.train import CARRIED_LR, FINE_TUNING, train_recipe
from segtailor.runs import Context
from segtailor.spaces.elastic import Elastic
from segtailor.spaces.starts import IMAGENET
from segtailor.strategies.evaluators.train import TrainEvaluator
from segtailor.strategies.gradient_settings import Choice
from segtailor.strategies.one_shot import OneShot, OneShotSearch
from segtailor.systems.elastic import SMALL
from segtailor.training.device import pick_device

IMAGE = Shape(3, 360, 480)
CLASSES = 11
BATCH = 16
CHOICE = Choice(recalibrate=6, images=120)
DRAWS = 4000
TRUTH = "truth"
SEARCHED = 256  # networks that a one-shot search judges


@dataclass(frozen=True, kw_only=True)
class Score:
    """What a judge says of a network, and its `seconds`, with its share of a common preparation."""

    judge: str
    network: str
    seed: int
    drive: str
    quality: float
    seconds: float

    @property
    def key(self) -> tuple[str, str, int, str]:
        """What makes two scores the same."""
        return self.judge, self.network, self.seed, self.drive


def networks(number: int, limit: float, *, seed: int = 0) -> list[Architecture]:
    """Draw networks that use a quarter of a budget (in multiply-accumulates) or more, spread evenly by that."""
    space, rng = Elastic(), Random(seed)
    drawn = {fingerprint_of(arch): arch for arch in (sample(space, rng) for _ in range(DRAWS))}
    costs = {name: count(plan_of(arch, IMAGE, CLASSES)).macs for name, arch in drawn.items()}
    fitting = sorted(
        (name for name in drawn if limit / 4 <= costs[name] <= limit), key=lambda name: (costs[name], name)
    )
    return [drawn[fitting[int((place + 0.5) * len(fitting) / number)]] for place in range(number)]


def macs(arch: Architecture) -> float:
    """Return the multiply-accumulates of a network."""
    return float(count(plan_of(arch, IMAGE, CLASSES)).macs)


def trained(arch: Architecture, data: str, *, steps: int, crop: tuple[int, int], seed: int) -> float:
    """Train a network in full and return its mIoU on the drive that was left out."""
    context = Context()
    recipe = train_recipe(arch, data, start=IMAGENET, crop=crop, context=context)
    job = replace(
        recipe, fit=replace(FINE_TUNING, steps=steps, seed=seed, batch=BATCH, ema=0.99, precision=precision())
    ).job(context)
    for _ in job.steps():
        pass
    return float(str(job.fit.result()["miou"]))


def search_recipe(data: str, *, crop: tuple[int, int], seed: int) -> SearchRecipe:
    """Return the search whose judges are asked: only the training split is seen, one part fits, the other judges."""
    evaluator = TrainEvaluator(
        augment=replace(SMALL.evaluator.augment, crop=crop),
        fit=replace(FINE_TUNING, carried_lr=CARRIED_LR, batch=BATCH, precision=precision()),
    )
    strategy = SMALL.strategy
    assert isinstance(strategy, OneShot)
    strategy = replace(strategy, augment=evaluator.augment)
    return replace(
        SMALL, data=data, image=(IMAGE.height, IMAGE.width), strategy=strategy, evaluator=evaluator, start=IMAGENET,
        seed=seed,
    )  # fmt: skip


def briefly_trained(arch: Architecture, recipe: SearchRecipe, *, steps: int, seed: int) -> float:
    """Return what a short training of every candidate says."""
    warmup = min(FINE_TUNING.schedule.warmup, steps // 4)
    fit = replace(
        recipe.evaluator.fit, steps=steps, schedule=replace(FINE_TUNING.schedule, warmup=warmup), ema=0.9
    )
    evaluator = replace(recipe, evaluator=replace(recipe.evaluator, fit=fit)).problem(Context()).evaluator
    assert evaluator is not None
    trial = Trial(id=0, architecture=architecture_document(arch), seed=seed, evaluator=evaluator.settings)
    return evaluator.work(trial, str(pick_device(None))).quality or 0.0


def judged_by_shared_weights(
    archs: Sequence[Architecture], recipe: SearchRecipe, *, steps: int, seed: int
) -> Iterator[tuple[float, float]]:
    """Yield what shared weights say of each network, and its seconds."""
    strategy = recipe.strategy
    assert isinstance(strategy, OneShot)
    strategy = replace(
        strategy, fit=replace(strategy.fit, steps=steps, batch=BATCH, precision=precision()), choice=CHOICE
    )
    search = strategy.job(replace(recipe, strategy=strategy, seed=seed).problem(Context()))
    assert isinstance(search, OneShotSearch)
    begin = time.perf_counter()
    for _ in search.training():
        pass
    shared = (time.perf_counter() - begin) / SEARCHED
    for arch in archs:
        begin = time.perf_counter()
        yield search.quality(arch), shared + time.perf_counter() - begin


def table(scores: list[Score]) -> str:
    """Return one line per judge: rank correlation with the truth (mean over its seeds), and its cost."""
    truths = [score for score in scores if score.judge == TRUTH]
    truth = {
        name: mean(row.quality for row in truths if row.network == name)
        for name in {row.network for row in truths}
    }
    full = mean(row.seconds for row in truths)
    lines = [
        "judge | seed | networks | Spearman | cost per network, of a full training",
        "---|---|---|---|---",
    ]
    for judge, seed in sorted({(score.judge, score.seed) for score in scores}):
        rows = [row for row in scores if (row.judge, row.seed) == (judge, seed) and row.network in truth]
        correlation = spearman([row.quality for row in rows], [truth[row.network] for row in rows])
        cost = mean(row.seconds for row in rows) / full
        shown = "-" if correlation is None else f"{correlation:.2f}"
        lines.append(f"{judge} | {seed} | {len(rows)} | {shown} | {cost:.1%}")
    return "\n".join(lines)


def judged(
    judge: str, archs: Sequence[Architecture], recipe: SearchRecipe, given: argparse.Namespace, data: str
) -> Iterator[tuple[float, float]]:
    """Yield what a judge says of each network, and its seconds."""
    name, _, steps = judge.partition(":")
    if name == "one_shot" and archs:
        yield from judged_by_shared_weights(archs, recipe, steps=int(steps), seed=given.seed)
        return
    for arch in archs:
        begin = time.perf_counter()
        if name == TRUTH:
            quality = trained(arch, data, steps=given.steps, crop=parse_size(given.crop), seed=given.seed)
        elif name == "macs":
            quality = macs(arch)
        else:
            quality = briefly_trained(arch, recipe, steps=int(steps), seed=given.seed)
        yield quality, time.perf_counter() - begin


def main() -> None:
    """Score what is missing and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", help="CamVid's folder")
    parser.add_argument("--judges", nargs="+", default=(TRUTH, "macs", "train:12", "train:30", "train:80"))
    parser.add_argument("--drive", default="0016E5", help="the drive that is left out and scored")
    parser.add_argument("--networks", type=int, default=24)
    parser.add_argument("--limit", type=float, default=4e8, help="budget in multiply-accumulates at 360x480")
    parser.add_argument("--steps", type=int, default=400, help="of a full training")
    parser.add_argument("--crop", default="160x224", help="HEIGHTxWIDTH of training crops")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/judging.jsonl"))
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    lines = given.out.read_text().splitlines() if given.out.exists() else []
    scores = [Score(**json.loads(line)) for line in lines]
    known = {score.key for score in scores}
    data, crop = f"camvid:{given.path}?fold={given.drive}", parse_size(given.crop)
    recipe = search_recipe(data, crop=crop, seed=given.seed)
    for judge in given.judges:
        wanted = [
            arch
            for arch in networks(given.networks, given.limit)
            if (judge, fingerprint_of(arch), given.seed, given.drive) not in known
        ]
        for arch, (quality, seconds) in zip(wanted, judged(judge, wanted, recipe, given, data), strict=True):
            score = Score(
                judge=judge,
                network=fingerprint_of(arch),
                seed=given.seed,
                drive=given.drive,
                quality=quality,
                seconds=round(seconds, 3),
            )
            scores.append(score)
            with given.out.open("a") as file:
                file.write(json.dumps(vars(score)) + "\n")
            print(vars(score), flush=True)
    print(table(scores))


if __name__ == "__main__":
    main()
