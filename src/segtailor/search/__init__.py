"""How to choose. Importing this package registers the trial strategies; it imports neither torch nor Ray."""

import sys

from segtailor.core.registry import EXECUTORS
from segtailor.search.ablation import Ablation, Variant
from segtailor.search.calling import CallablePackage
from segtailor.search.contest import Contender, Contest
from segtailor.search.controller import Controller
from segtailor.search.evolution import Evolution
from segtailor.search.executors import Processes, Ray, Serial
from segtailor.search.expansion import Expansion
from segtailor.search.halving import Halving
from segtailor.search.random import RandomSearch
from segtailor.search.study import Entrant, Study
from segtailor.search.trials import TrialSearch

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

sys.modules[__name__].__class__ = CallablePackage
