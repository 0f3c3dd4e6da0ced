"""The evaluator `staged` for recipes: what is checked before a search starts, and the entry of its workers."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from segtailor import spaces as spaces  # registers the families in a fresh worker
from segtailor.core.codec import fingerprint, from_json, to_json
from segtailor.core.errors import Unsupported
from segtailor.core.plan import MAIN
from segtailor.core.space import SPACES
from segtailor.core.strategy import Evaluator, Trial, TrialResult
from segtailor.data.arrays import check_space
from segtailor.data.cache import Pixels
from segtailor.nets.build import build
from segtailor.nets.network import initialise
from segtailor.nets.teacher import Teacher, open_teacher, weights_fingerprint
from segtailor.recipes.evaluators import EVALUATORS, Judging, halved_pixels
from segtailor.spaces.decoder_cell import DecoderCell
from segtailor.spaces.decoder_cell.encoder_weights import fill_encoder, taps
from segtailor.spaces.decoder_cell.encoders import encoder as known_encoder
from segtailor.strategies.evaluators.features import CropSettings, FixedEncoder, calibrate_norms, crops
from segtailor.strategies.evaluators.first_stage import Maps
from segtailor.strategies.evaluators.staged import StagedEvaluator
from segtailor.strategies.halves import HalvedPixels

FEATURES = "features"  # folder of the cache
CALIBRATED_ON = 32  # images that show the norms of a random encoder their statistics
CPU = torch.device("cpu")


@EVALUATORS.register("staged")
def staged(judging: Judging) -> Evaluator:
    """Train the decoder on maps of a fixed encoder, stop the weak, and train the rest end to end."""
    recipe = judging.recipe
    space = recipe.space.build(SPACES)
    if not isinstance(space, DecoderCell):
        raise Unsupported(
            f"the evaluator 'staged' trains decoders on the maps of a fixed encoder; networks of space "
            f"'{recipe.space.kind}' have none. Use the space 'decoder_cell', or the evaluator 'train'."
        )
    settings = recipe.staged or StagedEvaluator(
        features=recipe.training.augment, augment=recipe.training.augment, judge=recipe.training.augment.crop
    )
    settings = replace(settings, seed=recipe.seed)
    data = halved_pixels(recipe.data, str(judging.place.cache), recipe.judging)
    tools = _tools(settings, space.encoder, data, trusted=judging.place.trusted)
    check_space(settings.stores(judging.place.cache / FEATURES, tools.encoder, data, tools.teacher).all())
    found = judging.evaluator(judge_in_stages, staged=to_json(settings), encoder=space.encoder)
    taught = tools.teacher.fingerprint if tools.teacher else None
    return replace(
        found,
        data=fingerprint([found.data, tools.encoder.fingerprint, taught]),
        memory=settings.early_stop,
        note=f"encoder: {tools.encoder.about}.",
    )


def judge_in_stages(trial: Trial, device: str) -> TrialResult:
    """Judge a trial in a worker: rebuild everything from the trial's plain settings."""
    ready = _ready(json.dumps(dict(trial.evaluator), sort_keys=True), device, trial.trusted)
    return ready.evaluator.run(
        trial, data=ready.data, encoder=ready.encoder, maps=ready.maps, device=torch.device(device)
    )


def open_encoder(
    name: str, settings: StagedEvaluator, pixels: Pixels, *, trusted: bool = True
) -> FixedEncoder:
    """Build an encoder with its weights; the norms of a random one are shown some images first."""
    space = DecoderCell(encoder=name, channels=1, repeats=1, auxiliary="none")
    arch = space.architecture({decision.name: 0 for decision in space.decisions})
    network = build(arch, 1, outputs=(MAIN,))
    initialise(network, settings.seed)
    filled = fill_encoder(network, settings.encoder_weights, trusted=trusted)
    found = FixedEncoder(
        taps=taps,
        network=network.eval(),
        fingerprint=weights_fingerprint(network),
        about=filled.about,
        preprocessing=known_encoder(name).preprocessing,
    )
    if filled.trained:
        return found
    # The print is that of the weights as drawn and of what the norms see: arithmetic may differ in the last bit.
    count = min(CALIBRATED_ON, settings.images)
    wanted = CropSettings(settings.features, count, settings.judge, settings.seed)
    calibrate_norms(
        found.part, [images for images, _ in crops(pixels, wanted, found.preprocessing, device=CPU)]
    )
    seen = [found.fingerprint, pixels.fingerprint, to_json(settings.features), count]
    return replace(found, fingerprint=fingerprint(seen))


class _Tools(NamedTuple):
    encoder: FixedEncoder
    teacher: Teacher | None


class _Ready(NamedTuple):
    evaluator: StagedEvaluator
    data: HalvedPixels
    encoder: FixedEncoder
    maps: Maps


def _tools(
    settings: StagedEvaluator,
    encoder: str,
    data: HalvedPixels,
    device: torch.device = CPU,
    *,
    trusted: bool,
) -> _Tools:
    """Open encoder and teacher; whatever does not fit raises."""
    teacher = None
    if settings.teacher is not None:
        teacher = open_teacher(settings.teacher, data.task.outputs, device=device, trusted=trusted)
    return _Tools(open_encoder(encoder, settings, data.fit, trusted=trusted), teacher)


@cache
def _ready(text: str, place: str, trusted: bool) -> _Ready:
    """Open everything once per worker and way of judging."""
    plain, device = json.loads(text), torch.device(place)
    settings = from_json(StagedEvaluator, plain["staged"], what="settings of the evaluator")
    data = halved_pixels(plain["data"], plain["cache"], plain["judging"])
    tools = _tools(settings, plain["encoder"], data, device, trusted=trusted)
    files = settings.stores(Path(plain["cache"]) / FEATURES, tools.encoder, data, tools.teacher)
    maps = settings.open(files, tools.encoder, data, device=device, teacher=tools.teacher)
    return _Ready(settings, data, tools.encoder, maps)
