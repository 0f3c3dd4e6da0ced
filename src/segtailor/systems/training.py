"""What a published training is, and the parts that those of one stage share.

A training function turns an architecture and datasets into a recipe of one or more stages. At the paper's scale every
value is published or, where a paper is silent, marked as our choice in the module of the system; at the small scale the
same losses and schedules run for a few epochs on whatever images are given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from segtailor.core.errors import Unsupported, UserError
from segtailor.core.space import Architecture, family_of
from segtailor.data.augment import Augment
from segtailor.data.locate import locate
from segtailor.recipes.train import StagedTrainRecipe, TrainRecipe
from segtailor.systems.system import Scale
from segtailor.training.settings import FitSettings

Begin: TypeAlias = Literal["encoder", "imagenet", "scratch"]
SMALL_EPOCHS = 20
SMALL_FIT: dict[str, Any] = {"epochs": SMALL_EPOCHS, "steps": None, "batch": 8, "precision": "fp32"}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a training is asked for; `crop` is that of the small scale, and `teacher` a bundle to distil from."""

    data: tuple[str, ...]
    crop: tuple[int, int]
    scale: Scale = "small"
    val_split: str | None = "val"
    start: str = "auto"
    teacher: str | None = None

    @property
    def paper(self) -> bool:
        """Whether the paper's settings are asked for."""
        return self.scale == "paper"

    def only(self, name: str) -> str:
        """Return the dataset of a training that has one."""
        if len(self.data) != 1:
            raise UserError(f"the training '{name}' has one dataset, not {len(self.data)}; name one.")
        return self.data[0]


@dataclass(frozen=True, kw_only=True)
class PublishedTraining:
    """A training by name, and what its paper begins from.

    `encoder`: a pre-trained encoder, without which the paper's scale is refused. `imagenet`: pre-training of the whole
    network on ImageNet, whose absence is told. `scratch`: random weights. `teacher` says whether it may distil.
    """

    recipe: Callable[[Architecture, Asked], StagedTrainRecipe]
    begins: Begin
    teacher: bool = False


@dataclass(frozen=True, kw_only=True)
class TrainingSetting:
    """The paper's settings for one dataset; `train` and `val` name splits where they are not the usual ones."""

    crop: tuple[int, int]
    fit: FitSettings
    train: str = "train"
    val: str | None = None


def check_family(arch: Architecture, name: str, family: str) -> None:
    """Refuse a network of another family."""
    if family_of(arch) != family:
        raise Unsupported(
            f"the training '{name}' is for networks of the family '{family}', and this one is of "
            f"'{family_of(arch)}'; train it without --recipe, or with the training of its own system."
        )


def one_stage(
    arch: Architecture,
    asked: Asked,
    name: str,
    setting: TrainingSetting,
    augment: Augment,
    *,
    reparameterise: bool = False,
) -> StagedTrainRecipe:
    """Return the training called `name` in one stage; the paper's splits are taken where the dataset has them."""
    data = asked.only(name)
    train, val = _splits(data, setting, asked.val_split) if asked.paper else ("train", asked.val_split)
    stage = TrainRecipe(
        architecture=arch,
        data=data,
        augment=replace(augment, crop=setting.crop if asked.paper else asked.crop),
        fit=setting.fit if asked.paper else replace(setting.fit, **SMALL_FIT),
        train_split=train,
        val_split=val,
        reparameterise=reparameterise,
        teacher=asked.teacher,
        start=asked.start,
    )
    return StagedTrainRecipe(stages=(stage,))


def _splits(data: str, setting: TrainingSetting, val_split: str | None) -> tuple[str, str | None]:
    """Return the splits of a paper's setting, or the usual ones where the dataset has no such split."""
    if setting.val is None or setting.val not in locate(data).splits:
        return "train", val_split
    return setting.train, setting.val
