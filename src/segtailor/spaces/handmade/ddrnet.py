"""DDRNet-23-slim (Hong, Pan, Sun, Jia: Deep Dual-resolution Networks for Real-time and Accurate Semantic
Segmentation of Road Scenes, 2021; Table 1, Figures 3 to 5).
"""

from __future__ import annotations

from segtailor.core.plan import IMAGE, PlanBuilder
from segtailor.ops import Sum
from segtailor.spaces.handmade.parts import (
    BARE,
    BARE_POINT,
    CONV,
    bottleneck,
    concat,
    normed_head,
    preactivated,
    relu,
    scales,
    stage,
)

WIDTH = 32  # of the stem; all other widths are multiples
DETAIL = 2 * WIDTH  # of the branch that stays at 1/8
BRANCH = 128  # of the pyramid's scales
HIDDEN = 64  # of both heads


def ddrnet_23_slim(build: PlanBuilder, classes: int) -> dict[str, str]:
    """Two branches from 1/8 on that are fused both ways twice, a deep pyramid at 1/64; return the outputs."""
    source = build.add("stem", CONV, IMAGE, channels=WIDTH, stride=2)
    source = build.add("stem2", CONV, source, channels=WIDTH, stride=2)
    source = relu(build, stage(build, "layer1", source, channels=WIDTH))
    source = relu(build, stage(build, "layer2", source, channels=2 * WIDTH, stride=2))
    context = stage(build, "layer3", source, channels=4 * WIDTH, stride=2)
    detail = stage(build, "detail3", source, channels=DETAIL)
    context, detail = _exchange(build, "fuse3", context, detail)
    fused3 = detail
    context = stage(build, "layer4", relu(build, context), channels=8 * WIDTH, stride=2)
    detail = stage(build, "detail4", relu(build, detail), channels=DETAIL)
    context, detail = _exchange(build, "fuse4", context, detail)
    detail = bottleneck(build, "detail5", relu(build, detail), channels=4 * WIDTH)
    context = bottleneck(build, "layer5", relu(build, context), channels=16 * WIDTH, stride=2)
    context = _deep_pyramid(build, context, channels=4 * WIDTH)
    joined = build.add("joined", Sum(), detail, context)
    return {
        "main": normed_head(build, "head", joined, hidden=HIDDEN, classes=classes),
        "aux1": normed_head(build, "aux1", fused3, hidden=HIDDEN, classes=classes),
    }


def _exchange(build: PlanBuilder, name: str, context: str, detail: str) -> tuple[str, str]:
    """Add to each branch what the other has found, at its own size and width."""
    down, steps = relu(build, detail), build.shape(context).channels // DETAIL
    while steps > 1:
        steps //= 2
        width = build.shape(context).channels // steps
        down = build.add(f"{name}_down{width}", CONV if steps > 1 else BARE, down, channels=width, stride=2)
    narrow = build.add(f"{name}_narrow", BARE_POINT, relu(build, context), channels=DETAIL)
    return build.add(f"{name}_context", Sum(), context, down), build.add(
        f"{name}_detail", Sum(), detail, narrow
    )


def _deep_pyramid(build: PlanBuilder, source: str, *, channels: int) -> str:
    """Pool at four scales, each refined together with the finer one before it (DAPPM)."""
    first, *coarser = scales(build, "pyramid", source, channels=BRANCH)
    maps = [first]
    for index, scale in enumerate(coarser, start=1):
        added = build.add(f"pyramid_sum{index}", Sum(like=1), scale, maps[-1])
        maps.append(preactivated(build, f"pyramid_refined{index}", added, channels=BRANCH, kernel=3))
    joined = concat(build, "pyramid_joined", *maps)
    narrow = preactivated(build, "pyramid_narrow", joined, channels=channels)
    shortcut = preactivated(build, "pyramid_shortcut", source, channels=channels)
    return build.add("pyramid", Sum(), narrow, shortcut)
