"""Public conformance kits: what an operator, space, supernet, dataset, runtime or strategy must satisfy; they raise."""

from segtailor.testing.datasets import check_dataset
from segtailor.testing.operators import check_operator
from segtailor.testing.runtimes import check_runtime
from segtailor.testing.spaces import check_architecture, check_space
from segtailor.testing.strategies import check_strategy
from segtailor.testing.supernets import check_supernet

__all__ = [
    "check_architecture",
    "check_dataset",
    "check_operator",
    "check_runtime",
    "check_space",
    "check_strategy",
    "check_supernet",
]
