"""What a published system is: complete search recipes at two scales, and how they are fitted to a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from segtailor.data.augment import Augment
from segtailor.recipes.search import SearchRecipe
from segtailor.strategies.evaluators.staged import StagedEvaluator
from segtailor.strategies.evaluators.train import TrainEvaluator
from segtailor.strategies.gradient_settings import Gradient
from segtailor.strategies.one_shot import OneShot

Scale: TypeAlias = Literal["small", "paper"]
Size: TypeAlias = tuple[int, int]  # height, width

PAPER_DATA, SMALL_DATA = "cityscapes:PATH", "synthetic"  # of recipes that were not fitted to a dataset yet
SMALL_IMAGE = (64, 128)  # of synthetic street scenes: a search then takes minutes on one core
# Joint searches learn weights and logits from the same images, all of them in the papers: the rest only judges.
JUDGING, SMALL_JUDGING = 0.1, 0.2
ADAPT = 20.0  # with a budget: how fast the cost weight of a gradient search follows it (our choice)


@dataclass(frozen=True, kw_only=True)
class System:
    """A search by name. The settings of a paper stay as published; those of the small scale follow the data.

    `crop_multiple` is what sides of crops must be a multiple of. `adapt` is called last with the fitted recipe of
    the small scale. `fit_paper` is for systems that nobody has published: their large scale follows the data, too.
    `paper_on` holds the paper's search on other datasets, by the name of their layout; `from_scratch` says that the
    paper's search begins from random weights.
    """

    summary: str
    paper: SearchRecipe
    small: SearchRecipe
    crop_multiple: int = 1
    adapt: Callable[[SearchRecipe], SearchRecipe] | None = None
    fit_paper: bool = False
    paper_on: Mapping[str, SearchRecipe] = field(default_factory=dict)
    from_scratch: bool = False

    def on(self, data: str, *, scale: Scale, size: Size, crop: Size) -> SearchRecipe:
        """Return the recipe for a dataset: `size` is that of its images, `crop` the largest that fits all of them."""
        if scale == "paper" and not self.fit_paper:
            return replace(self.paper_on.get(layout_of(data), self.paper), data=data)
        base = self.paper if scale == "paper" else self.small
        fitted = with_crops(replace(base, data=data, image=size), lambda largest: self._fitted(largest, crop))
        return fitted if self.adapt is None or scale == "paper" else self.adapt(fitted)

    def _fitted(self, largest: Size, crop: Size) -> Size:
        height, width = (min(pair) for pair in zip(largest, crop, strict=True))
        multiple = self.crop_multiple
        if multiple == 1:
            return height, width
        return max(multiple, height // multiple * multiple), max(multiple, width // multiple * multiple)


def layout_of(data: str) -> str:
    """Return the name of a dataset as typed, e.g. `camvid` of `camvid:PATH`."""
    return data.partition(":")[0].partition("?")[0]


def with_crops(recipe: SearchRecipe, change: Callable[[Size], Size]) -> SearchRecipe:
    """Return a recipe with every training crop changed, those of its strategy and of its evaluator."""

    def cut(augment: Augment) -> Augment:
        return replace(augment, crop=change(augment.crop))

    strategy, evaluator = recipe.strategy, recipe.evaluator
    if isinstance(strategy, Gradient):
        if strategy.augment is not None:
            strategy = replace(strategy, augment=cut(strategy.augment))
        if strategy.pretraining is not None and strategy.pretraining.augment is not None:
            before = replace(strategy.pretraining, augment=cut(strategy.pretraining.augment))
            strategy = replace(strategy, pretraining=before)
    if isinstance(strategy, OneShot) and strategy.augment is not None:
        strategy = replace(strategy, augment=cut(strategy.augment))
    if isinstance(evaluator, TrainEvaluator):
        evaluator = replace(evaluator, augment=cut(evaluator.augment))
    if isinstance(evaluator, StagedEvaluator):
        evaluator = replace(
            evaluator,
            features=cut(evaluator.features),
            augment=cut(evaluator.augment),
            judge=change(evaluator.judge),
        )
    return replace(recipe, strategy=strategy, evaluator=evaluator)
