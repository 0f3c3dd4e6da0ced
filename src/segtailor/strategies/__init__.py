"""How to choose. Importing this package registers the trial strategies; it imports neither torch nor Ray."""

from segtailor.strategies.ablation import Ablation, Variant
from segtailor.strategies.contest import Contender, Contest
from segtailor.strategies.controller import Controller
from segtailor.strategies.evolution import Evolution
from segtailor.strategies.executors import EXECUTORS, Processes, Ray, Serial
from segtailor.strategies.expansion import Expansion
from segtailor.strategies.random import RandomSearch
from segtailor.strategies.study import Entrant, Study
from segtailor.strategies.trial_strategy import Halving
from segtailor.strategies.trials import TrialSearch

__all__ = [
    "EXECUTORS",
    "Ablation",
    "Contender",
    "Contest",
    "Controller",
    "Entrant",
    "Evolution",
    "Expansion",
    "Halving",
    "Processes",
    "RandomSearch",
    "Ray",
    "Serial",
    "Study",
    "TrialSearch",
    "Variant",
]
