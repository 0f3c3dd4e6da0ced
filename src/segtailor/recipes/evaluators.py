"""How the evaluator of a recipe becomes work for trials: what is checked before a search starts, and what workers do.

`evaluation` turns settings into plain data and refuses what cannot work. The functions `judge_...(trial, device)` run
in workers, which know nothing but that data.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from segtailor.core.codec import Json, fingerprint, from_json, to_json
from segtailor.core.errors import Unsupported
from segtailor.core.plan import MAIN
from segtailor.core.registry import SPACES
from segtailor.core.strategy import Evaluator, Halves, Trial, TrialResult, Work
from segtailor.core.task import Preprocessing, Task
from segtailor.data.arrays import check_space
from segtailor.data.cache import Pixels, open_pixels
from segtailor.data.dataset import scaled_as
from segtailor.data.locate import locate
from segtailor.nets.network import Network, build, initialise
from segtailor.nets.teacher import Teacher, open_teacher, weights_fingerprint
from segtailor.runs import Context
from segtailor.runs.run import environment
from segtailor.spaces.decoder_cell import DecoderCell
from segtailor.spaces.decoder_cell.encoder_weights import fill_encoder, taps
from segtailor.spaces.decoder_cell.encoders import encoder as known_encoder
from segtailor.spaces.starts import NONE, open_source, start_network
from segtailor.strategies.evaluators.features import CropSettings, FixedEncoder, calibrate_norms, crops
from segtailor.strategies.evaluators.first_stage import Maps
from segtailor.strategies.evaluators.shared import SharedEvaluator, SharedJudge
from segtailor.strategies.evaluators.staged import StagedEvaluator
from segtailor.strategies.evaluators.train import TrainEvaluator
from segtailor.strategies.gradient_settings import Gradient
from segtailor.strategies.halves import FIT, JUDGE, HalvedPixels, HalvedTrain
from segtailor.strategies.saved_supernet import SupernetFacts, check_fits, read_facts

if TYPE_CHECKING:
    from segtailor.recipes.search import SearchRecipe

FEATURES = "features"  # folder of the cache
CALIBRATION_IMAGES = 32  # from which the norms of a random encoder learn their statistics
CPU = torch.device("cpu")


def evaluation(recipe: SearchRecipe, context: Context, *, task: Task, halves: Halves) -> Evaluator:
    """Return who judges the trials of a search; settings that cannot work raise."""
    evaluator = recipe.evaluator
    if isinstance(evaluator, SharedEvaluator):
        return _sharing(recipe, evaluator, context, task=task, halves=halves)
    if isinstance(evaluator, StagedEvaluator):
        return _staging(recipe, evaluator, context, halves=halves)
    training = replace(evaluator, fit=replace(evaluator.fit, seed=recipe.seed))
    settings: dict[str, Json] = {"training": to_json(training)}
    if recipe.start != NONE and not isinstance(recipe.strategy, Gradient):
        source = open_source(recipe.start, trusted=context.trusted)  # whatever is wrong with it is said now
        settings |= {"start": recipe.start, "start_weights": weights_fingerprint(source.donor.network)}
    return _evaluator(recipe, context, halves, judge_by_training, settings)


def _evaluator(
    recipe: SearchRecipe, context: Context, halves: Halves, work: Work, settings: Mapping[str, Json]
) -> Evaluator:
    """Return an evaluator whose workers find the data; its results depend on data and installed packages."""
    data: dict[str, Json] = {
        "data": recipe.data,
        "cache": str(context.cache_folder),
        "judging": recipe.judging,
    }
    return Evaluator(
        work=work,
        settings={**settings, **data},
        data=fingerprint([halves.fingerprint, environment()["packages"]]),
    )


# A short training of every architecture


def judge_by_training(trial: Trial, device: str) -> TrialResult:
    """Judge a trial in a worker: rebuild data and evaluator from the trial's plain settings."""
    training = from_json(TrainEvaluator, trial.evaluator["training"], what="training of the evaluator")
    data, name = worker_pixels(trial), str(trial.evaluator.get("start", NONE))

    def start(network: Network) -> Collection[str]:
        _, carried = start_network(
            network, name, data.task, preprocessing=training.preprocessing, trusted=trial.trusted
        )
        return carried.parameters if carried is not None else ()

    return training.judge(trial, data=data, device=torch.device(device), start=start)


