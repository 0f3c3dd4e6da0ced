"""Auxiliary cells (Nekrasov, Chen, Shen, Reid, CVPR 2019): the search of section 4.1 and the trainings of section 4.4.

At the small scale the same stages run on whatever images are given, in minutes on a CPU: our choice of settings. The
studies of the paper (Figures 2 to 5) are in `benchmarks/auxcells_studies.py`.

Final training: stage 1, stage 2, and the two halves of stage 3; rates are halved from each to the next, and in the
last one the statistics of norms are frozen. The paper's datasets are COCO+BSD+VOC, BSD+VOC and VOC: give one for each,
or one for all. Where the text is silent: weight decay as in the search, the encoder's rate halved alike.

On Cityscapes the paper trains with a ResNet-50 in one stage of its own (appendix B): published 77.1 / 77.3 / 76.0 %
mIoU. Where the text is silent: weight decay and auxiliary coefficient as in the search.

Other tasks (appendix B). Depth: published RMSE 0.523 / 0.526 / 0.525 m on NYUDv2 for arch0 / arch1 / arch2, 300 epochs
on 25 000 pictures. Pose: published PCKh@0.5 86.5 / 87.0 / 87.1 on MPII, AP 0.658 / 0.659 / 0.659 on COCO, 140 epochs.
Where the text is silent: weight decay as in the search, no auxiliary outputs, depths divided by the scale of their
picture. At the small scale the same settings run for a few epochs on whatever pictures are given.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from segtailor.core.errors import Unsupported, UserError
from segtailor.core.space import Architecture
from segtailor.costs.analytic import Params
from segtailor.data.augment import Augment
from segtailor.data.locate import locate
from segtailor.recipes.search import SearchRecipe
from segtailor.recipes.train import StagedTrainRecipe, TrainRecipe
from segtailor.spaces.decoder_cell import DecoderCell, DecoderCellArchitecture, final_form
from segtailor.spaces.decoder_cell.encoders import encoder
from segtailor.strategies import Controller
from segtailor.strategies.evaluators.staged import STAGE1, STAGE2, EarlyStop, StagedEvaluator
from segtailor.systems.system import SMALL_DATA, SMALL_IMAGE, System, layout_of
from segtailor.systems.training import Asked, PublishedTraining
from segtailor.tasks.loss_settings import LossSettings
from segtailor.training.settings import EncoderSettings, FitSettings, Schedule

SYNTHETIC_ENCODER = "mobilenet_v2"  # of the small scale on synthetic scenes: it needs no package with weights

PAPER = SearchRecipe(
    name="auxcells",
    data="voc:PATH",
    image=(512, 512),
    space=DecoderCell(encoder="mobilenet_v2", channels=48, repeats=1),
    strategy=Controller(trials=20_000),  # the authors' limit; their search ended after four days
    evaluator=StagedEvaluator(
        features=Augment(crop=(256, 256), scale=(0.7, 1.4), shorter=300),
        augment=Augment(crop=(350, 350), scale=(0.7, 1.4), shorter=400),
        judge=(400, 400),
        images=4000,
    ),
    judging=0.1,
    cost=Params(),
    seed=9314,
)
SMALL = replace(
    PAPER,
    data=SMALL_DATA,
    image=SMALL_IMAGE,
    space=DecoderCell(encoder="efficientnet_lite0", channels=24, repeats=1),
    strategy=Controller(trials=24, batch=4, lr=3e-3, minibatch=100),  # learns from a few dozen trials
    evaluator=StagedEvaluator(
        features=Augment(crop=SMALL_IMAGE, scale=(0.7, 1.4)),
        augment=Augment(crop=SMALL_IMAGE, scale=(0.7, 1.4)),
        judge=SMALL_IMAGE,
        images=128,
        stage1=replace(STAGE1, epochs=3, batch=16),
        stage2=replace(STAGE2, steps=6, batch=8, ema=0.9),
        early_stop=EarlyStop(milestones=(8, 16, 24, 32), every=4),
    ),
    judging=0.5,
    seed=0,
)


def _with_encoder(recipe: SearchRecipe) -> SearchRecipe:
    """Choose the encoder of a small search by its data."""
    if not recipe.data.startswith("synthetic") or not isinstance(recipe.space, DecoderCell):
        return recipe
    return replace(recipe, space=replace(recipe.space, encoder=SYNTHETIC_ENCODER))


SYSTEM = System(
    summary="Design the decoder of a pre-trained encoder with a learning controller (auxiliary cells).",
    paper=PAPER,
    small=SMALL,
    adapt=_with_encoder,
)


PAPER_CROP = (450, 450)
DECODER_LR, ENCODER_LR = 3e-3, 1e-3


class FinalStage(NamedTuple):
    """Which dataset of the three, how long, and the coefficient of auxiliary outputs."""

    data: int
    paper_epochs: int
    small_epochs: int
    auxiliary: float


FINAL_STAGES = (
    FinalStage(0, 30, 3, 0.3),
    FinalStage(1, 50, 5, 0.25),
    FinalStage(2, 50, 5, 0.2),
    FinalStage(2, 50, 5, 0.15),
)
CITYSCAPES_CROP = (800, 800)
CITYSCAPES_FIT = FitSettings(
    epochs=500, batch=20, optimiser="sgd", lr=5e-2, momentum=0.9, weight_decay=1e-5,
    encoder=EncoderSettings(lr=1e-2), schedule=Schedule(kind="poly", power=0.9),
    loss=LossSettings(auxiliary_default=0.15),
)  # fmt: skip
DEPTH_CROP = (500, 500)
DEPTH_FIT = FitSettings(
    epochs=300, batch=32, optimiser="sgd", lr=7e-3, momentum=0.9, weight_decay=1e-5,
    encoder=EncoderSettings(lr=1e-3), schedule=Schedule(kind="poly", power=0.9, reach=300 / 400),
)  # fmt: skip
POSE_FIT = FitSettings(
    epochs=140, batch=128, optimiser="adam", lr=1e-3, weight_decay=1e-5,
    schedule=Schedule(kind="step", gamma=0.1, milestones=(90 / 140, 120 / 140)),
)  # fmt: skip
POSE_SCALE_AND_DEGREES = {"mpii": (0.25, 30.0), "coco": (0.3, 40.0)}  # by skeleton, either way
SMALL_TRANSFER = {"epochs": 20, "batch": 8}


def training(arch: Architecture, asked: Asked) -> StagedTrainRecipe:
    """Return the final training of a decoder found by `auxcells`; the data is one dataset, or three."""
    if not isinstance(arch, DecoderCellArchitecture):
        raise Unsupported(
            "the training 'auxcells' is for decoders on a pre-trained encoder (family 'decoder_cell'); "
            "train other networks without --recipe."
        )
    if len(asked.data) not in (1, 3):
        raise UserError(
            f"the training 'auxcells' has three datasets; give one for all or three, not {len(asked.data)}."
        )
    paper = asked.paper
    if paper and len(asked.data) == 1 and layout_of(asked.data[0]) == "cityscapes":
        augment = Augment(crop=CITYSCAPES_CROP, scale=(0.5, 2.0))
        return _transfer(arch, asked, augment=augment, fit=CITYSCAPES_FIT, auxiliary=True)
    return StagedTrainRecipe(
        stages=tuple(
            TrainRecipe(
                architecture=final_form(arch) if paper else arch,
                data=asked.data[stage.data % len(asked.data)],
                augment=Augment(crop=PAPER_CROP if paper else asked.crop, scale=(0.5, 2.0)),
                fit=_stage_fit(stage, paper=paper, halvings=number, last=number == len(FINAL_STAGES) - 1),
                val_split=asked.val_split,
                preprocessing=encoder(arch.encoder).preprocessing,
                start=asked.start if number == 0 else "none",
            )
            for number, stage in enumerate(FINAL_STAGES)
        )
    )


def _stage_fit(stage: FinalStage, *, paper: bool, halvings: int, last: bool) -> FitSettings:
    factor = 0.5**halvings
    return FitSettings(
        epochs=stage.paper_epochs if paper else stage.small_epochs,
        batch=64 if paper else 8,
        optimiser="adam",
        lr=DECODER_LR * factor,
        betas=(0.9, 0.99),
        eps=1e-3,
        weight_decay=1e-5,
        encoder=EncoderSettings(lr=ENCODER_LR * factor),
        schedule=Schedule(kind="constant"),
        loss=LossSettings(auxiliary_default=stage.auxiliary),
        freeze_norms=last,
    )


def depth_training(arch: Architecture, asked: Asked) -> StagedTrainRecipe:
    """Return the training of a decoder for depth: two rates, a polynomial that stops at three quarters."""
    augment = Augment(crop=DEPTH_CROP if asked.paper else asked.crop, scale=(0.5, 2.0))
    return _transfer(arch, asked, augment=augment, fit=DEPTH_FIT)


def pose_training(arch: Architecture, asked: Asked) -> StagedTrainRecipe:
    """Return the training of a decoder for pose: people scaled, turned and mirrored."""
    task = locate(asked.data[-1]).task
    if task.skeleton not in POSE_SCALE_AND_DEGREES:
        raise Unsupported(
            f"the training 'auxcells-pose' is for people, and {asked.data[-1]} is for {task.kind}; give e.g. mpii:PATH."
        )
    share, degrees = POSE_SCALE_AND_DEGREES[task.skeleton]
    augment = Augment(crop=task.crop or asked.crop, scale=(1 - share, 1 + share), rotate=degrees)
    return _transfer(arch, asked, augment=augment, fit=POSE_FIT)


def _transfer(
    arch: Architecture, asked: Asked, *, augment: Augment, fit: FitSettings, auxiliary: bool = False
) -> StagedTrainRecipe:
    """Return a training in one stage."""
    if not isinstance(arch, DecoderCellArchitecture):
        raise Unsupported(
            "this training is for decoders on a pre-trained encoder (family 'decoder_cell'); train other networks "
            "without --recipe."
        )
    if len(asked.data) != 1:
        raise UserError(f"this training has one dataset, not {len(asked.data)}; name one.")
    paper = asked.paper
    changes: dict[str, Any] = {} if paper else SMALL_TRANSFER
    return StagedTrainRecipe(
        stages=(
            TrainRecipe(
                architecture=final_form(arch) if paper else arch,
                data=asked.data[0],
                augment=augment,
                fit=replace(fit, **changes),
                val_split=asked.val_split,
                auxiliary=auxiliary,
                preprocessing=encoder(arch.encoder).preprocessing,
                start=asked.start,
            ),
        )
    )


TRAINING = PublishedTraining(recipe=training, begins="encoder")
DEPTH_TRAINING = PublishedTraining(recipe=depth_training, begins="encoder")
POSE_TRAINING = PublishedTraining(recipe=pose_training, begins="encoder")
