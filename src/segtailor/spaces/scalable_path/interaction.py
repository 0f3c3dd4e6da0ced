"""How paths exchange features: the six modules of LPS-Net's Figure 6 and Table 3.

Only bilateral B is exact by publication; kernel sizes of the others are not given there. Ours: the transformation F is
a 3x3 convolution with norm and ReLU, attention a 3x3 convolution with norm and sigmoid. For more than two paths the
first path is "high", and every other path takes the part of "low" in turn.
"""

from __future__ import annotations

from collections.abc import Callable

from segtailor.core.plan import PlanBuilder
from segtailor.ops import Concat, Conv, Sum
from segtailor.ops.attention import Blend, Gate
from segtailor.spaces.scalable_path.architecture import Interaction

F = Conv()
ATTENTION = Conv(activation="sigmoid")


def interact(build: PlanBuilder, kind: Interaction, name: str, maps: list[str]) -> list[str]:
    """Add the interaction of all paths; with one path, or kind `none`, nothing happens."""
    if len(maps) == 1 or kind == "none":
        return maps
    return _KINDS[kind](build, name, maps)


def _bilateral_b(build: PlanBuilder, name: str, maps: list[str]) -> list[str]:
    return [
        build.add(f"{name}_path{i}", Sum(align_corners=True), own, *(other for other in maps if other != own))
        for i, own in enumerate(maps)
    ]


def _bilateral_a(build: PlanBuilder, name: str, maps: list[str]) -> list[str]:
    moved = [build.add(f"{name}_transform{i}", F, own) for i, own in enumerate(maps)]
    return [
        build.add(
            f"{name}_path{i}", Sum(align_corners=True), own, *(moved[j] for j in range(len(maps)) if j != i)
        )
        for i, own in enumerate(maps)
    ]


def _direct_a(build: PlanBuilder, name: str, maps: list[str]) -> list[str]:
    moved = [build.add(f"{name}_transform{i}", F, low) for i, low in enumerate(maps[1:], start=1)]
    return [build.add(f"{name}_path0", Sum(align_corners=True), maps[0], *moved), *maps[1:]]


def _direct_b(build: PlanBuilder, name: str, maps: list[str]) -> list[str]:
    width = build.shape(maps[0]).channels
    moved = [build.add(f"{name}_transform{i}", F, low) for i, low in enumerate(maps[1:], start=1)]
    joined = build.add(
        f"{name}_concat", Concat(align_corners=True), maps[0], *moved, channels=width * len(maps)
    )
    return [build.add(f"{name}_path0", F, joined, channels=width), *maps[1:]]


def _attention_a(build: PlanBuilder, name: str, maps: list[str]) -> list[str]:
    high, outputs = maps[0], []
    for i, low in enumerate(maps[1:], start=1):
        attention = build.add(f"{name}_attention{i}", ATTENTION, low)
        moved = build.add(f"{name}_transform{i}", F, low)
        gated = build.add(f"{name}_path{i}", Gate(), moved, attention)
        own = build.add(f"{name}_own{i}", F, high)
        high = build.add(f"{name}_high{i}", Blend(align_corners=True), own, gated, attention)
        outputs.append(gated)
    return [high, *outputs]


def _attention_b(build: PlanBuilder, name: str, maps: list[str]) -> list[str]:
    """Each path keeps what the other's attention leaves, and adds what the other's attention picks."""
    high, outputs = maps[0], []
    for i, low in enumerate(maps[1:], start=1):
        own = {
            side: build.add(f"{name}_{side}_transform{i}", F, source)
            for side, source in (("h", high), ("l", low))
        }
        look = {
            side: build.add(f"{name}_{side}_attention{i}", ATTENTION, s)
            for side, s in (("h", high), ("l", low))
        }
        picked = {side: build.add(f"{name}_{side}_picked{i}", Gate(), own[side], look[side]) for side in "hl"}
        low_out = build.add(f"{name}_low{i}", Blend(align_corners=True), own["l"], picked["h"], look["h"])
        high = build.add(f"{name}_high{i}", Blend(align_corners=True), own["h"], picked["l"], look["l"])
        outputs.append(low_out)
    return [high, *outputs]


_KINDS: dict[Interaction, Callable[[PlanBuilder, str, list[str]], list[str]]] = {
    "direct_a": _direct_a,
    "direct_b": _direct_b,
    "attention_a": _attention_a,
    "attention_b": _attention_b,
    "bilateral_a": _bilateral_a,
    "bilateral_b": _bilateral_b,
}
