"""Train one architecture on one dataset: the recipe behind `segtailor train`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from segtailor.core.atomic import write_json
from segtailor.core.codec import Json, read_json
from segtailor.core.errors import DataProblem, RunProblem, UserError, unknown
from segtailor.core.job import Step
from segtailor.core.plan import MAIN
from segtailor.core.shipped import bundle_folder
from segtailor.core.space import fingerprint_of, parse_architecture
from segtailor.core.task import Preprocessing, Task
from segtailor.data.augment import Augment
from segtailor.data.batches import batches_of
from segtailor.data.cache import Pixels, open_pixels
from segtailor.data.locate import locate
from segtailor.data.splits import parts_of
from segtailor.nets.build import build
from segtailor.nets.bundle import Model, load_bundle, save_bundle
from segtailor.nets.committee import Committee, load_members
from segtailor.nets.network import Network, initialise
from segtailor.nets.reparam import plain_form, with_branches
from segtailor.recipes.recipe import RECIPES, Place
from segtailor.runs import Layout
from segtailor.spaces.decoder_cell.encoder_weights import fill_encoder
from segtailor.training.device import pick_device
from segtailor.training.fit import Fit
from segtailor.training.settings import FitSettings

DATA = "data.json"  # inside a checkpoint: what it was trained on


@RECIPES.register("train")
@dataclass(frozen=True, kw_only=True)
class TrainRecipe:
    """Train an architecture (its document) on a dataset (as typed on the command line).

    `reparameterise` trains the blocks that have one in their branched form and folds them at the end; the bundle is
    the same kind either way. `teacher` is the folder of a bundle to distil from (or shipped weights, by name), or of
    several, whose mean is followed. `start` is one to take weights from. `encoder_weights` names pre-trained weights
    of the encoder (`spaces.decoder_cell.encoder_weights.fill_encoder`).
    """

    architecture: dict[str, Any]
    data: str
    augment: Augment
    fit: FitSettings = field(default_factory=FitSettings)
    train_split: str = "train"
    val_split: str | None = "val"
    auxiliary: bool = True
    reparameterise: bool = False
    teacher: str | None = None
    start: str | None = None
    encoder_weights: str | None = None
    preprocessing: Preprocessing = field(default_factory=Preprocessing)

    def job(self, place: Place, *, weights: Mapping[str, Tensor] | None = None) -> Training:
        """Open the data, build the network, and return the job; `weights` are those of an earlier stage."""
        dataset = locate(self.data)
        self._check_splits(dataset.splits)
        pixels = open_pixels(dataset, self.train_split, place.cache)
        validation = open_pixels(dataset, self.val_split, place.cache) if self.val_split else None
        device = pick_device(place.device)
        network = self._network(dataset.task, trusted=place.trusted)
        if weights is not None:
            _copy_state(weights, network)
        batches = batches_of(pixels, self.augment, self.preprocessing, device=device)
        fit = Fit(
            network=network,
            batches=batches,
            settings=self.fit,
            task=dataset.task,
            device=device,
            validation=validation,
            preprocessing=self.preprocessing,
            teacher=self._teacher(dataset.task),
        )
        return Training(fit=fit, network=network, recipe=self, place=place, data=_facts(pixels, validation))

    def _network(self, task: Task, *, trusted: bool = True) -> Network:
        arch = parse_architecture(self.architecture)
        network = build(arch, task.outputs, outputs="all" if self.auxiliary else (MAIN,))
        for name in self.fit.loss.auxiliary:
            if name not in network.plan.outputs:
                raise unknown("output of this network", name, network.plan.outputs)
        initialise(network, self.fit.seed)
        if self.encoder_weights is not None:
            fill_encoder(network, self.encoder_weights, trusted=trusted)
        if self.start is not None:
            _copy_state(load_bundle(bundle_folder(self.start)).network.state_dict(), network)
        return with_branches(network, seed=self.fit.seed) if self.reparameterise else network

    def _check_splits(self, known: Sequence[str]) -> None:
        """Refuse to score on images that also train, unless just that was asked for."""
        if self.val_split is None or self.val_split == self.train_split:
            return
        shared = set(parts_of(self.train_split, known)) & set(parts_of(self.val_split, known))
        if shared:
            raise DataProblem(
                f"train_split '{self.train_split}' and val_split '{self.val_split}' share the images of "
                f"'{min(shared)}', so scores would be of images seen in training. Choose splits that share none, or "
                "val_split=null to train without scoring."
            )

    def _teacher(self, task: Task) -> nn.Module | None:
        if self.teacher is None:
            return None
        members = load_members(Path(self.teacher))
        for folder, model in members.items():
            if model.task.outputs != task.outputs:
                raise UserError(
                    f"the teacher {folder} knows {model.task.outputs} classes, the data has {task.outputs}; "
                    "distil from a network trained on the same classes."
                )
            if model.preprocessing != self.preprocessing:
                raise UserError(
                    f"the teacher {folder} was trained with another normalisation; train one with the same."
                )
        networks = [model.network for model in members.values()]
        return networks[0] if len(networks) == 1 else Committee(networks)


@dataclass(kw_only=True, eq=False, repr=False)
class Training:
    """A `Fit` that writes a bundle when it is done."""

    fit: Fit
    network: Network
    recipe: TrainRecipe
    place: Place
    data: Mapping[str, Json]

    def steps(self) -> Iterator[Step]:
        """Train."""
        yield from self.fit.steps()

    def save(self, folder: Path) -> None:
        """Write the training state, and which data it comes from."""
        self.fit.save(folder)
        write_json(folder / DATA, self.data, what="facts of the data")

    def load(self, folder: Path) -> None:
        """Restore the training state, if the data is still what it was."""
        before = read_json(folder / DATA, what="facts of the data", error=RunProblem)
        if before != self.data:
            raise RunProblem(
                f"the data {self.recipe.data} has changed since this run began ({_shown(before)} then, "
                f"{_shown(self.data)} now). Restore it to go on, or train anew in another folder."
            )
        self.fit.load(folder)

    def result(self) -> Mapping[str, Json]:
        """Write the bundle (leader only) and return the figures."""
        folder = Layout(self.place.folder).weights
        result = {**self.fit.result(), "model": str(folder)}
        if self.place.leader:
            save_bundle(folder, self._model(result))
        return result

    def _model(self, figures: Mapping[str, Json]) -> Model:
        network = self.fit.network
        network.load_state_dict(self.fit.weights())
        plain = plain_form(self.network)
        return Model(
            network=plain,
            task=self.fit.task,
            preprocessing=self.recipe.preprocessing,
            provenance={
                "data": self.recipe.data,
                "train_split": self.recipe.train_split,
                "fingerprint": fingerprint_of(self.network.architecture),
                **self.data,
                "seed": self.recipe.fit.seed,
            },
            numbers={key: value for key, value in figures.items() if key != "model"},
        )


def _facts(pixels: Pixels, validation: Pixels | None) -> dict[str, Json]:
    return {
        "train_images": len(pixels),
        "train_pixels": pixels.fingerprint,
        "val_images": len(validation) if validation is not None else 0,
    }


def _shown(facts: Mapping[str, Json]) -> str:
    pixels = str(facts.get("train_pixels"))[:8]
    return f"{facts.get('train_images')} training images, fingerprint {pixels}"


def _copy_state(given: Mapping[str, Tensor], target: Network) -> None:
    """Take every weight of the same name and shape; the classifier of another task stays fresh."""
    own = target.state_dict()
    fitting = {name: value for name, value in given.items() if name in own and own[name].shape == value.shape}
    if not fitting:
        raise UserError(
            "the bundle to start from shares no weight with this network; start from a relative of it."
        )
    target.load_state_dict({**own, **fitting})
