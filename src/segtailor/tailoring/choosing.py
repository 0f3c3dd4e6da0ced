"""Settings from facts: what is sensible for this data, machine, target and time, each with its reason in one line."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Protocol

from segtailor.core.errors import unknown
from segtailor.report.document import ChosenSetting
from segtailor.tailoring.facts import DataFacts
from segtailor.tailoring.pacing import CLOSING_SECONDS, ENOUGH_STEPS, PACK_WORTH, SHARES, training_time
from segtailor.tailoring.settings import Effort, Request, Speed, TailorRecipe

SYSTEMS = ("dilated", "lpsnet", "squeezenas", "autortnet", "fasterseg", "auxcells")
MULTIPLE = 32  # the deepest stride of the families
CROP_PIXELS = {
    False: 128 * 256,
    True: 768 * 1024,
}  # most pixels of a training crop, by whether there is a GPU
BATCH = {False: 8, True: 32}
LR, LR_BATCH = 0.003, 16  # AdamW's rate is right at this batch, and grows with the root of it
SEARCHED = 0.75  # of the budget: the rest is for enlarging labels and for slow runs
USUAL_SECONDS = 30 * 60.0
TRIAL_SECONDS = 1.5  # per candidate besides its training: starting, judging
CANDIDATE_STEPS = (30, 4000)
DIRECTIONS, EXPANSIONS = (
    10,
    6,
)  # candidates of one step of LPS-Net's expansion; steps that make it worth while
USED = 0.6  # of what the search may spend, by a typical candidate
TEACHER = 4.0  # work of a teacher, in that of its student
DISTILLED = 1 + TEACHER / 3  # a step with a teacher, who only looks: a third of what learning costs
STARTING_SECONDS = 10.0  # until the workers of a search are there
FEWEST_STEPS = 20
SMALLEST = 1.5  # times the smallest network may be searched however tight the budget: measuring decides
LEAST = 0.1  # of what the budget allows: in a hurry, too, networks are not made smaller than this


class Sizes(NamedTuple):
    """Multiply-accumulates of the smallest and of the largest network that a search may come to."""

    least: float
    most: float


class Machine(Protocol):
    """Where training happens, and how fast networks of the system are there and on the target."""

    @property
    def accelerator(self) -> bool:
        """Whether training happens on something faster than the processor."""

    @property
    def workers(self) -> int:
        """How many candidates are trained at once."""

    @property
    def precision(self) -> str:
        """What training computes in."""

    def speed(self, crop: tuple[int, int], batch: int) -> Speed:
        """Return how fast networks are trained at a crop and batch."""

    def macs_per_ms(self, image: tuple[int, int], milliseconds: float) -> float:
        """Return what a network that takes so long on the target does in a millisecond, at an image size."""

    def sizes(self, crop: tuple[int, int]) -> Sizes:
        """Return how small and large networks are."""

    def supernet(self) -> float | None:
        """Return the seconds of a step of the system's supernet, if it has one."""


def choose(request: Request, facts: DataFacts, machine: Machine, *, data: str) -> TailorRecipe:
    """Make every choice that the request leaves open."""
    image = request.image or facts.usual
    crop, batch = usual_crop(facts, image, machine), usual_batch(facts, machine)
    speed = machine.speed(crop, batch)
    system = usual_system(request)
    seconds = request.seconds or USUAL_SECONDS
    packless = seconds < PACK_WORTH
    allowed = SEARCHED * request.budget_ms
    rate = machine.macs_per_ms(image, allowed)
    share = crop[0] * crop[1] / (image[0] * image[1])
    trainable = largest_trainable(training_time(seconds, packless=packless).rest, speed) / (batch * share)
    limit = round(max(min(allowed, trainable / rate), LEAST * allowed), 4)
    step = speed.step(batch * typical_macs(limit * rate * share, machine.sizes(crop)))
    effort = usual_effort(seconds, step, packless=packless, supernet=machine.supernet())
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
        search_limit_macs=round(max(limit * rate, SMALLEST * machine.sizes(image).least)),
        precision=machine.precision,
    )
    return replace(recipe, choices=tuple(_told(recipe, facts, machine)))


