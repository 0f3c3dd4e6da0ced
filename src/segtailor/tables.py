"""Everything that has a name: one table per registry, with the place each thing is imported from when it is needed.

`segtailor/__init__.py` fills the registries with them. A name here is what files, flags and users write.
"""

from __future__ import annotations

from segtailor.core import registry

OBJECTIVES = {
    "within": "segtailor.core.cost:Within",
    "linear": "segtailor.core.cost:Linear",
    "power": "segtailor.core.cost:Power",
}
COSTS = {
    "macs": "segtailor.costs.analytic:Macs",
    "params": "segtailor.costs.analytic:Params",
    "memory": "segtailor.costs.analytic:ActivationMemory",
    "pack": "segtailor.costs.latency:PackLatency",
    "measured": "segtailor.costs.latency:TargetLatency",
}
EVALUATORS = {
    "train": "segtailor.strategies.evaluators.train:TrainEvaluator",
    "staged": "segtailor.strategies.evaluators.staged:StagedEvaluator",
    "shared": "segtailor.strategies.evaluators.shared:SharedEvaluator",
}
RECIPES = {
    "train": "segtailor.recipes.train:TrainRecipe",
    "train_stages": "segtailor.recipes.train:StagedTrainRecipe",
    "search": "segtailor.recipes.search:SearchRecipe",
    "calibrate": "segtailor.recipes.calibrate:CalibrateRecipe",
    "tailor": "segtailor.tailoring.settings:TailorRecipe",
}
SYSTEMS = {
    "auxcells": "segtailor.systems.auxcells:SYSTEM",
    "dilated": "segtailor.systems.dilated:SYSTEM",
    "squeezenas": "segtailor.systems.squeezenas:SYSTEM",
    "autortnet": "segtailor.systems.autortnet:SYSTEM",
    "fasterseg": "segtailor.systems.fasterseg:SYSTEM",
    "lpsnet": "segtailor.systems.lpsnet:SYSTEM",
}
TRAININGS = {
    "auxcells": "segtailor.systems.auxcells:training",
    "auxcells-depth": "segtailor.systems.auxcells:depth_training",
    "auxcells-pose": "segtailor.systems.auxcells:pose_training",
}


def fill() -> None:
    """Put every table into its registry."""
    registry.OBJECTIVES.fill(OBJECTIVES)
    registry.COSTS.fill(COSTS)
    registry.EVALUATORS.fill(EVALUATORS)
    registry.RECIPES.fill(RECIPES)
    registry.SYSTEMS.fill(SYSTEMS)
    registry.TRAININGS.fill(TRAININGS)
