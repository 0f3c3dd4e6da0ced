"""The final training of the auxiliary-cells paper (section 4.4): four stages, two optimisers, auxiliary cells.

Stage 1, stage 2, and the two halves of stage 3; rates are halved from each to the next, and in the last one the
statistics of norms are frozen. The paper's datasets are COCO+BSD+VOC, BSD+VOC and VOC: give one for each, or one for
all. Where the text is silent: weight decay as in the search, the encoder's rate halved alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from segtailor.core.errors import Unsupported, UserError
from segtailor.core.space import Architecture, architecture_document
from segtailor.data.augment import Augment
from segtailor.recipes.choices import Scale
from segtailor.recipes.staged_training import StagedTrainRecipe
from segtailor.recipes.training import TrainRecipe
from segtailor.spaces.decoder_cell import DecoderCellArchitecture, final_form
from segtailor.spaces.decoder_cell.encoders import encoder
from segtailor.tasks.loss_settings import LossSettings
from segtailor.training.settings import EncoderSettings, FitSettings, Schedule

PAPER_CROP = (450, 450)
DECODER_LR, ENCODER_LR = 3e-3, 1e-3


class Stage(NamedTuple):
    """Which dataset of the three, how long, and the coefficient of auxiliary outputs."""

    data: int
    paper_epochs: int
    small_epochs: int
    auxiliary: float


STAGES = (Stage(0, 30, 3, 0.3), Stage(1, 50, 5, 0.25), Stage(2, 50, 5, 0.2), Stage(2, 50, 5, 0.15))


def auxcells_training(
    arch: Architecture,
    data: Sequence[str],
    *,
    scale: Scale = "small",
    crop: tuple[int, int],
    val_split: str | None = "val",
    encoder_weights: str = "auto",
) -> StagedTrainRecipe:
    """Return the training of a decoder found by `auxcells`; `data` names one dataset, or three."""
    if not isinstance(arch, DecoderCellArchitecture):
        raise Unsupported(
            "the training 'auxcells' is for decoders on a pre-trained encoder (family 'decoder_cell'); "
            "train other networks without --recipe."
        )
    if len(data) not in (1, 3):
        raise UserError(
            f"the training 'auxcells' has three datasets; give one for all or three, not {len(data)}."
        )
    paper = scale == "paper"
    document = architecture_document(final_form(arch) if paper else arch)
    return StagedTrainRecipe(
        stages=tuple(
            TrainRecipe(
                architecture=document,
                data=data[stage.data % len(data)],
                augment=Augment(crop=PAPER_CROP if paper else crop, scale=(0.5, 2.0)),
                fit=_fit(stage, paper=paper, halvings=number, last=number == len(STAGES) - 1),
                val_split=val_split,
                preprocessing=encoder(arch.encoder).preprocessing,
                encoder_weights=encoder_weights if number == 0 else None,
            )
            for number, stage in enumerate(STAGES)
        )
    )


def _fit(stage: Stage, *, paper: bool, halvings: int, last: bool) -> FitSettings:
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
