"""Searched decoders on other tasks, as the auxiliary-cells paper trains them (section 4.4 and appendix B).

Depth: published RMSE 0.523 / 0.526 / 0.525 m on NYUDv2 for arch0 / arch1 / arch2, 300 epochs on 25 000 pictures. Pose:
published PCKh@0.5 86.5 / 87.0 / 87.1 on MPII, AP 0.658 / 0.659 / 0.659 on COCO, 140 epochs. Where the text is silent:
weight decay as in the search, no auxiliary outputs, depths divided by the scale of their picture. At the small
scale the same settings run for a few epochs on whatever pictures are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from segtailor.core.errors import Unsupported, UserError
from segtailor.core.space import Architecture, architecture_document
from segtailor.data.augment import Augment
from segtailor.data.locate import locate
from segtailor.recipes.choices import Scale
from segtailor.recipes.staged_training import StagedTrainRecipe
from segtailor.recipes.training import TrainRecipe
from segtailor.spaces.decoder_cell import DecoderCellArchitecture, final_form
from segtailor.spaces.decoder_cell.encoders import encoder
from segtailor.training.settings import EncoderSettings, FitSettings, Schedule

DEPTH_CROP = (500, 500)
DEPTH_FIT = FitSettings(
    epochs=300, batch=32, optimiser="sgd", lr=7e-3, momentum=0.9, weight_decay=1e-5,
    encoder=EncoderSettings(lr=1e-3), schedule=Schedule(kind="poly", power=0.9, reach=300 / 400),
)  # fmt: skip
POSE_FIT = FitSettings(
    epochs=140, batch=128, optimiser="adam", lr=1e-3, weight_decay=1e-5,
    schedule=Schedule(kind="step", gamma=0.1, milestones=(90 / 140, 120 / 140)),
)  # fmt: skip
TURNS = {"mpii": (0.25, 30.0), "coco": (0.3, 40.0)}  # by skeleton: scale and degrees either way
SMALL = {"epochs": 20, "batch": 8}


def depth_training(
    arch: Architecture,
    data: Sequence[str],
    *,
    scale: Scale = "small",
    crop: tuple[int, int],
    val_split: str | None = "val",
) -> StagedTrainRecipe:
    """Return the training of a decoder for depth: two rates, a polynomial that stops at three quarters."""
    paper = scale == "paper"
    augment = Augment(crop=DEPTH_CROP if paper else crop, scale=(0.5, 2.0))
    return _stage(arch, data, scale=scale, augment=augment, fit=DEPTH_FIT, val_split=val_split)


def pose_training(
    arch: Architecture,
    data: Sequence[str],
    *,
    scale: Scale = "small",
    crop: tuple[int, int],
    val_split: str | None = "val",
) -> StagedTrainRecipe:
    """Return the training of a decoder for pose: people scaled, turned and mirrored."""
    task = locate(data[-1]).task
    if task.skeleton not in TURNS:
        raise Unsupported(
            f"the training 'auxcells-pose' is for people, and {data[-1]} is for {task.kind}; give e.g. mpii:PATH."
        )
    share, degrees = TURNS[task.skeleton]
    augment = Augment(crop=task.crop or crop, scale=(1 - share, 1 + share), rotate=degrees)
    return _stage(arch, data, scale=scale, augment=augment, fit=POSE_FIT, val_split=val_split)


def _stage(
    arch: Architecture,
    data: Sequence[str],
    *,
    scale: Scale,
    augment: Augment,
    fit: FitSettings,
    val_split: str | None,
) -> StagedTrainRecipe:
    if not isinstance(arch, DecoderCellArchitecture):
        raise Unsupported(
            "this training is for decoders on a pre-trained encoder (family 'decoder_cell'); train other networks "
            "without --recipe."
        )
    if len(data) != 1:
        raise UserError(f"this training has one dataset, not {len(data)}; name one.")
    paper = scale == "paper"
    changes: dict[str, Any] = {} if paper else SMALL
    return StagedTrainRecipe(
        stages=(
            TrainRecipe(
                architecture=architecture_document(final_form(arch) if paper else arch),
                data=data[0],
                augment=augment,
                fit=replace(fit, **changes),
                val_split=val_split,
                auxiliary=False,
                preprocessing=encoder(arch.encoder).preprocessing,
                encoder_weights="auto",
            ),
        )
    )
