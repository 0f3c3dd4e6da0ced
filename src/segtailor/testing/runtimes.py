"""What a runtime must satisfy: the outputs of PyTorch, for networks and for operators with several inputs."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from segtailor.core.plan import Shape
from segtailor.core.target import Target
from segtailor.targets.runtime import compile_network, example_inputs

TOLERANCE = {"fp32": 1e-3, "fp16": 2e-2, "bf16": 8e-2, "int8": 0.15}  # of the largest value


def check_runtime(module: nn.Module, target: Target, inputs: tuple[Shape, ...]) -> None:
    """Check that a target computes what the module computes, before and after runs on the resident inputs."""
    arrays = example_inputs(inputs)
    with torch.no_grad():
        wanted = module(*map(torch.from_numpy, arrays)).numpy()
    compiled = compile_network(module, target, inputs)
    try:
        _expect_close(compiled.outputs(*arrays), wanted, target)
        with compiled.prepared():
            compiled.run()
            compiled.synchronise()
        _expect_close(compiled.outputs(*arrays), wanted, target)
        changed = compiled.outputs(*(array * 2 for array in arrays))
        if np.array_equal(changed, wanted):
            raise AssertionError(f"{target}: other inputs gave the same output")
    finally:
        compiled.close()


def _expect_close(got: np.ndarray, wanted: np.ndarray, target: Target) -> None:
    if got.shape != wanted.shape:
        raise AssertionError(f"{target}: the output has size {got.shape}, PyTorch gives {wanted.shape}")
    worst = float(np.abs(got - wanted).max() / np.abs(wanted).max())
    if not worst <= TOLERANCE[target.precision]:
        raise AssertionError(f"{target}: the output differs from PyTorch by {worst:.2%} of its largest value")
