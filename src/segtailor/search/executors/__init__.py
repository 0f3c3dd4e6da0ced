"""Where trials run: in this process, in spawned processes, or on Ray."""

from segtailor.core.registry import Registry
from segtailor.core.strategy import Executor
from segtailor.search.executors.processes import Processes
from segtailor.search.executors.ray import Ray
from segtailor.search.executors.serial import Serial

EXECUTORS: Registry[type[Executor]] = Registry("executor")
EXECUTORS.add("serial", Serial)
EXECUTORS.add("processes", Processes)
EXECUTORS.add("ray", Ray)

__all__ = ["EXECUTORS", "Processes", "Ray", "Serial"]
