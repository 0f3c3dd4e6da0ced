"""One-shot search: train shared weights for all networks of a space once, then evolve networks judged by their part.

The weights learn from several networks per batch, drawn among those within the budget. Afterwards hundreds of networks
are judged in a second or so each, without any training, and the whole front of quality and cost is read off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from segtailor.core.atomic import write_json
from segtailor.core.codec import Json, from_json, read_json, to_json
from segtailor.core.errors import RunProblem, Unsupported
from segtailor.core.job import Job, Step
from segtailor.core.space import Architecture, architecture_document, fingerprint_of
from segtailor.core.strategy import Candidate, Judged, Problem, SearchProblem, TrialResult
from segtailor.core.task import Preprocessing
from segtailor.data.augment import Augment
from segtailor.data.batches import batches_of
from segtailor.nets.network import Network, initialise
from segtailor.strategies.candidates import ArchitecturePrices, Draws
from segtailor.strategies.evaluators.shared import SharedJudge, evenly_spaced
from segtailor.strategies.evolution import Evolution, EvolutionState
from segtailor.strategies.front import pareto
from segtailor.strategies.gradient_settings import Choice, Gradient
from segtailor.strategies.halves import FIT_STREAM, half_batches, halved_pixels
from segtailor.strategies.saved_supernet import facts_of, save_supernet
from segtailor.strategies.trial_strategy import check_at_least
from segtailor.tasks.loss_settings import LossSettings
from segtailor.training import device as devices
from segtailor.training.fit import Fit
from segtailor.training.pace import Allowance
from segtailor.training.settings import FitSettings, Schedule
from segtailor.training.threads import chosen_threads

FIT_FOLDER, STATE = "shared-weights", "judged.json"  # inside a checkpoint
TRAINED_NETWORKS = 256  # that the networks of a training pass are drawn from, where few are known
MIN_KNOWN, OTHERS_PART = 16, 8  # known ones, beside which an eighth as many random ones are trained
KNOWN_SHARE = 0.75  # of the networks that are judged first: a short search judges no others
CHECKPOINT_SECONDS = 60.0  # between two while networks are judged
USUAL_FIT = FitSettings(
    steps=600,
    batch=16,
    optimiser="adamw",
    lr=3e-3,
    weight_decay=0.01,
    schedule=Schedule(kind="poly", warmup=20),
    loss=LossSettings(auxiliary_default=1.0),  # all networks of a pass count alike
    ema=0.98,
)


@dataclass(frozen=True, kw_only=True)
class OneShot:
    """Train the weights that networks share by `fit`, on batches that `networks` of them see; then judge `trials`.

    The networks that are judged are bred as by `evolution` (`population`, `children`). `choice` says how a network is
    judged: on how many images (evenly spaced), and on how many batches the statistics of its norms are measured before.
    Where a search has a time limit, `training_share` of it trains. With a budget, the chosen network uses at least the
    share `aim` of it, if there is one: shared weights favour small networks the more, the shorter they were trained.
    """

    fit: FitSettings = field(default_factory=lambda: USUAL_FIT)
    augment: Augment | None = None
    networks: int = 3
    trials: int = 256
    population: int = 24
    children: int = 12
    choice: Choice = field(default_factory=lambda: Choice(recalibrate=4))
    training_share: float = 0.75
    aim: float = 0.6
    preprocessing: Preprocessing = field(default_factory=Preprocessing)

    def __post_init__(self) -> None:
        for name in ("networks", "trials"):
            check_at_least(name, getattr(self, name), 1)
        if not 0 <= self.aim < 1:
            raise SearchProblem(f"aim: {self.aim} is no share of the budget; give e.g. 0.6, or 0 for any.")
        if not 0 < self.training_share < 1:
            raise SearchProblem(
                f"training_share: {self.training_share} is no share of the time; give e.g. 0.75."
            )

    @property
    def evolution(self) -> Evolution:
        """How networks are bred once the weights are trained."""
        return Evolution(
            trials=self.trials, population=self.population, children=self.children, known=KNOWN_SHARE
        )

    @property
    def judging(self) -> Gradient:
        """How networks are judged, as the evaluator `shared` knows it."""
        fit = replace(self.fit, ema=None, distill=None, compile=False, seconds=None)
        return Gradient(fit=fit, augment=self.augment, choice=self.choice, preprocessing=self.preprocessing)

    def check(self, problem: Problem) -> None:
        """Refuse a space whose networks share no weights, and missing data."""
        if problem.data is None:
            raise Unsupported("a one-shot search trains on data, and the problem has none; give a dataset.")
        if hasattr(problem.space, "discretise") or not hasattr(problem.space, "supernet"):
            raise Unsupported(
                f"the networks of space {type(problem.space).__name__} are no parts of one largest network, which a "
                "one-shot search needs; use the space elastic, or another strategy (evolution, gradient)."
            )

    def job(self, problem: Problem) -> Job:
        """Return the search as a job."""
        return OneShotSearch(self, problem)


class OneShotSearch:
    """The job of a one-shot search."""

    def __init__(self, settings: OneShot, problem: Problem) -> None:
        settings.check(problem)
        self._settings, self._problem = settings, problem
        self._device = devices.pick_device(problem.device)
        pixels = halved_pixels(problem)
        supernet = problem.space.supernet(problem.image, problem.task.outputs)  # type: ignore[attr-defined]
        initialise(supernet, problem.seed)
        if problem.start is not None:
            problem.start(supernet)
        self._prices = ArchitecturePrices(problem)
        self._trained = _networks_to_train(problem, self._prices)
        supernet.train_on(self._trained, each=settings.networks, seed=problem.seed)
        self._supernet = supernet
        self._augment = settings.augment or Augment(crop=(problem.image.height, problem.image.width))
        fit = replace(settings.fit, record=False, seed=problem.seed)  # every pass runs other networks
        if problem.seconds is not None:
            fit = replace(fit, seconds=settings.training_share * problem.seconds)
        self._fit = Fit(
            network=supernet,
            batches=batches_of(pixels.fit, self._augment, settings.preprocessing, device=self._device),
            settings=fit,
            task=problem.task,
            device=self._device,
            preprocessing=settings.preprocessing,
            carried=supernet.carried,
        )
        judging = settings.judging
        self._judge = SharedJudge(
            settings=judging,
            space=problem.space,
            task=problem.task,
            image=problem.image,
            supernet=supernet,
            batches=half_batches(
                pixels.fit,
                judging,
                image=problem.image,
                seed=problem.seed,
                stream=FIT_STREAM,
                device=self._device,
            ),
            pictures=evenly_spaced(pixels.judge, settings.choice.images or len(pixels.judge)),
            device=self._device,
        )
        self._allowance = Allowance(problem.seconds)
        self._qualities: list[tuple[str, float]] = []  # fingerprint and quality of each trial, in their order
        self._judged: list[Judged] = []
        self._saved_at = 0.0

    def steps(self) -> Iterator[Step]:
        """Train the shared weights, then judge generation after generation."""
        self._allowance.begin()
        yield from self.training()
        yield self._step(None, checkpoint=True)
        with chosen_threads(self._device, fixed=self._settings.fit.deterministic):
            yield from self._search()

    def training(self) -> Iterator[Step]:
        """Train the shared weights; the averaged ones stay."""
        steps = self._fit.steps()
        while True:
            with devices.many_shapes(self._device):  # every pass runs other networks
                step = next(steps, None)
            if step is None:
                break
            yield replace(step, phase="shared weights")
        self._supernet.load_state_dict(self._fit.weights())

    def quality(self, arch: Architecture) -> float:
        """Judge a network by its part of the weights."""
        with devices.many_shapes(self._device):
            return self._judge(arch)

    def _search(self) -> Iterator[Step]:
        state: EvolutionState = self._settings.evolution.begin(self._problem, self._prices)
        self._judged = []
        while batch := state.ask():
            judged = []
            for candidate in batch:
                known = len(self._judged) < len(self._qualities)
                judged.append(self._trial(candidate))
                if known:
                    continue
                yield self._step(judged[-1], checkpoint=self._checkpoint_due())
                if self._allowance.over and len(self._judged) >= self._settings.population:
                    return
            state.tell(judged)

    def _trial(self, candidate: Candidate) -> Judged:
        """Judge a candidate, or return what an earlier session found."""
        number, key = len(self._judged), fingerprint_of(candidate.architecture)
        if number < len(self._qualities):
            before, quality = self._qualities[number]
            if before != key:
                raise RunProblem(
                    f"trial {number} of the saved search judged another architecture than this search asks for; the "
                    "search was started with other settings or another version. Start again in another folder."
                )
        else:
            quality = self.quality(candidate.architecture)
            self._qualities.append((key, quality))
        result = TrialResult(id=number, status="done", quality=quality, cost=candidate.cost)
        self._judged.append(Judged(candidate=candidate, result=result))
        return self._judged[-1]

    def preview(self) -> Sequence[Candidate]:
        """Return the first networks that will be judged, with their costs; a budget that nothing meets raises here."""
        return self._settings.evolution.begin(self._problem, self._prices).ask()

    @property
    def crop(self) -> tuple[int, int]:
        """Height and width of training crops."""
        return self._augment.crop

    @property
    def batch(self) -> int:
        """Images per step."""
        return self._settings.fit.batch

    @property
    def planned(self) -> tuple[int, int]:
        """Steps of training, and how many networks are judged at most."""
        return self._fit.total, self._settings.trials

    def try_step(self) -> None:
        """Take a step of training, to time it; the job cannot be used afterwards."""
        with devices.many_shapes(self._device):
            self._fit.engine.step(self._fit.source.at(0), rate=self._fit.rate)

    def try_judging(self) -> None:
        """Judge a network of middle cost, to time it."""
        self.quality(self._trained[len(self._trained) // 2])

    def save(self, folder: Path) -> None:
        """Write the training state, and what was judged."""
        (folder / FIT_FOLDER).mkdir()
        self._fit.save(folder / FIT_FOLDER)
        document = {
            "passes": self._supernet.passes,
            "seconds": self._allowance.spent,
            "prices": self._prices.known,
            "qualities": self._qualities,
        }
        write_json(folder / STATE, to_json(document), what="search state")

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote for the same settings and problem."""
        self._fit.load(folder / FIT_FOLDER)
        document = read_json(folder / STATE, what="search state", error=RunProblem)
        state = from_json(_SavedState, document, what="search state", error=RunProblem)
        self._supernet.passes = state.passes
        self._allowance.begin(state.seconds)
        self._prices.known.update(state.prices)
        self._qualities = list(state.qualities)

    def result(self) -> Mapping[str, Json]:
        """Return the best architecture by the objective, the front and every trial."""
        score = self._problem.objective.score
        best = max(self._judged, key=lambda item: float(score(item.quality, item.cost)), default=None)
        if best is None:
            raise SearchProblem(
                "the search has judged no network yet, so there is nothing to choose from; resume it."
            )
        return {
            "architecture": architecture_document(best.candidate.architecture),
            **best.described(),
            "unit": self._problem.cost.unit,
            "front": [item.described() for item in self.front()],
            "failed": 0,  # a network with shared weights can always be judged
            "trials": [item.record(seed=self._problem.seed) for item in self._judged],
            "shared_steps": self._fit.done,
        }

    def front(self) -> list[Judged]:
        """Return the networks that no other one beats in quality and cost, cheapest first.

        Those that use the budget are compared with each other, not with the far smaller ones (`OneShot.aim`).
        """
        score = self._problem.objective.score
        using = [item for item in self._judged if score(item.quality, item.cost) >= 0]
        small = [item for item in self._judged if score(item.quality, item.cost) < 0]
        return [*pareto(small), *pareto(using)]

    @property
    def preprocessing(self) -> Preprocessing:
        """How images were prepared in training."""
        return self._settings.preprocessing

    def network(self, arch: Architecture) -> Network:
        """Return a network with its part of the trained weights, ready for use."""
        with devices.many_shapes(self._device):
            return self._judge.network(arch).eval()

    def save_supernet(self, folder: Path) -> None:
        """Write the shared weights, with which trials of other searches can be judged."""
        facts = facts_of(self._problem, self._settings.judging, remaining=self._supernet.remaining())
        save_supernet(folder, facts, self._supernet)

    def _checkpoint_due(self) -> bool:
        due = self._allowance.spent >= self._saved_at + CHECKPOINT_SECONDS
        if due:
            self._saved_at = self._allowance.spent
        return due

    def _step(self, latest: Judged | None, *, checkpoint: bool) -> Step:
        metrics = {"front": float(len(self.front()))}
        if latest is not None:
            metrics |= {"trial": float(latest.result.id), "cost": latest.cost, "quality": latest.quality}
        score = self._problem.objective.score
        best = max(self._judged, key=lambda item: float(score(item.quality, item.cost)), default=None)
        return Step(
            phase="search",
            done=len(self._judged),
            total=self._settings.trials,
            metrics=metrics,
            best={} if best is None else best.described(),
            checkpoint=checkpoint,
        )


@dataclass(frozen=True, kw_only=True)
class _SavedState:
    passes: int
    seconds: float
    prices: Mapping[str, float]
    qualities: tuple[tuple[str, float], ...]


def _networks_to_train(problem: Problem, prices: ArchitecturePrices) -> list[Architecture]:
    """Draw networks within the budget that are to learn together, cheapest first."""
    draws = Draws(problem, prices, Random(f"{problem.seed} trained"))
    known = [draws.accept(problem.space.picks(arch)) for arch in problem.known]
    candidates = [item for item in known if item is not None]
    others = max(1, len(candidates) // OTHERS_PART) if len(candidates) >= MIN_KNOWN else TRAINED_NETWORKS
    candidates += draws.several(others)
    return [item.architecture for item in sorted(candidates, key=lambda item: item.cost)]
