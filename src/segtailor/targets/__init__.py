"""Where networks run: runtimes, the timing protocol, benchmarks and latency contracts."""

from segtailor.targets import eager
from segtailor.targets.runtime import (
    RUNTIMES,
    Compiled,
    Runtime,
    compile_network,
    describe_runtimes,
    runtime_for,
)

__all__ = ["RUNTIMES", "Compiled", "Runtime", "compile_network", "describe_runtimes", "eager", "runtime_for"]
