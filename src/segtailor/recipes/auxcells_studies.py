"""The studies of the auxiliary-cells paper in miniature: Figures 2 to 5, each a search recipe with a chart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from segtailor.core.codec import to_json
from segtailor.core.space import architecture_document
from segtailor.core.strategy import STRATEGIES
from segtailor.recipes.auxcells import controller, small_or_paper
from segtailor.recipes.choices import Scale
from segtailor.recipes.parts import Part, part
from segtailor.recipes.searching import SearchRecipe
from segtailor.recipes.systems import SYSTEMS, Occasion
from segtailor.spaces import published
from segtailor.spaces.decoder_cell.architecture import AUXILIARIES
from segtailor.strategies.ablation import Variant
from segtailor.strategies.contest import Contender
from segtailor.strategies.evaluators.staged import StagedEvaluator
from segtailor.strategies.study import Entrant

BOTH = ("stage1", "stage2")
PAPER_SAMPLED, PAPER_RANKED = 140, 30  # architectures of Figures 3 and 5
LONGER = 10  # the long training of Figure 5 has this many times the steps, in miniature


@SYSTEMS.register("auxcells-rewards")
def auxcells_rewards(scale: Scale, occasion: Occasion) -> SearchRecipe:
    """Compare the rewards that the controller and random search find (auxiliary cells, Figure 2)."""
    learned = controller(scale)
    chance = {"trials": learned.settings["trials"]}
    contenders = (
        Contender(name="controller", kind="controller", settings=learned.settings),
        Contender(name="random", kind="random", settings=chance),
    )
    return _study("auxcells-rewards", scale, occasion, part(STRATEGIES, "contest", contenders=contenders))


@SYSTEMS.register("auxcells-tricks")
def auxcells_tricks(scale: Scale, occasion: Occasion) -> SearchRecipe:
    """Add averaging, auxiliary cells and (with --set staged.teacher=...) distillation one by one (Figure 3)."""
    plain = _all_stages(ema=None, loss={"auxiliary_default": 0.0}, distill=None)
    variants = (
        Variant(name="baseline", changes=plain),
        Variant(name="+Polyak", changes=_all_stages(loss={"auxiliary_default": 0.0}, distill=None)),
        Variant(name="+Polyak+AUX", changes=_all_stages(distill=None)),
        Variant(name="+Polyak+AUX+KD", needs="staged.teacher"),
    )
    count = PAPER_SAMPLED if scale == "paper" else 6
    strategy = part(STRATEGIES, "ablation", variants=variants, architectures=count)
    return _study("auxcells-tricks", scale, occasion, strategy)


@SYSTEMS.register("auxcells-auxiliary")
def auxcells_auxiliary(scale: Scale, occasion: Occasion) -> SearchRecipe:
    """Compare auxiliary cells, plain auxiliary classifiers and none on published decoders (Figure 4)."""
    recipe = _study("auxcells-auxiliary", scale, occasion, part(STRATEGIES, "study"))
    frame = {name: recipe.space.settings[name] for name in ("encoder", "channels", "repeats")}
    entrants = tuple(
        Entrant(
            name=f"arch{number} {auxiliary}",
            architecture=architecture_document(
                replace(published(f"auxcells-arch{number}"), auxiliary=auxiliary, **frame)
            ),
        )
        for number in range(3)
        for auxiliary in AUXILIARIES
    )
    staged = _staged(recipe)
    ended = {name: replace(stage, ema=None, distill=None) for name, stage in _stages(staged).items()}
    return replace(
        recipe,
        strategy=part(STRATEGIES, "study", entrants=entrants),
        staged=replace(staged, **ended),
    )


@SYSTEMS.register("auxcells-ranking")
def auxcells_ranking(scale: Scale, occasion: Occasion) -> SearchRecipe:
    """Correlate the rewards of both stages with a longer training of the same architectures (Figure 5)."""
    recipe = _study("auxcells-ranking", scale, occasion, part(STRATEGIES, "study"))
    stage2 = _stages(_staged(recipe))["stage2"]
    more = {"epochs": LONGER * stage2.epochs} if stage2.steps is None else {"steps": LONGER * stage2.steps}
    variants = (
        Variant(name="search"),
        Variant(name="longer", changes={"staged": {"stage2": {**more, "ema": None}}}),
    )
    count = PAPER_RANKED if scale == "paper" else 8
    strategy = part(STRATEGIES, "ablation", variants=variants, architectures=count, chart="ranks")
    return replace(recipe, strategy=strategy)


def _study(name: str, scale: Scale, occasion: Occasion, strategy: Part) -> SearchRecipe:
    """Return a recipe in which nothing is stopped early, so that every architecture is judged alike."""
    recipe = small_or_paper(name, scale, occasion, strategy)
    return replace(recipe, staged=replace(_staged(recipe), early_stop=None))


def _staged(recipe: SearchRecipe) -> StagedEvaluator:
    if recipe.staged is None:
        raise ValueError("recipes of this family have stages")
    return recipe.staged


def _stages(staged: StagedEvaluator) -> dict[str, Any]:
    return {name: getattr(staged, name) for name in BOTH}


def _all_stages(**changes: Any) -> dict[str, Any]:
    return {"staged": {stage: to_json(changes) for stage in BOTH}}
