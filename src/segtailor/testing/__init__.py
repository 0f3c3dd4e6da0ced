"""Public conformance kits: what an operator, a space or a dataset must satisfy, as functions that raise."""

from segtailor.testing.datasets import check_dataset
from segtailor.testing.operators import check_operator
from segtailor.testing.runtimes import check_runtime
from segtailor.testing.spaces import check_architecture, check_space

__all__ = ["check_architecture", "check_dataset", "check_operator", "check_runtime", "check_space"]