def worker_pixels(trial: Trial) -> HalvedPixels:
    """Return the halves that a trial's evaluator names, opened once per worker."""
    return halved_pixels(*_where(trial), _scaling(trial))


def _where(trial: Trial) -> tuple[str, str, float]:
    settings = trial.evaluator
    return str(settings["data"]), str(settings["cache"]), float(settings["judging"])


def _scaling(trial: Trial) -> Preprocessing | None:
    """Return how a trial's evaluator scales pictures of other bands; None for colour pictures."""
    training = trial.evaluator.get("training")
    if training is None:
        return None
    found = from_json(TrainEvaluator, training, what="training of the evaluator").preprocessing
    return None if found.ranges is None else found


@cache
def halved_pixels(
    data: str, folder: str, judging: float, scaling: Preprocessing | None = None
) -> HalvedPixels:
    """Open the two parts of a dataset's training split; raw values are scaled as the search's networks expect."""
    dataset = locate(data) if scaling is None else scaled_as(locate(data), scaling)
    halved = HalvedTrain(dataset=dataset, share=judging)
    fit, judge = (open_pixels(halved, half, Path(folder)) for half in (FIT, JUDGE))
    return HalvedPixels(halved.task, fit, judge)


# A slice of a trained supernet


def supernet_facts(evaluator: SharedEvaluator) -> SupernetFacts:
    """Read what the supernet of an evaluator was trained for."""
    return read_facts(Path(evaluator.supernet))


def _sharing(
    recipe: SearchRecipe, evaluator: SharedEvaluator, context: Context, *, task: Task, halves: Halves
) -> Evaluator:
    if isinstance(recipe.strategy, Gradient):
        raise Unsupported(
            "the evaluator 'shared' judges trials, and the strategy 'gradient' makes none: it judges with its own "
            "weights. Choose --strategy random, evolution, controller or expansion."
        )
    facts = supernet_facts(evaluator)
    check_fits(facts, space=recipe.space, task=task, image=recipe.image, data=halves)
    settings = {"shared": to_json(evaluator), "supernet": facts.fingerprint}
    return _evaluator(recipe, context, halves, judge_by_slicing, settings)


def judge_by_slicing(trial: Trial, device: str) -> TrialResult:
    """Judge a trial in a worker, which loads the supernet for its first trial."""
    evaluator = from_json(SharedEvaluator, trial.evaluator["shared"], what="shared evaluator")
    weights = _sliced(evaluator, str(trial.evaluator["supernet"]), device, *_where(trial))
    return evaluator.judge(trial, weights=weights)


@lru_cache(maxsize=1)  # supernets are large
def _sliced(
    evaluator: SharedEvaluator, supernet: str, device: str, data: str, folder: str, judging: float
) -> SharedJudge:
    pixels = halved_pixels(data, folder, judging)
    return evaluator.open(data=pixels, device=torch.device(device), expected=supernet)


# Two stages: the decoder on the maps of a fixed encoder, then everything


def _staging(
    recipe: SearchRecipe, evaluator: StagedEvaluator, context: Context, *, halves: Halves
) -> Evaluator:
    space = recipe.space
    if not isinstance(space, DecoderCell):
        raise Unsupported(
            f"the evaluator 'staged' trains decoders on the maps of a fixed encoder; networks of space "
            f"'{SPACES.name_of(type(space))}' have none. Use the space 'decoder_cell', or the evaluator 'train'."
        )
    settings = replace(evaluator, seed=recipe.seed)
    data = halved_pixels(recipe.data, str(context.cache_folder), recipe.judging)
    fixed = _fixed_parts(settings, space.encoder, data, trusted=context.trusted)
    features = context.cache_folder / FEATURES
    check_space(settings.stores(features, fixed.encoder, data, fixed.teacher).all())
    plain = {"staged": to_json(settings), "encoder": space.encoder}
    base = _evaluator(recipe, context, halves, judge_in_stages, plain)
    teacher = fixed.teacher.fingerprint if fixed.teacher else None
    return replace(
        base,
        data=fingerprint([base.data, fixed.encoder.fingerprint, teacher]),
        memory=settings.early_stop,
        note=f"encoder: {fixed.encoder.about}.",
    )


