"""PIDNet-S (Xu, Xiong, Bhattacharyya: PIDNet: A Real-time Semantic Segmentation Network Inspired by PID
Controllers, CVPR 2023; Table 2, Figures 4 to 6).
"""

from __future__ import annotations

from segtailor.core.plan import IMAGE, PlanBuilder
from segtailor.ops import Resize, Sum
from segtailor.ops.attention import Blend, Gate, Likeness
from segtailor.ops.convolutions import Activate
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
DETAIL = 2 * WIDTH  # of the branch that keeps detail (P)
BRANCH = 96  # of the pyramid's scales
HIDDEN = 128  # of the main head


def pidnet_s(build: PlanBuilder, classes: int) -> dict[str, str]:
    """Branches for detail (P), context (I) and boundaries (D), the last weighing the other two; return the outputs."""
    source = build.add("stem", CONV, IMAGE, channels=WIDTH, stride=2)
    source = build.add("stem2", CONV, source, channels=WIDTH, stride=2)
    source = relu(build, stage(build, "layer1", source, channels=WIDTH))
    source = relu(build, stage(build, "layer2", source, channels=2 * WIDTH, stride=2))
    detail = stage(build, "detail3", source, channels=DETAIL)
    edges = stage(build, "edges3", source, channels=WIDTH, blocks=1)
    source = relu(build, stage(build, "layer3", source, channels=4 * WIDTH, blocks=3, stride=2))
    detail3 = detail = _attend(build, "attend3", detail, source)
    edges = _differ(build, "differ3", edges, source)
    source = relu(build, stage(build, "layer4", source, channels=8 * WIDTH, blocks=3, stride=2))
    detail = stage(build, "detail4", relu(build, detail), channels=DETAIL)
    edges = bottleneck(build, "edges4", relu(build, edges), channels=2 * WIDTH)
    detail = _attend(build, "attend4", detail, source)
    edges4 = edges = _differ(build, "differ4", edges, source)
    detail = bottleneck(build, "detail5", relu(build, detail), channels=4 * WIDTH)
    edges = bottleneck(build, "edges5", relu(build, edges), channels=4 * WIDTH)
    source = bottleneck(build, "layer5_1", source, channels=16 * WIDTH, stride=2)
    source = bottleneck(build, "layer5_2", source, channels=16 * WIDTH)
    context = _parallel_pyramid(build, source, channels=4 * WIDTH)
    fused = _balance(build, detail, context, edges)
    return {
        "main": normed_head(build, "head", fused, hidden=HIDDEN, classes=classes),
        "aux1": normed_head(build, "aux1", detail3, hidden=HIDDEN, classes=classes),
        "aux2": normed_head(build, "aux2", edges4, hidden=WIDTH, classes=classes),
    }


def _attend(build: PlanBuilder, name: str, detail: str, context: str) -> str:
    """Take over the context, pixel by pixel, as far as both agree (Pag)."""
    narrow = build.add(f"{name}_narrow", BARE_POINT, context, channels=DETAIL)
    query = build.add(f"{name}_query", BARE_POINT, narrow, channels=DETAIL // 2)
    key = build.add(f"{name}_key", BARE_POINT, detail, channels=DETAIL // 2)
    alike = build.add(f"{name}_alike", Likeness(), key, query, channels=1)
    large = build.add(f"{name}_resized", Resize(), narrow, detail)
    taken = build.add(f"{name}_taken", Gate(align_corners=False), large, alike)
    return build.add(name, Blend(align_corners=False), detail, taken, alike)


def _differ(build: PlanBuilder, name: str, edges: str, context: str) -> str:
    """Add what a 3x3 convolution finds in the context."""
    change = build.add(f"{name}_conv", BARE, context, channels=build.shape(edges).channels)
    return build.add(name, Sum(), edges, change)


def _parallel_pyramid(build: PlanBuilder, source: str, *, channels: int) -> str:
    """Pool at four scales, refined side by side in one grouped convolution (PAPPM)."""
    first, *coarser = scales(build, "pyramid", source, channels=BRANCH)
    maps = [
        build.add(f"pyramid_sum{index}", Sum(like=1), scale, first)
        for index, scale in enumerate(coarser, start=1)
    ]
    side_by_side = concat(build, "pyramid_scales", *maps)
    refined = preactivated(
        build, "pyramid_refined", side_by_side, channels=4 * BRANCH, kernel=3, groups=len(maps)
    )
    joined = concat(build, "pyramid_joined", first, refined)
    narrow = preactivated(build, "pyramid_narrow", joined, channels=channels)
    shortcut = preactivated(build, "pyramid_shortcut", source, channels=channels)
    return build.add("pyramid", Sum(), narrow, shortcut)


def _balance(build: PlanBuilder, detail: str, context: str, edges: str) -> str:
    """Prefer detail where there are boundaries and context elsewhere (Light-Bag)."""
    weights = build.add("balance_weights", Activate(activation="sigmoid"), edges)
    large = build.add("balance_context", Resize(), context, detail)
    inside = build.add("balance_inside", Blend(align_corners=False), large, detail, weights)
    edged = build.add("balance_edged", Gate(align_corners=False), detail, weights)
    outside = build.add("balance_outside", Sum(), large, edged)
    one = build.add("balance_detail_conv", BARE_POINT, inside)
    two = build.add("balance_context_conv", BARE_POINT, outside)
    return build.add("balance", Sum(), one, two)
