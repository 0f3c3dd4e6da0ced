"""Where trials run: in this process, in spawned processes, or on Ray."""

from segtailor.core.registry import Registry
from segtailor.core.strategy import Executor
from segtailor.strategies.executors.processes import Processes
from segtailor.strategies.executors.ray import Ray
from segtailor.strategies.executors.serial import Serial

EXECUTORS: Registry[type[Executor]] = Registry("executor")
EXECUTORS.add("serial", Serial)
EXECUTORS.add("processes", Processes)
EXECUTORS.add("ray", Ray)

__all__ = ["EXECUTORS", "Processes", "Ray", "Serial"]