def judge_in_stages(trial: Trial, device: str) -> TrialResult:
    """Judge a trial in a worker: rebuild everything from the trial's plain settings."""
    ready = _opened(json.dumps(dict(trial.evaluator), sort_keys=True), device, trial.trusted)
    return ready.evaluator.run(
        trial, data=ready.data, encoder=ready.encoder, maps=ready.maps, device=torch.device(device)
    )


def open_encoder(
    name: str, settings: StagedEvaluator, pixels: Pixels, *, trusted: bool = True
) -> FixedEncoder:
    """Build an encoder with its weights; the norms of a random one first see some images."""
    space = DecoderCell(encoder=name, channels=1, repeats=1, auxiliary="none")
    arch = space.architecture({decision.name: 0 for decision in space.decisions})
    network = build(arch, 1, outputs=(MAIN,))
    initialise(network, settings.seed)
    filled = fill_encoder(network, settings.encoder_weights, trusted=trusted)
    encoder = FixedEncoder(
        taps=taps,
        network=network.eval(),
        fingerprint=weights_fingerprint(network),
        about=filled.about,
        preprocessing=known_encoder(name).preprocessing,
    )
    if filled.trained:
        return encoder
    # The fingerprint is that of the weights as drawn and of what the norms see: arithmetic may differ in the last bit.
    count = min(CALIBRATION_IMAGES, settings.images)
    wanted = CropSettings(settings.features, count, settings.judge, settings.seed)
    calibrate_norms(
        encoder.part, [images for images, _ in crops(pixels, wanted, encoder.preprocessing, device=CPU)]
    )
    inputs = [encoder.fingerprint, pixels.fingerprint, to_json(settings.features), count]
    return replace(encoder, fingerprint=fingerprint(inputs))


class _FixedParts(NamedTuple):
    encoder: FixedEncoder
    teacher: Teacher | None


@dataclass(frozen=True, kw_only=True, eq=False)
class _Opened:
    evaluator: StagedEvaluator
    data: HalvedPixels
    encoder: FixedEncoder
    maps: Maps


def _fixed_parts(
    settings: StagedEvaluator,
    encoder: str,
    data: HalvedPixels,
    device: torch.device = CPU,
    *,
    trusted: bool,
) -> _FixedParts:
    """Open encoder and teacher; whatever does not fit raises."""
    teacher = None
    if settings.teacher is not None:
        teacher = open_teacher(settings.teacher, data.task.outputs, device=device, trusted=trusted)
    return _FixedParts(open_encoder(encoder, settings, data.fit, trusted=trusted), teacher)


@cache
def _opened(text: str, device_name: str, trusted: bool) -> _Opened:
    """Open everything once per worker and evaluator."""
    plain: dict[str, Any] = json.loads(text)
    device = torch.device(device_name)
    settings = from_json(StagedEvaluator, plain["staged"], what="settings of the evaluator")
    data = halved_pixels(plain["data"], plain["cache"], plain["judging"])
    fixed = _fixed_parts(settings, plain["encoder"], data, device, trusted=trusted)
    files = settings.stores(Path(plain["cache"]) / FEATURES, fixed.encoder, data, fixed.teacher)
    maps = settings.open(files, fixed.encoder, data, device=device, teacher=fixed.teacher)
    return _Opened(evaluator=settings, data=data, encoder=fixed.encoder, maps=maps)