def _told(recipe: TailorRecipe, facts: DataFacts, machine: Machine) -> list[ChosenSetting]:
    """Say every choice and why."""
    request, effort, batch = recipe.request, recipe.effort, recipe.batch
    system, image, crop, lr = recipe.system, recipe.image, recipe.crop, recipe.lr
    seconds = request.seconds or USUAL_SECONDS
    return [
        ChosenSetting(setting="recipe", value=system, reason=_why_system(request)),
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
            setting="lr", value=str(lr), reason=f"AdamW: {LR} at batch {LR_BATCH}, by the root of the batch"
        ),
        ChosenSetting(
            setting="precision",
            value=machine.precision,
            reason="the processor computes in it" if not machine.accelerator else "half the memory traffic",
        ),
        ChosenSetting(setting="time", value=f"{seconds / 60:.0f} min", reason=_why_time(request)),
        ChosenSetting(setting="largest", value=f"{recipe.search_limit_ms:g} ms", reason=_why_largest(recipe)),
        ChosenSetting(setting="latency", value=_priced(effort), reason=_why_priced(effort)),
        ChosenSetting(setting="search", value=_search(effort), reason=_why_search(system, effort)),
        ChosenSetting(
            setting="training",
            value=f"{effort.train_steps} steps",
            reason=f"{effort.train_steps * batch / facts.images:.0f} passes over {facts.images} images fit the time",
        ),
        ChosenSetting(
            setting="baselines",
            value=f"at most {effort.baselines}",
            reason="ready networks that keep the budget, trained the same way for as many steps",
        ),
    ]


