"""Train one architecture on one dataset, in one stage or several: the recipe behind `segtailor train`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn

from segtailor.core.atomic import write_json
from segtailor.core.codec import Json, read_json
from segtailor.core.errors import DataProblem, RunProblem, UserError, unknown
from segtailor.core.job import Step
from segtailor.core.plan import MAIN
from segtailor.core.space import Architecture, AsDocument, fingerprint_of
from segtailor.core.task import Kind, Preprocessing, Task
from segtailor.data.augment import Augment
from segtailor.data.batches import batches_of
from segtailor.data.cache import Pixels
from segtailor.data.dataset import preprocessing_of, scaled_as
from segtailor.data.large import LargePixels, open_samples
from segtailor.data.locate import locate
from segtailor.data.splits import parts_of
from segtailor.nets.bundle import Model, save_bundle
from segtailor.nets.network import Network, build, initialise
from segtailor.nets.reparam import plain_form, with_branches
from segtailor.nets.teacher import Ensemble, Renormalised, is_foreign, load_members, open_teacher
from segtailor.runs import Context, Layout
from segtailor.spaces.networks import resolve
from segtailor.spaces.starts import (
    AUTO,
    IMAGENET,
    NONE,
    RANDOM,
    TIMM,
    StartRecord,
    carried_by,
    choose_start,
    probe_architecture,
    start_network,
)
from segtailor.tasks.loss_settings import LossSettings
from segtailor.training.device import pick_device
from segtailor.training.fit import Fit
from segtailor.training.settings import FitSettings, Schedule

DATA_FILE = "data.json"  # inside a checkpoint: what it was trained on
STAGE_FILE = "stage.json"  # inside a checkpoint: how far it came
CROP_MULTIPLE = 32  # pixels; of crops, where the images allow it: the deepest stride of the families
MAX_CROP = (768, 1536)  # height and width in pixels
PROBE_STEPS = 300  # in which an encoder that becomes a teacher learns the classes
COLOUR_JITTER: Mapping[str, Any] = {"brightness": 0.3, "contrast": 0.3, "saturation": 0.3, "hue": 0.03}
CHANGES: Mapping[Kind, Mapping[str, Any]] = {  # what else pays: docs/results.md#recipe
    "segmentation": {"scale": (0.75, 1.75), "restyle": 1.0},
    "depth": {"scale": (0.8, 1.25)},  # the position of an object in a picture tells its distance
    "pose": {"scale": (0.75, 1.25), "rotate": 30.0},
}

CARRIED_LR = 0.3  # factor on the learning rate of weights that a start carried over

# How a network is trained that starts from weights: docs/results.md has the figures by which this was chosen.
FINE_TUNING = FitSettings(
    optimiser="adamw",
    lr=3e-3,
    carried_lr=CARRIED_LR,
    weight_decay=0.01,
    batch=8,
    ema=0.98,
    schedule=Schedule(kind="poly", warmup=20),
)


def train_recipe(
    model: str | Path | Architecture,
    data: str,
    *,
    crop: tuple[int, int] | None = None,
    start: str = AUTO,
    context: Context | None = None,
) -> TrainRecipe:
    """Return the usual training of a network (name, architecture or file); the default crop fits the images.

    `start` is where weights come from (`spaces.starts`); with any, the settings are those of fine-tuning.
    """
    dataset, arch = locate(data), resolve(model)
    size = crop or largest_crop(open_samples(dataset, "train", (context or Context()).cache_folder))
    chosen, _ = choose_start(start, arch, dataset.task)
    return TrainRecipe(
        architecture=arch,
        data=data,
        augment=usual_augment(dataset.task.kind, size),
        fit=replace(FitSettings() if chosen == NONE else FINE_TUNING, loss=usual_loss(dataset.task.kind)),
        val_split="val" if "val" in dataset.splits else None,
        start=chosen,
        preprocessing=preprocessing_of(dataset),
    )


def usual_augment(kind: Kind, crop: tuple[int, int]) -> Augment:
    """Return the augmentation of a training unless told otherwise."""
    return Augment(crop=crop, **CHANGES[kind], **COLOUR_JITTER)


def usual_loss(kind: Kind) -> LossSettings:
    """Return the loss of a training unless told otherwise; that of classes also counts their overlap.

    The mean IoU, by which networks are compared, weighs all classes equally, however few pixels they have.
    """
    return LossSettings(overlap=1.0) if kind == "segmentation" else LossSettings()


def largest_crop(pixels: Pixels | LargePixels) -> tuple[int, int]:
    """Return the largest crop that fits every image, in multiples of 32, at most 768x1536; people have their own."""
    if pixels.task.crop is not None:
        return pixels.task.crop
    sides = []
    for smallest, limit in zip(pixels.sizes.min(axis=0).tolist(), MAX_CROP, strict=True):
        side = min(int(smallest), limit)
        sides.append(side // CROP_MULTIPLE * CROP_MULTIPLE or side)
    return sides[0], sides[1]


@dataclass(frozen=True, kw_only=True)
class TrainRecipe:
    """Train an architecture on a dataset (as typed on the command line).

    `reparameterise` trains blocks that have a branched form in that form and folds them at the end; the bundle is of
    the same kind either way. `teacher` is what to distil from: the folder of a bundle, the name of shipped weights, a
    folder of several bundles, whose mean is used, an ONNX file, or `package.module:function`. `start` is where weights
    come from before training: `none` (random), `auto`, a name or a path (`spaces.starts`). What it gives learns slower
    (`fit.carried_lr`); where it has learnt from these images already, but little, `settled` names the start that it
    began from, and only what came from there learns slower.
    """

    architecture: Annotated[Architecture, AsDocument()]
    data: str
    augment: Augment
    fit: FitSettings = field(default_factory=FitSettings)
    train_split: str = "train"
    val_split: str | None = "val"
    auxiliary: bool = True
    reparameterise: bool = False
    teacher: str | None = None
    start: str | None = NONE
    settled: str | None = None
    preprocessing: Preprocessing = field(default_factory=Preprocessing)

    def job(self, context: Context, *, weights: Mapping[str, Tensor] | None = None) -> Training:
        """Open the data, build the network, and return the job; `weights` are those of an earlier stage."""
        dataset = scaled_as(locate(self.data), self.preprocessing)
        self._check_splits(dataset.splits)
        pixels = open_samples(dataset, self.train_split, context.cache_folder)
        validation = open_samples(dataset, self.val_split, context.cache_folder) if self.val_split else None
        device = pick_device(context.device)
        network, start, carried = self._network(
            dataset.task, trusted=context.trusted, again=weights is not None
        )
        if weights is not None:
            _copy_state(weights, network)
        batches = batches_of(pixels, self.augment, self.preprocessing, device=device)
        teacher = self._teacher(dataset.task, device=device, trusted=context.trusted)
        on_host = self.teacher is not None and is_foreign(self.teacher)  # may not be recorded with the step
        fit = Fit(
            network=network,
            batches=batches,
            settings=replace(self.fit, record=self.fit.record and not on_host),
            task=dataset.task,
            device=device,
            validation=validation,
            preprocessing=self.preprocessing,
            teacher=teacher,
            carried=carried,
        )
        return Training(
            fit=fit,
            network=network,
            recipe=self,
            context=context,
            data=_facts(pixels, validation),
            image=_usual_size(pixels),
            start=start,
        )

    def _network(
        self, task: Task, *, trusted: bool, again: bool
    ) -> tuple[Network, StartRecord, frozenset[str]]:
        """Build the network with its first weights; `again` if those of an earlier stage will replace them."""
        network = build(
            self.architecture,
            task.outputs,
            outputs="all" if self.auxiliary else (MAIN,),
            channels=self.preprocessing.channels,
        )
        for name in self.fit.loss.auxiliary:
            if name not in network.plan.outputs:
                raise unknown("output of this network", name, network.plan.outputs)
        initialise(network, self.fit.seed)
        record, carried = RANDOM, frozenset[str]()
        if not again:
            name, _ = choose_start(self.start or NONE, self.architecture, task)
            record, taken = start_network(
                network, name, task, preprocessing=self.preprocessing, trusted=trusted
            )
            carried = taken.parameters if taken is not None else carried
            if self.settled is not None:
                carried = frozenset()
                if self.settled != NONE:
                    carried = carried_by(self.settled, self.architecture, task, trusted=trusted).parameters
        branched = with_branches(network, seed=self.fit.seed) if self.reparameterise else network
        return branched, record, carried

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

    def _teacher(self, task: Task, *, device: torch.device, trusted: bool) -> nn.Module | None:
        """Open the teacher; it sees images normalised as it expects."""
        if self.teacher is None:
            return None
        if is_probe(self.teacher):
            raise UserError(
                f"the teacher '{self.teacher}' first has to learn the classes, as it does in `segtailor train`; give a "
                "recipe the bundle of that training (`probe_recipe`)."
            )
        if is_foreign(self.teacher):
            teacher = open_teacher(self.teacher, task.outputs, device=device, trusted=trusted)
            return Renormalised(teacher.logits, self.preprocessing, teacher.preprocessing)
        networks: list[nn.Module] = []
        for folder, model in load_members(Path(self.teacher)).items():
            if model.task.outputs != task.outputs:
                raise UserError(
                    f"the teacher {folder} knows {model.task.outputs} classes, the data has {task.outputs}; "
                    "distil from a network trained on the same classes."
                )
            same = model.preprocessing == self.preprocessing
            network = model.network
            networks.append(
                network if same else Renormalised(network, self.preprocessing, model.preprocessing)
            )
        return networks[0] if len(networks) == 1 else Ensemble(networks)


def is_probe(teacher: str) -> bool:
    """Tell whether a teacher is a pre-trained encoder, which has to learn the classes first."""
    return teacher == IMAGENET or teacher.startswith(TIMM)


def probe_recipe(recipe: TrainRecipe) -> TrainRecipe:
    """Return the training that makes a teacher of a pre-trained encoder: its maps stay as they are.

    A shallow decoder learns the classes from them: 1x1 layers, sums, and a classifier.
    """
    if recipe.teacher is None or not is_probe(recipe.teacher):
        raise UserError(f"teacher {recipe.teacher} is no pre-trained encoder; give imagenet or timm:MODEL.")
    return TrainRecipe(
        architecture=probe_architecture(recipe.teacher),
        data=recipe.data,
        augment=recipe.augment,
        fit=replace(
            FINE_TUNING, steps=PROBE_STEPS, seed=recipe.fit.seed, precision=recipe.fit.precision,
            carried_lr=0.0, freeze_norms=True,
        ),
        train_split=recipe.train_split,
        val_split=recipe.val_split,
        start=recipe.teacher,
        preprocessing=recipe.preprocessing,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class StagedTrainRecipe:
    """Complete training recipes of one architecture, carried out one after the other."""

    stages: tuple[TrainRecipe, ...]

    def __post_init__(self) -> None:
        if not self.stages:
            raise UserError("a training in stages needs at least one stage.")

    @property
    def data(self) -> str:
        """The dataset of the last stage, which the bundle is made for."""
        return self.stages[-1].data

    def job(self, context: Context) -> StagedTraining:
        """Return the job, at its first stage."""
        return StagedTraining(recipe=self, context=context)


@dataclass(kw_only=True, eq=False, repr=False)
class Training:
    """A `Fit` that writes a bundle when it is done."""

    fit: Fit
    network: Network
    recipe: TrainRecipe
    context: Context
    data: Mapping[str, Json]
    image: tuple[int, int]
    start: StartRecord = RANDOM

    def steps(self) -> Iterator[Step]:
        """Train."""
        yield from self.fit.steps()

    def save(self, folder: Path) -> None:
        """Write the training state, and which data it comes from."""
        self.fit.save(folder)
        write_json(folder / DATA_FILE, self.data, what="facts of the data")

    def load(self, folder: Path) -> None:
        """Restore the training state, if the data is still what it was."""
        before = read_json(folder / DATA_FILE, what="facts of the data", error=RunProblem)
        if before != self.data:
            raise RunProblem(
                f"the data {self.recipe.data} has changed since this run began ({_shown(before)} then, "
                f"{_shown(self.data)} now). Restore it to go on, or train anew in another folder."
            )
        self.fit.load(folder)

    def result(self) -> Mapping[str, Json]:
        """Write the bundle (leader only) and return the figures."""
        folder = Layout(self.context.folder).weights
        result = {**self.fit.result(), "start": self.start.document(), "model": str(folder)}
        if self.context.leader:
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
                "image": list(self.image),
                "seed": self.recipe.fit.seed,
                "start": self.start.document(),
            },
            numbers={key: value for key, value in figures.items() if key not in ("model", "start")},
        )


@dataclass(kw_only=True, eq=False, repr=False)
class StagedTraining:
    """One training at a time; the last one writes the bundle."""

    recipe: StagedTrainRecipe
    context: Context
    stage: int = 0
    before: int = 0  # steps of finished stages
    training: Training = field(init=False)

    def __post_init__(self) -> None:
        self.training = self.recipe.stages[0].job(self.context)

    def steps(self) -> Iterator[Step]:
        """Train stage after stage; the beginning of a stage asks for a checkpoint."""
        count = len(self.recipe.stages)
        while True:
            phase = f"stage {self.stage + 1} of {count}"
            for step in self.training.steps():
                total = None if step.total is None else self.before + step.total
                yield replace(step, phase=phase, done=self.before + step.done, total=total)
            if self.stage + 1 == count:
                return
            weights = self.training.fit.weights()
            self.before += self.training.fit.done
            self.stage += 1
            self.training = self.recipe.stages[self.stage].job(self.context, weights=weights)
            yield Step(phase=f"stage {self.stage + 1} of {count}", done=self.before, checkpoint=True)

    def save(self, folder: Path) -> None:
        """Write the stage and its training state."""
        self.training.save(folder)
        write_json(
            folder / STAGE_FILE, {"stage": self.stage, "before": self.before}, what="stage of the training"
        )

    def load(self, folder: Path) -> None:
        """Restore the stage and its training state."""
        saved = read_json(folder / STAGE_FILE, what="stage of the training", error=RunProblem)
        self.stage, self.before = int(saved["stage"]), int(saved["before"])
        self.training = self.recipe.stages[self.stage].job(self.context)
        self.training.load(folder)

    def result(self) -> Mapping[str, Json]:
        """Return the figures of the last stage."""
        return {**self.training.result(), "stages": len(self.recipe.stages)}


def _facts(pixels: Pixels | LargePixels, validation: Pixels | LargePixels | None) -> dict[str, Json]:
    return {
        "train_images": len(pixels),
        "train_pixels": pixels.fingerprint,
        "val_images": len(validation) if validation is not None else 0,
    }


def _usual_size(pixels: Pixels | LargePixels) -> tuple[int, int]:
    """Return the median height and width of the images."""
    height, width = np.median(pixels.sizes, axis=0)
    return int(height), int(width)


def _shown(facts: Mapping[str, Json]) -> str:
    pixels = str(facts.get("train_pixels"))[:8]
    return f"{facts.get('train_images')} training images, fingerprint {pixels}"


def _copy_state(given: Mapping[str, Tensor], target: Network) -> None:
    """Take every weight of the same name and shape; the classifier of another task stays fresh."""
    own = target.state_dict()
    fitting = {name: value for name, value in given.items() if name in own and own[name].shape == value.shape}
    if not fitting:
        raise UserError(
            "the weights of the stage before share nothing with this network; give all stages one architecture."
        )
    target.load_state_dict({**own, **fitting})
