"""Train, score and resume: the functions behind the verbs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import segtailor.recipes.calibrating
import segtailor.recipes.searching  # so that resume knows them
import segtailor.spaces  # noqa: F401 - registers the families that recipes and bundles may name
from segtailor.api.models import open_model
from segtailor.api.networks import resolve
from segtailor.core.codec import Json
from segtailor.core.errors import DataProblem, UserError, unknown
from segtailor.core.shipped import ANYWHERE
from segtailor.core.space import Architecture, architecture_document
from segtailor.core.task import Kind, Task
from segtailor.data import doctor
from segtailor.data.augment import Augment
from segtailor.data.cache import Pixels, open_pixels
from segtailor.data.locate import locate
from segtailor.data.splits import split_parts
from segtailor.nets.bundle import Model
from segtailor.nets.onnx_model import OnnxModel
from segtailor.recipes.auxcells_training import auxcells_training
from segtailor.recipes.auxcells_transfer import depth_training, pose_training
from segtailor.recipes.choices import Scale
from segtailor.recipes.overrides import overridden
from segtailor.recipes.recipe import Place, Recipe, parse_recipe, recipe_document
from segtailor.recipes.staged_training import StagedTrainRecipe
from segtailor.recipes.training import TrainRecipe
from segtailor.runs import Display, Layout, Policy, execute, read_recipe
from segtailor.training import distributed
from segtailor.training.device import pick_device
from segtailor.training.evaluate import evaluate as score
from segtailor.training.evaluate import score_predictions

TRAININGS = {"auxcells": auxcells_training, "auxcells-depth": depth_training, "auxcells-pose": pose_training}
CROP_STEP = 32  # crops are a multiple of this where the images allow it: the deepest stride of the families
LARGEST_CROP = (768, 1536)
JITTER: dict[str, Any] = {"brightness": 0.3, "contrast": 0.3, "saturation": 0.3, "hue": 0.03}
LOOKS: Mapping[Kind, dict[str, Any]] = {
    "segmentation": {},
    "depth": {"scale": (0.8, 1.25)},  # where things stand in a picture says how far they are
    "pose": {"scale": (0.75, 1.25), "rotate": 30.0},
}
CHECKED = 2000  # samples per split that are examined before training starts


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Where work is done, and who watches: nothing of it changes a result.

    `trust_code` lets recipes that are read from run directories import code by name and contact other machines.
    """

    cache: Path = field(default_factory=lambda: Path.home() / ".cache" / "segtailor")
    device: str | None = None
    display: Display | None = None
    policy: Policy | None = None
    trust_code: bool = False


def train_recipe(
    model: str | Path | Architecture,
    data: str,
    *,
    crop: tuple[int, int] | None = None,
    changes: Iterable[str] = (),
    surroundings: Surroundings | None = None,
) -> TrainRecipe:
    """Write a training recipe; a crop that is left out follows from the images, `changes` are `field=value`."""
    around = surroundings or Surroundings()
    dataset = locate(data)
    found = crop or usual_crop(open_pixels(dataset, "train", around.cache))
    recipe = TrainRecipe(
        architecture=architecture_document(resolve(model)),
        data=data,
        augment=usual_looks(dataset.task.kind, found),
        val_split="val" if "val" in dataset.splits else None,
    )
    changed = parse_recipe(overridden(recipe_document(recipe), changes), what="recipe")
    return changed if isinstance(changed, TrainRecipe) else recipe


def usual_looks(kind: Kind, crop: tuple[int, int]) -> Augment:
    """Return how a training shows pictures unless told otherwise."""
    return Augment(crop=crop, **LOOKS[kind], **JITTER)


def staged_recipe(
    name: str,
    model: str | Path | Architecture,
    data: str | Sequence[str],
    *,
    scale: Scale = "small",
    crop: tuple[int, int] | None = None,
    surroundings: Surroundings | None = None,
) -> StagedTrainRecipe:
    """Write the training recipe of a published system; `data` may name one dataset per stage where it has several."""
    if name not in TRAININGS:
        raise unknown("training", name, TRAININGS)
    around, names = surroundings or Surroundings(), [data] if isinstance(data, str) else list(data)
    dataset = locate(names[-1])
    found = crop or usual_crop(open_pixels(dataset, "train", around.cache))
    val = "val" if "val" in dataset.splits else None
    return TRAININGS[name](resolve(model), names, scale=scale, crop=found, val_split=val)


def train(
    recipe: TrainRecipe | StagedTrainRecipe | str | Path | Architecture,
    out: str | Path,
    *,
    data: str | None = None,
    changes: Iterable[str] = (),
    check: bool = True,
    surroundings: Surroundings | None = None,
) -> dict[str, Json]:
    """Train in the run directory `out`, or go on with what is there; errors of the data stop it before it starts.

    `recipe` is a recipe, or a network (name, architecture or its file) with `data` and `changes` (`field=value`).
    """
    if not isinstance(recipe, TrainRecipe | StagedTrainRecipe):
        if data is None:
            raise UserError(f"training '{recipe}' needs data; give for example data='synthetic'.")
        recipe = train_recipe(recipe, data, changes=changes, surroundings=surroundings)
    if check and not Layout(Path(out)).recipe.exists():
        doctor.examine(lambda: locate(recipe.data), limit=CHECKED).raise_for_errors()
    return run(recipe, out, surroundings=surroundings)


