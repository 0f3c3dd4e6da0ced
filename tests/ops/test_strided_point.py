"""Strided 1x1 convolutions: the same values in training and deployment, and no harm to memory."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from segtailor.ops.modules.conv import StridedPoint, conv2d

PROGRAM = """
import torch
from segtailor.ops.modules.conv import conv2d
torch.set_num_threads(1)
conv = conv2d(3, 4, 1, stride=2).to(memory_format=torch.channels_last)
for _ in range(100):
    image = torch.randn(4, 3, 48, 96).contiguous(memory_format=torch.channels_last).requires_grad_()
    conv(image).sum().backward()
"""


@pytest.mark.parametrize("size", [(6, 8), (7, 9), (1, 2)])
def test_training_and_deployment_compute_the_same(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    conv = conv2d(3, 4, 1, stride=2, bias=True)
    assert isinstance(conv, StridedPoint)
    image = torch.randn(2, 3, *size)
    plain = nn.Conv2d(3, 4, 1, stride=2)
    plain.load_state_dict(conv.state_dict())
    for training in (True, False):
        assert torch.allclose(conv.train(training)(image), plain(image), atol=1e-6)


@pytest.mark.slow
def test_training_on_a_picture_in_channels_last_leaves_memory_intact() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr  # with a strided kernel of torch 2.13 this process crashes
