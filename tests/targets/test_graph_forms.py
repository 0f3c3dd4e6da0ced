"""The quick form of a target, in which many networks can be timed."""

from __future__ import annotations

import pytest

from segtailor.core.target import parse_target
from segtailor.targets.graph import quick_form


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("cuda/graph/fp16", "cuda/graph/fp16?tune=0"),
        ("cuda/graph/fp16?channels_last=0", "cuda/graph/fp16?channels_last=0&tune=0"),
        ("cuda/graph/fp16?tune=0", "cuda/graph/fp16?tune=0"),
        ("cpu/onnxruntime/fp32?threads=2", "cpu/onnxruntime/fp32?threads=2"),
    ],
)
def test_only_timing_of_kernels_is_left_out(given: str, wanted: str) -> None:
    assert str(quick_form(parse_target(given))) == str(parse_target(wanted))