def resume(folder: str | Path, *, surroundings: Surroundings | None = None) -> dict[str, Json]:
    """Go on with an interrupted run; a finished one just returns its result.

    A recipe that names code to import or a machine to contact is refused unless `surroundings.trust_code`.
    """
    recipe = parse_recipe(read_recipe(Path(folder)), what=f"recipe of {folder}")
    trusted = surroundings is not None and surroundings.trust_code
    return run(recipe, folder, surroundings=surroundings, trusted=trusted)


def run(
    recipe: Recipe, out: str | Path, *, surroundings: Surroundings | None = None, trusted: bool = True
) -> dict[str, Json]:
    """Carry a recipe out in a run directory, alone or together with the processes that `torchrun` started.

    One that was not written by the caller, but read from a file, is not `trusted`.
    """
    around, folder = surroundings or Surroundings(), Path(out)
    device = pick_device(around.device)
    distributed.join(device)
    try:
        rank, _ = distributed.world()
        place = Place(
            folder=folder, cache=around.cache, device=around.device, leader=rank == 0, trusted=trusted
        )
        return execute(
            lambda: recipe.job(place),
            folder,
            recipe_document(recipe),
            display=around.display,
            policy=around.policy,
            leader=place.leader,
            agree=lambda stop: distributed.any_process(stop, device),
        )
    finally:
        distributed.leave()


def evaluate(
    model: str | Path | Model | OnnxModel,
    data: str,
    *,
    split: str = "val",
    batch: int = 4,
    surroundings: Surroundings | None = None,
) -> dict[str, Any]:
    """Score a trained network on whole images at their own size by the figures of its task, shares as fractions.

    A model is a bundle, an ONNX file (run by ONNX Runtime, one image at a time) or the name of shipped weights.
    """
    around = surroundings or Surroundings()
    trained = open_model(model) if isinstance(model, str | Path) else model
    dataset = locate(data)
    if dataset.task.kind != trained.task.kind:
        raise DataProblem(
            f"the model is for {trained.task.kind}, the data for {dataset.task.kind}; score it on data of its own kind."
        )
    if dataset.task.outputs != trained.task.outputs:
        raise DataProblem(
            f"the model knows {trained.task.outputs} classes, the data has {dataset.task.outputs}; "
            "score it on data with the same classes."
        )
    seen = _seen(getattr(trained, "provenance", {}), data, split)
    warnings = _other_names(trained.task, dataset.task) + seen
    if around.display is not None:
        for warning in warnings:
            around.display.message(warning)
    pixels = open_pixels(dataset, split, around.cache)
    facts = {
        "kind": dataset.task.kind,
        "images": len(pixels),
        "split": split,
        "data": data,
        "warnings": warnings,
    }
    if isinstance(trained, OnnxModel):
        scores = score_predictions(trained.predict, pixels, task=dataset.task)
        return {**scores.document(dataset.task.classes), **facts}
    device = pick_device(around.device)
    scores = score(
        trained.network.to(device),
        pixels,
        task=dataset.task,
        preprocessing=trained.preprocessing,
        device=torch.device(device),
        batch=batch,
    )
    return {**scores.document(dataset.task.classes), **facts}


def _other_names(model: Task, data: Task) -> list[str]:
    """Say where model and data call the same class by different names: the numbers may compare unlike things."""
    pairs = [
        (ours, theirs) for ours, theirs in zip(model.classes, data.classes, strict=True) if ours != theirs
    ]
    if not pairs:
        return []
    shown = "; ".join(f"'{ours}' of the model is '{theirs}' in the data" for ours, theirs in pairs[:3])
    more = f"; and {len(pairs) - 3} more" if len(pairs) > 3 else ""
    return [f"class names differ, compared by position ({shown}{more}): is this the data it was trained for?"]


def _seen(provenance: Mapping[str, Json], data: str, split: str) -> list[str]:
    """Say where a model was trained on the images that it is scored on, as far as names of splits tell."""
    trained, used = str(provenance.get("data", "")), str(provenance.get("train_split", ""))
    shared = set(split_parts(used)) & set(split_parts(split))
    if not used or not shared or not _same_data(trained, data):
        return []
    return [
        f"the model was trained on split '{used}' of {trained}: these figures are of images that it has seen and say "
        "nothing about new ones; score it on a split that it has not seen."
    ]


def _same_data(trained: str, data: str) -> bool:
    """Tell whether two texts name one dataset; what is shipped says PATH instead of the folder it was trained from."""
    (name, _, rest), (other, _, others) = trained.partition(":"), data.partition(":")
    (place, _, options), (_, _, asked) = rest.partition("?"), others.partition("?")
    return trained == data or (place == ANYWHERE and (name, options) == (other, asked))


def usual_crop(pixels: Pixels) -> tuple[int, int]:
    """Return the largest crop that fits every image, in multiples of 32, up to 768x1536."""
    sides = []
    for smallest, largest in zip(pixels.sizes.min(axis=0).tolist(), LARGEST_CROP, strict=True):
        side = min(int(smallest), largest)
        sides.append(side // CROP_STEP * CROP_STEP or side)
    return sides[0], sides[1]
