"""Runtimes that run networks, the timing protocol, benchmarks and latency limits."""

from segtailor.core.registry import RUNTIMES
from segtailor.targets.runtime import (
    Compiled,
    Runtime,
    compile_network,
    describe_runtimes,
    describe_targets,
    runtime_for,
)

__all__ = [
    "RUNTIMES",
    "Compiled",
    "Runtime",
    "compile_network",
    "describe_runtimes",
    "describe_targets",
    "runtime_for",
]
