"""How to choose an architecture. Importing this package imports neither torch nor Ray."""

from segtailor.strategies.controller import Controller
from segtailor.strategies.evolution import Evolution
from segtailor.strategies.executors import Processes, Ray, Serial
from segtailor.strategies.expansion import Expansion
from segtailor.strategies.random import RandomSearch
from segtailor.strategies.trial_strategy import Halving
from segtailor.strategies.trials import TrialSearch

__all__ = [
    "Controller",
    "Evolution",
    "Expansion",
    "Halving",
    "Processes",
    "RandomSearch",
    "Ray",
    "Serial",
    "TrialSearch",
]
