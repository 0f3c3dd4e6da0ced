"""The gradient searches among the published systems: their rows as recipes for a dataset."""

from __future__ import annotations

from dataclasses import dataclass, replace

from segtailor.core.codec import to_json
from segtailor.core.space import SPACES
from segtailor.core.strategy import STRATEGIES
from segtailor.data.augment import Augment
from segtailor.recipes.autortnet import ROBUSTNESS, autortnet, robustness
from segtailor.recipes.choices import Scale
from segtailor.recipes.fasterseg import PAPER_PACK, SLOWEST, TARGET_MS, fasterseg
from segtailor.recipes.gradient_row import SMALL_IMAGE, GradientRow
from segtailor.recipes.parts import CostSpec, Part
from segtailor.recipes.searching import SearchRecipe
from segtailor.recipes.squeezenas import squeezenas
from segtailor.recipes.systems import SYSTEMS, Occasion
from segtailor.strategies.evaluators.train import TrainEvaluator


@SYSTEMS.register("squeezenas")
def squeezenas_recipe(scale: Scale, occasion: Occasion) -> SearchRecipe:
    """Choose one of 13 inverted residuals per block by gradients, weights and choice together (SqueezeNAS)."""
    return _recipe(squeezenas(scale, image=_crop(occasion)), scale, occasion)


@SYSTEMS.register("autortnet")
def autortnet_recipe(scale: Scale, occasion: Occasion) -> SearchRecipe:
    """Choose operators, depths and aggregation of three hyper-cells by gradients (AutoRTNet)."""
    return _recipe(autortnet(scale, image=_crop(occasion)), scale, occasion)


@dataclass(frozen=True)
class OtherStart:
    """Search from other first depths or with another seed, to see whether depths end alike (AutoRTNet, Table 4)."""

    row: int

    def __call__(self, scale: Scale, occasion: Occasion) -> SearchRecipe:
        """Return the search of one row of the table."""
        return _recipe(robustness(scale, image=_crop(occasion))[self.row], scale, occasion)


for _row in range(len(ROBUSTNESS)):
    SYSTEMS.add(f"autortnet-robustness-{_row + 1}", OtherStart(_row))


@SYSTEMS.register("fasterseg")
def fasterseg_recipe(scale: Scale, occasion: Occasion) -> SearchRecipe:
    """Choose paths, operators and widths by gradients, and a teacher beside the student (FasterSeg)."""
    row = fasterseg(scale, image=_multiple(_crop(occasion)))
    recipe = replace(
        _recipe(row, scale, occasion),
        objective=Part(kind="power", settings={"limit": TARGET_MS, "exponent": -0.07}),
    )
    if scale == "small":
        return recipe
    cost = CostSpec(kind="latency", pack=PAPER_PACK, force=True)
    return replace(recipe, cost=cost, limit=1000 / SLOWEST)


def _multiple(size: tuple[int, int]) -> tuple[int, int]:
    """Return a crop whose sides are multiples of 32, as the supernet needs them."""
    height, width = (max(32, side // 32 * 32) for side in size)
    return height, width


def _crop(occasion: Occasion) -> tuple[int, int]:
    """Return the crop of a small search: at most 64x128, so that it takes minutes on one core."""
    height, width = (min(side, most) for side, most in zip(occasion.crop, SMALL_IMAGE, strict=True))
    return height, width


def _recipe(row: GradientRow, scale: Scale, occasion: Occasion) -> SearchRecipe:
    """Describe a row completely. Its training settings also serve trials, should another strategy be asked for."""
    augment = row.strategy.augment or Augment(crop=occasion.crop)
    return SearchRecipe(
        name=row.name,
        space=Part(kind=SPACES.name_of(type(row.space)), settings=to_json(row.space)),
        strategy=Part(kind=STRATEGIES.name_of(type(row.strategy)), settings=to_json(row.strategy)),
        data=occasion.data,
        image=row.image if scale == "paper" else occasion.size,
        training=TrainEvaluator(augment=augment, fit=row.strategy.fit),
        seed=row.seed,
    )
