"""LPS-Net (Zhang, Yao, Qiu, Mei 2022) as data: the expansion of section 3.4 and the two design studies.

The paper judges by the short recipe of section 4.2. At the small scale the same steps run on whatever images are
given, in minutes on a CPU: our choice of settings.
"""

from __future__ import annotations

from typing import Any

from segtailor.core.space import SPACES
from segtailor.core.strategy import STRATEGIES
from segtailor.data.augment import Augment
from segtailor.recipes.choices import Scale
from segtailor.recipes.parts import Part, part
from segtailor.recipes.searching import SearchRecipe
from segtailor.recipes.systems import SYSTEMS, Occasion
from segtailor.search import Entrant
from segtailor.search.evaluators.train import TrainEvaluator
from segtailor.spaces.scalable_path.architecture import BLOCKS, INTERACTIONS
from segtailor.training.settings import FitSettings, Schedule

PAPER_IMAGE = (1024, 2048)
PAPER_STEPS = 14  # Table 4
WIDTH = (1, 2, 4, 8, 8)  # C = {c, 2c, 4c, 8c, 8c} of Tables 2 and 3
PAPER_STUDY = {"depth": [1, 2, 4, 7, 7], "resolution": ["1", "1/4"]}
SMALL_CROP = (64, 128)  # at most: the largest networks of a small search then train in seconds on one core
SMALL_STUDY = {"depth": [1, 1, 2, 2, 2], "resolution": ["1", "1/2"]}


@SYSTEMS.register("lpsnet")
def lpsnet(scale: Scale, occasion: Occasion) -> SearchRecipe:
    """Grow a family of networks step by step, by the best gain per cost (LPS-Net, Algorithm 1)."""
    steps = PAPER_STEPS if scale == "paper" else 6
    return _recipe("lpsnet", scale, occasion, part(STRATEGIES, "expansion", steps=steps))


@SYSTEMS.register("lpsnet-blocks")
def lpsnet_blocks(scale: Scale, occasion: Occasion) -> SearchRecipe:
    """Compare seven block types, each as wide as the cost of plain convolutions allows (LPS-Net, Table 2)."""
    entrants = tuple(
        Entrant(
            name=block,
            architecture=_document(scale, factor=1, block=block, interaction="none"),
            scaled="width",
        )
        for block in BLOCKS
    )
    match = _document(scale, factor=14 if scale == "paper" else 8, block="conv", interaction="none")
    return _recipe(
        "lpsnet-blocks", scale, occasion, part(STRATEGIES, "study", entrants=entrants, match=match)
    )


@SYSTEMS.register("lpsnet-interactions")
def lpsnet_interactions(scale: Scale, occasion: Occasion) -> SearchRecipe:
    """Compare six ways for paths to exchange features, and none, in one network (LPS-Net, Table 3)."""
    factor = 16 if scale == "paper" else 4
    entrants = tuple(
        Entrant(name=kind, architecture=_document(scale, factor=factor, block="conv", interaction=kind))
        for kind in INTERACTIONS
    )
    return _recipe("lpsnet-interactions", scale, occasion, part(STRATEGIES, "study", entrants=entrants))


def _recipe(name: str, scale: Scale, occasion: Occasion, strategy: Part) -> SearchRecipe:
    return SearchRecipe(
        name=name,
        space=part(SPACES, "scalable_path"),
        strategy=strategy,
        data=occasion.data,
        image=PAPER_IMAGE if scale == "paper" else occasion.size,
        training=_short_training(scale, occasion),
    )


def _short_training(scale: Scale, occasion: Occasion) -> TrainEvaluator:
    """Return the short recipe of section 4.2 (the strength of colour jitter is ours), or a far shorter one."""
    jitter: dict[str, Any] = {"brightness": 0.3, "contrast": 0.3, "saturation": 0.3, "hue": 0.03}
    if scale == "paper":
        return TrainEvaluator(
            augment=Augment(crop=(768, 768), scale=(0.5, 2.0), **jitter),
            fit=FitSettings(
                steps=90_000,
                batch=16,
                optimiser="sgd",
                lr=0.01,
                momentum=0.9,
                weight_decay=5e-4,
                schedule=Schedule(kind="poly", power=0.9),
            ),
            reparameterise=True,
        )
    height, width = (min(side, most) for side, most in zip(occasion.crop, SMALL_CROP, strict=True))
    return TrainEvaluator(
        augment=Augment(crop=(height, width), scale=(0.75, 1.5), **jitter),
        fit=FitSettings(steps=40, batch=8, optimiser="adamw", lr=0.01, weight_decay=0.01, validate_batch=32),
        reparameterise=True,
    )


def _document(scale: Scale, *, factor: int, **kind: str) -> dict[str, Any]:
    """Return the architecture document of a study's network."""
    body = PAPER_STUDY if scale == "paper" else SMALL_STUDY
    width = [factor * step for step in WIDTH]
    return {
        "format": 1,
        "family": "scalable_path",
        "architecture": {**body, "width": width, **kind},
        "origin": {},
    }
