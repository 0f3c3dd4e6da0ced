"""The studies of the auxiliary-cells paper (Figures 2 to 5), each a search that ends with a chart.

    python -m benchmarks.auxcells_studies rewards --data synthetic --out RUN          # Figure 2
    python -m benchmarks.auxcells_studies tricks --data synthetic --set evaluator.teacher=runs/teacher/weights --out RUN
    python -m benchmarks.auxcells_studies auxiliary --data synthetic --out RUN        # Figure 4 in miniature
    python -m benchmarks.auxcells_studies ranking --data synthetic --out RUN          # Figure 5 in miniature

`rewards` compares the rewards that the controller and random search find. `tricks` (Figure 3) adds averaging, auxiliary
cells and, with a teacher, distillation one by one. `auxiliary` compares auxiliary cells, plain auxiliary classifiers
and none on published decoders. `ranking` correlates the rewards of both stages with a longer training of the same
architectures. `--scale small` takes minutes on a CPU, `--scale paper` has the settings of the paper; Figures 4 and 5 at
that scale train networks that a search found, for 50 epochs each: `benchmarks/auxcells_long.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.search_strategies import Ablation, Contender, Contest, Entrant, Study, Variant
from benchmarks.study_runs import SystemStudies
from segtailor.core.codec import to_json
from segtailor.core.errors import Unsupported
from segtailor.core.strategy import Strategy
from segtailor.recipes.search import SearchRecipe
from segtailor.spaces import published
from segtailor.spaces.decoder_cell.architecture import AUXILIARIES
from segtailor.strategies import RandomSearch
from segtailor.systems.system import Scale

STAGES = ("stage1", "stage2")
DECODERS = ("auxcells-arch0", "auxcells-arch1", "auxcells-arch2")  # published
PAPER_SAMPLED, SMALL_SAMPLED = 140, 6  # architectures of Figure 3
SMALL_RANKED = 8  # architectures of Figure 5 in miniature
LONGER = 10  # in miniature it has this many times the steps of the second stage


def rewards(recipe: SearchRecipe, scale: Scale) -> SearchRecipe:
    """Compare the rewards that the controller and random search find (Figure 2), with early stopping as in a search."""
    del scale
    learned: Any = recipe.strategy
    contenders = (
        Contender(name="controller", strategy=learned),
        Contender(name="random", strategy=RandomSearch(trials=learned.trials)),
    )
    return replace(recipe, name="auxcells-rewards", strategy=Contest(contenders=contenders))


def tricks(recipe: SearchRecipe, scale: Scale) -> SearchRecipe:
    """Add averaging, auxiliary cells and, with a teacher, distillation one by one (Figure 3)."""
    without_auxiliary = {"auxiliary_default": 0.0}
    variants = (
        Variant(name="baseline", changes=_all_stages(ema=None, loss=without_auxiliary, distill=None)),
        Variant(name="+Polyak", changes=_all_stages(loss=without_auxiliary, distill=None)),
        Variant(name="+Polyak+AUX", changes=_all_stages(distill=None)),
        Variant(name="+Polyak+AUX+KD", needs="staged.teacher"),
    )
    count = PAPER_SAMPLED if scale == "paper" else SMALL_SAMPLED
    return _study("auxcells-tricks", recipe, Ablation(variants=variants, architectures=count))


def auxiliary(recipe: SearchRecipe, scale: Scale) -> SearchRecipe:
    """Compare auxiliary cells, plain auxiliary classifiers and none on published decoders (Figure 4).

    Decoders that a search found, trained as long as in the paper, are in `auxcells_long.py`.
    """
    _only_small("auxiliary", scale)
    frame = {name: getattr(recipe.space, name) for name in ("encoder", "channels", "repeats")}
    entrants = tuple(
        Entrant(
            name=f"arch{number} {kind}",
            architecture=replace(published(name), auxiliary=kind, **frame),
        )
        for number, name in enumerate(DECODERS)
        for kind in AUXILIARIES
    )
    study = _study("auxcells-auxiliary", recipe, Study(entrants=entrants))
    staged: Any = study.evaluator
    plain = {name: replace(getattr(staged, name), ema=None, distill=None) for name in STAGES}
    return replace(study, evaluator=replace(staged, **plain))


def ranking(recipe: SearchRecipe, scale: Scale) -> SearchRecipe:
    """Correlate the rewards of both stages with a longer training of the same architectures (Figure 5)."""
    _only_small("ranking", scale)
    evaluator: Any = recipe.evaluator
    stage2 = evaluator.stage2
    more = {"epochs": LONGER * stage2.epochs} if stage2.steps is None else {"steps": LONGER * stage2.steps}
    variants = (
        Variant(name="search"),
        Variant(name="longer", changes={"staged": {"stage2": {**more, "ema": None}}}),
    )
    return _study(
        "auxcells-ranking", recipe, Ablation(variants=variants, architectures=SMALL_RANKED, chart="ranks")
    )


def _only_small(study: str, scale: Scale) -> None:
    if scale == "paper":
        raise Unsupported(
            f"the paper's study '{study}' trains networks that a search found; run the search, then "
            f"python -m benchmarks.auxcells_long {study} --search RUN --data DATASET --out FOLDER."
        )


def _study(name: str, recipe: SearchRecipe, strategy: Strategy) -> SearchRecipe:
    """Return a recipe in which no trial is stopped early, so that all architectures are judged alike."""
    evaluator: Any = recipe.evaluator
    return replace(recipe, name=name, strategy=strategy, evaluator=replace(evaluator, early_stop=None))


def _all_stages(**changes: Any) -> dict[str, Any]:
    """Return changes of both stages, as the settings of the evaluator name them."""
    return {"staged": {stage: to_json(changes) for stage in STAGES}}


STUDIES = SystemStudies(
    system="auxcells",
    studies={"rewards": rewards, "tricks": tricks, "auxiliary": auxiliary, "ranking": ranking},
)

if __name__ == "__main__":
    STUDIES.main(__doc__)
