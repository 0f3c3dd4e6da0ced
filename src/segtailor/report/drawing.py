"""A plan as SVG: time runs to the right, resolution falls downwards, colour tells the operator.

Nodes lie in columns by depth, in bands by stride, and within a band in lanes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from segtailor.core.plan import IMAGE, Node, Plan, count
from segtailor.core.registry import OPERATORS
from segtailor.report.numbers import amount
from segtailor.report.svg import COLOURS, LETTER_PIXELS, element, svg_file, text, tip

COLUMN, LANE, BAND_GAP = 40, 26, 16  # pixels
BOX_WIDTH, BOX_HEIGHT = 30, 18
LEFT, TOP = 76, 64
MIN_WIDTH = 560
MIN_SCALE = 0.55  # a page shows a drawing at this share of its width or larger, and scrolls it otherwise
FULL_WIDTH = 900  # pixels below which a page does not shrink a drawing at all
DEEPEST_BAND = 7  # 1/128; deeper bands hold pooled maps
DOTS = {
    "sum",
    "concat",
    "resize",
    "identity",
    "zero",
    "scale_image",
    "gate",
    "blend",
}  # operators drawn as dots
SIGNS = {"sum": "+", "concat": "‖", "gate": "×", "blend": "±"}
LEGEND_NOTE = "numbers are channels; + sum, × product, ‖ join, ○ resize or pass; faded: training only"


@dataclass(frozen=True, kw_only=True)
class NodePlace:
    """Column (depth from the image), band (binary logarithm of the stride) and lane of a node."""

    column: int
    band: int
    lane: int


def draw_plan(plan: Plan, *, title: str, embedded: bool = False) -> str:
    """Return an SVG document of the whole plan; nodes that only training needs are faded.

    `embedded` leaves out what a page brings itself: style, background, heading, and the size.
    """
    places = arrange(plan)
    tops = _band_tops(places)
    colours = _colours(plan)
    width = max(MIN_WIDTH, LEFT + COLUMN * (2 + max(place.column for place in places.values())))
    bottom = max(tops.values()) + LANE * lanes_per_band(places)[max(tops)] + BAND_GAP
    legend, legend_height = _legend(colours, top=bottom + 10, width=width)
    height = bottom + legend_height + 20
    parts = [
        *_bands(places, tops, width),
        *_edges(plan, places, tops),
        *_nodes(plan, places, tops, colours),
        *legend,
    ]
    if embedded:
        least = max(min(width, FULL_WIDTH), round(MIN_SCALE * width))
        return element(
            "svg",
            "\n".join(parts),
            viewBox=f"0 {TOP - 8} {width} {height - TOP + 8}",
            style=f"min-width:{least}px;max-width:{width}px",
            role="img",
            aria_label=title,
        )
    return svg_file(parts, title=title, subtitle=_sizes(plan), width=width, height=height)


def arrange(plan: Plan) -> dict[str, NodePlace]:
    """Place every node: it stays in its first input's lane where that is free, else in the nearest free one."""
    places = {IMAGE: NodePlace(column=0, band=0, lane=0)}
    taken: set[tuple[int, int, int]] = {(0, 0, 0)}
    for node in plan.nodes:
        column = 1 + max(places[name].column for name in node.inputs)
        band = max(0, round(math.log2(plan.image.height / plan.shape(node.name).height)))
        near = [places[name].lane for name in node.inputs if places[name].band == band]
        lane = _free_lane(taken, column, band, wanted=near[0] if near else 0)
        taken.add((column, band, lane))
        places[node.name] = NodePlace(column=column, band=band, lane=lane)
    return places


def lanes_per_band(places: dict[str, NodePlace]) -> dict[int, int]:
    """Return how many lanes each band needs, bands in order of stride."""
    lanes: dict[int, int] = {}
    for place in places.values():
        lanes[place.band] = max(lanes.get(place.band, 0), place.lane + 1)
    return dict(sorted(lanes.items()))


def _free_lane(taken: set[tuple[int, int, int]], column: int, band: int, *, wanted: int) -> int:
    for distance in range(10_000):
        for lane in (wanted - distance, wanted + distance):
            if lane >= 0 and (column, band, lane) not in taken:
                return lane
    raise ValueError("a plan with ten thousand parallel nodes cannot be drawn")


def _sizes(plan: Plan) -> str:
    sizes = count(plan)
    return (
        f"{amount(sizes.macs)} multiply-accumulates at {plan.image.height}x{plan.image.width}, "
        f"{amount(sizes.params)} parameters"
    )


