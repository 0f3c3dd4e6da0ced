"""Pieces that several of the networks are made of. Each adds its nodes under one name and returns the last."""

from __future__ import annotations

from segtailor.core.plan import PlanBuilder
from segtailor.ops import Concat, Conv, Sum
from segtailor.ops.convolutions import Activate, Norm
from segtailor.ops.pooling import AveragePool, BinPool

CONV = Conv()
POINT = Conv(kernel=1)
DEPTHWISE = Conv(groups=0, activation="none")
BARE = Conv(activation="none")  # with norm, as the next one
BARE_POINT = Conv(kernel=1, activation="none")
SCORES = Conv(kernel=1, norm=False, bias=True, activation="none")


def concat(build: PlanBuilder, name: str, *maps: str) -> str:
    """Join channels at the size of the first map."""
    return build.add(name, Concat(), *maps, channels=sum(build.shape(source).channels for source in maps))


def head(
    build: PlanBuilder, name: str, source: str, *, hidden: int, classes: int, scores: Conv = SCORES
) -> str:
    """3x3 convolution, norm, ReLU, then scores."""
    inner = build.add(f"{name}_conv", CONV, source, channels=hidden)
    return build.add(name, scores, inner, channels=classes)


def normed_head(build: PlanBuilder, name: str, source: str, *, hidden: int, classes: int) -> str:
    """Norm and ReLU, then a head (DDRNet, PIDNet)."""
    normed = build.add(f"{name}_norm", Norm(), source)
    return head(build, name, normed, hidden=hidden, classes=classes)


def stage(
    build: PlanBuilder, name: str, source: str, *, channels: int, blocks: int = 2, stride: int = 1
) -> str:
    """Residual blocks of two 3x3 convolutions; no ReLU after the last, since both branches read it apart."""
    for index in range(1, blocks + 1):
        block = f"{name}_{index}"
        inner = build.add(f"{block}_conv1", CONV, source, channels=channels, stride=stride)
        body = build.add(f"{block}_conv2", BARE, inner)
        source = _added(build, block, body, source, stride=stride)
        if index < blocks:
            source = relu(build, source)
        stride = 1
    return source


def relu(build: PlanBuilder, source: str) -> str:
    """ReLU of a map that something else reads without it."""
    return build.add(f"{source}_relu", Activate(), source)


def bottleneck(build: PlanBuilder, name: str, source: str, *, channels: int, stride: int = 1) -> str:
    """1x1, 3x3 and 1x1 convolution half as wide inside, and a shortcut; no ReLU at the end."""
    inner = build.add(f"{name}_conv1", POINT, source, channels=channels // 2)
    inner = build.add(f"{name}_conv2", CONV, inner, stride=stride)
    body = build.add(f"{name}_conv3", BARE_POINT, inner, channels=channels)
    return _added(build, name, body, source, stride=stride)


def preactivated(
    build: PlanBuilder, name: str, source: str, *, channels: int, kernel: int = 1, groups: int = 1
) -> str:
    """Norm, ReLU, then a convolution (He et al. 2016b)."""
    normed = build.add(f"{name}_norm", Norm(), source)
    op = Conv(kernel=kernel, groups=groups, norm=False, activation="none")
    return build.add(name, op, normed, channels=channels)


def scales(build: PlanBuilder, name: str, source: str, *, channels: int) -> list[str]:
    """The map itself, three padded means of growing windows, and the mean of all, each narrowed to `channels`."""
    maps = [source]
    for index, (kernel, stride) in enumerate([(5, 2), (9, 4), (17, 8)], start=1):
        maps.append(build.add(f"{name}_pool{index}", AveragePool(kernel=kernel), source, stride=stride))
    maps.append(build.add(f"{name}_pool4", BinPool(), source))
    return [
        preactivated(build, f"{name}_scale{index}", pooled, channels=channels)
        for index, pooled in enumerate(maps)
    ]


def _added(build: PlanBuilder, name: str, body: str, source: str, *, stride: int) -> str:
    """Add the input of a block to its body, through a 1x1 convolution where shapes differ."""
    channels = build.shape(body).channels
    if stride > 1 or build.shape(source).channels != channels:
        source = build.add(f"{name}_shortcut", BARE_POINT, source, channels=channels, stride=stride)
    return build.add(name, Sum(), body, source)