def usual_crop(facts: DataFacts, image: tuple[int, int], machine: Machine) -> tuple[int, int]:
    """Return the largest crop in multiples of 32 that fits most images and the machine, of the image's shape."""
    height, width = (min(side, most) for side, most in zip(image, facts.largest, strict=True))
    shrink = min(1.0, (CROP_PIXELS[machine.accelerator] / (height * width)) ** 0.5)
    sides = [max(MULTIPLE, round(side * shrink) // MULTIPLE * MULTIPLE) for side in (height, width)]
    return sides[0], sides[1]


def usual_batch(facts: DataFacts, machine: Machine) -> int:
    """Return the batch of this kind of machine, halved until an epoch has four steps."""
    batch = BATCH[machine.accelerator]
    while batch > 2 and 4 * batch > facts.images:
        batch //= 2
    return batch


def usual_system(request: Request) -> str:
    """Return the system asked for; `auto` is the one whose networks learn most from little."""
    if request.recipe == "auto":
        return "dilated"
    if request.recipe not in SYSTEMS:
        raise unknown("recipe", request.recipe, (*SYSTEMS, "auto"))
    return request.recipe


def largest_trainable(seconds: float, speed: Speed) -> float:
    """Return the most work of a batch with which a network, and a ready one of its size, still get enough steps.

    Where that is just enough there is no time for a teacher.
    """
    return speed.macs(SHARES["train"] * seconds / (2 * ENOUGH_STEPS))


def typical_macs(limit: float, sizes: Sizes) -> float:
    """Return what a typical candidate within a limit costs, all in multiply-accumulates."""
    return min(max(USED * limit, sizes.least), sizes.most)


def usual_effort(
    seconds: float, step: float, *, packless: bool = False, supernet: float | None = None
) -> Effort:
    """Fill the time: pack, search, teacher, the winner and ready networks beside it; at least a little of each.

    `step` is how long a step of a typical network takes, `supernet` one of a supernet where that is what is searched
    with. `packless` leaves the device pack out.
    """
    pack, networks, rest = training_time(seconds, packless=packless)
    searching = SHARES["search"] * rest - STARTING_SECONDS
    candidates, steps = _candidates(searching, step)
    baselines = 1 if seconds < 240 else 2 if seconds < 3600 else 4
    return Effort(
        candidates=candidates,
        candidate_steps=steps,
        teacher_steps=_steps(SHARES["teacher"] * rest, TEACHER * step),
        train_steps=_steps(SHARES["train"] * rest / (1 + baselines), DISTILLED * step),
        baselines=baselines,
        pack_minutes=round(pack, 2),
        pack_networks=networks,
        training_seconds=round(rest, 1),
        closing_seconds=CLOSING_SECONDS,
        supernet_steps=0 if supernet is None else _steps(searching, supernet),
    )


def _candidates(seconds: float, step: float) -> tuple[int, int]:
    """Return how many candidates are trained for how long: more candidates first, then longer trainings."""
    least = CANDIDATE_STEPS[0] * step + TRIAL_SECONDS
    count_ = max(4, min(DIRECTIONS * EXPANSIONS, int(seconds / least)))
    steps = int((seconds / count_ - TRIAL_SECONDS) / step)
    return count_, min(max(steps, FEWEST_STEPS), CANDIDATE_STEPS[1])


def _steps(seconds: float, step: float) -> int:
    return max(FEWEST_STEPS, int(seconds / step))


def _size(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def _where(machine: Machine) -> str:
    return "on an accelerator" if machine.accelerator else "on a processor"


def _why_system(request: Request) -> str:
    if request.recipe != "auto":
        return "asked for"
    return "evolves networks of ordinary convolutions that keep detail and learn from few images"


def _why_image(request: Request, facts: DataFacts) -> str:
    if request.image is not None:
        return "asked for"
    if facts.smallest == facts.largest:
        return "the size of all training images"
    return f"the most frequent size; images go from {_size(facts.smallest)} to {_size(facts.largest)}"


def _why_crop(crop: tuple[int, int], image: tuple[int, int], machine: Machine) -> str:
    if crop[0] * crop[1] < 0.8 * image[0] * image[1]:
        return f"a part of the image in multiples of {MULTIPLE}, as large as trains quickly {_where(machine)}"
    return f"the image in multiples of {MULTIPLE}"


def _why_time(request: Request) -> str:
    return "asked for" if request.seconds else "usual; --time gives more or less"


def expands(effort: Effort) -> bool:
    """Tell whether there are enough candidates for an expansion step by step."""
    return effort.candidates >= DIRECTIONS * EXPANSIONS


def _why_largest(recipe: TailorRecipe) -> str:
    if recipe.search_limit_ms < SEARCHED * recipe.request.budget_ms:
        return "larger networks could not be trained well in the time; more --time allows them"
    return (
        f"of the network alone: {SEARCHED:.0%} of the budget, the rest is for enlarging labels and slow runs"
    )


def _priced(effort: Effort) -> str:
    return "device pack" if effort.pack_minutes else "by work"


def _why_priced(effort: Effort) -> str:
    if effort.pack_minutes:
        return f"{effort.pack_minutes:.1f} minutes for a table of operators, then every network has a price at once"
    return "no time for a table of operators: arithmetic stands for it, and the best are measured whole"


def _search(effort: Effort) -> str:
    if effort.supernet_steps:
        return f"one supernet, {effort.supernet_steps} steps"
    return f"{effort.candidates} candidates, {effort.candidate_steps} steps each"


def _why_search(system: str, effort: Effort) -> str:
    share = f"{SHARES['search']:.0%} of the training time"
    if effort.supernet_steps:
        return f"{share}, at the speed of a short probe"
    if system != "lpsnet":
        return f"about {share}"
    if expands(effort):
        return f"{share}, enough for {EXPANSIONS} steps of LPS-Net's expansion"
    return f"about {share}, too little for an expansion step by step: they evolve"