def _bands(places: dict[str, NodePlace], tops: dict[int, int], width: int) -> Iterator[str]:
    for band, lanes in lanes_per_band(places).items():
        height = LANE * lanes + BAND_GAP // 2
        yield element("rect", kind="band", x=8, y=tops[band] - 4, width=width - 16, height=height, rx=6)
        name = "image" if band == 0 else "pooled" if band > DEEPEST_BAND else f"1/{2**band}"
        yield text(18, tops[band] + 14, name, size=12)


def _edges(plan: Plan, places: dict[str, NodePlace], tops: dict[int, int]) -> Iterator[str]:
    deployed = {node.name for node in plan.deployed().nodes}
    for node in plan.nodes:
        end_x, end_y = _centre(places[node.name], tops)
        for name in node.inputs:
            start_x, start_y = _centre(places[name], tops)
            bend = max(14, (end_x - start_x) * 0.45)
            yield element(
                "path",
                kind="edge" if node.name in deployed else "edge aux",
                d=f"M{start_x} {start_y}C{start_x + bend:.0f} {start_y} {end_x - bend:.0f} {end_y} {end_x} {end_y}",
            )


def _nodes(
    plan: Plan, places: dict[str, NodePlace], tops: dict[int, int], colours: dict[str, str]
) -> Iterator[str]:
    deployed = {node.name for node in plan.deployed().nodes}
    x, y = _centre(places[IMAGE], tops)
    yield element("circle", tip(f"image {plan.image}"), kind="dot", cx=x, cy=y, r=6)
    for node in plan.nodes:
        x, y = _centre(places[node.name], tops)
        parts = [*_node(plan, node, x, y, colours), tip(_facts(plan, node))]
        yield element("g", *parts, kind="" if node.name in deployed else "aux")


def _node(plan: Plan, node: Node, x: int, y: int, colours: dict[str, str]) -> Iterator[str]:
    output = next((output for output, name in plan.outputs.items() if name == node.name), "")
    if _operator(node) in DOTS:
        yield element("circle", kind="dot", cx=x, cy=y, r=7)
        yield text(x, y + 3.5, SIGNS.get(_operator(node), ""), kind="ink", size=10, text_anchor="middle")
        if output:
            yield text(x + 12, y + 4, output, size=10)
    else:
        yield element(
            "rect",
            x=x - BOX_WIDTH // 2,
            y=y - BOX_HEIGHT // 2,
            width=BOX_WIDTH,
            height=BOX_HEIGHT,
            rx=4,
            fill=colours[_described(node)],
        )
        inside = output or str(plan.shape(node.name).channels)
        yield text(x, y + 3.5, inside, kind="", size=10, text_anchor="middle", fill="#14171a")


def _facts(plan: Plan, node: Node) -> str:
    call, shape = plan.call(node.name), plan.shape(node.name)
    return (
        f"{node.name}: {_described(node)}, {shape.channels}x{shape.height}x{shape.width}, stride {node.stride}, "
        f"{call.macs() / 1e6:.1f} MMACs, {call.params()} parameters"
    )


def _legend(colours: dict[str, str], *, top: int, width: int) -> tuple[list[str], int]:
    """Return the legend and its height."""
    parts, x, y = [], 16, top
    for name, colour in colours.items():
        entry_width = 30 + LETTER_PIXELS * len(name)
        if x + entry_width > width - 16:
            x, y = 16, y + 22
        parts.append(element("rect", x=x, y=y, width=16, height=12, rx=3, fill=colour))
        parts.append(text(x + 22, y + 10, name, kind="ink", size=12))
        x += entry_width
    parts.append(text(16, y + 32, LEGEND_NOTE))
    return parts, y + 40 - top


def _colours(plan: Plan) -> dict[str, str]:
    names = dict.fromkeys(_described(node) for node in plan.nodes if _operator(node) not in DOTS)
    return {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}


def _band_tops(places: dict[str, NodePlace]) -> dict[int, int]:
    tops, y = {}, TOP
    for band, lanes in lanes_per_band(places).items():
        tops[band] = y
        y += LANE * lanes + BAND_GAP
    return tops


def _centre(place: NodePlace, tops: dict[int, int]) -> tuple[int, int]:
    return LEFT + COLUMN * place.column, tops[place.band] + LANE * place.lane + LANE // 2 - 2


def _operator(node: Node) -> str:
    return OPERATORS.name_of(type(node.op))


def _described(node: Node) -> str:
    """Name an operator with the settings that matter to a reader: kernel, dilation, expansion, groups, repeats."""
    parts = [_operator(node).replace("_", " ")]
    kernel = getattr(node.op, "kernel", None)
    if kernel:
        parts.append(f"{kernel}x{kernel}")
    for field, sign in (("dilation", "d"), ("expansion", "e"), ("groups", "g"), ("repeats", "x")):
        value = getattr(node.op, field, 1)
        if value != 1:
            parts.append(f"{sign}{value}" if value else "depthwise")
    return " ".join(parts)
