"""A plan as SVG: time runs to the right, resolution falls downwards, colour tells the operator."""

from __future__ import annotations

from segtailor.core.plan import IMAGE, OPERATORS, Node, Plan, count
from segtailor.core.text import escaped
from segtailor.report.layout import NodePlace, arrange, lanes_per_band
from segtailor.report.numbers import amount

COLUMN, LANE, BAND_GAP = 40, 26, 16  # pixels
BOX_WIDTH, BOX_HEIGHT = 30, 18
LEFT, TOP = 76, 64
DEEPEST = 7  # bands below 1/128 hold pooled maps
SMALL = {"sum", "concat", "resize", "identity", "zero", "scale_image", "gate", "blend"}  # drawn as dots
COLOURS = (
    "#4477aa",
    "#ee6677",
    "#228833",
    "#ccbb44",
    "#66ccee",
    "#aa3377",
    "#ee8866",
    "#44bb99",
    "#99ddff",
    "#bbcc33",
    "#ffaabb",
    "#dddddd",
)  # fmt: skip - two colour-blind safe schemes by Paul Tol
STYLE = """
  .page { fill: #ffffff } .ink { fill: #1b1f24 } .soft { fill: #5b6570 } .band { fill: #f3f5f7 }
  .edge { fill: none; stroke: #9aa4ae; stroke-width: 1.1 } .aux { opacity: 0.45 }
  .dot { fill: #ffffff; stroke: #5b6570; stroke-width: 1.2 } text { font-family: system-ui, sans-serif }
  @media (prefers-color-scheme: dark) {
    .page { fill: #14171a } .ink { fill: #e8ebee } .soft { fill: #9aa4ae } .band { fill: #1d2226 }
    .edge { stroke: #59636d } .dot { fill: #14171a; stroke: #9aa4ae }
  }
"""


def draw_plan(plan: Plan, *, title: str, embedded: bool = False) -> str:
    """Return an SVG document of the whole plan; nodes that only training needs are faded.

    `embedded` leaves out what a page around it provides: style, background and heading.
    """
    places = arrange(plan)
    tops = _band_tops(places)
    colours = _colours(plan)
    width = LEFT + COLUMN * (2 + max(place.column for place in places.values()))
    width = max(width, 560)
    bottom = max(tops.values()) + LANE * lanes_per_band(places)[max(tops)] + BAND_GAP
    legend, legend_height = _legend(colours, top=bottom + 10, width=width)
    top, height = (
        (TOP - 8, bottom + legend_height + 20 - TOP + 8) if embedded else (0, bottom + legend_height + 20)
    )
    name = "" if embedded else 'xmlns="http://www.w3.org/2000/svg" '
    parts = [
        f'<svg {name}viewBox="0 {top} {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{escaped(title)}">',
        *([] if embedded else [f"<style>{STYLE}</style>", '<rect class="page" width="100%" height="100%"/>']),
        *([] if embedded else _heading(plan, title)),
        *_bands(places, tops, width),
        *_edges(plan, places, tops),
        *_nodes(plan, places, tops, colours),
        *legend,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _heading(plan: Plan, title: str) -> list[str]:
    sizes = count(plan)
    facts = (
        f"{amount(sizes.macs)} multiply-accumulates at {plan.image.height}x{plan.image.width}, "
        f"{amount(sizes.params)} parameters"
    )
    return [
        f'<text class="ink" x="16" y="26" font-size="17" font-weight="600">{escaped(title)}</text>',
        f'<text class="soft" x="16" y="46" font-size="12">{facts}</text>',
    ]


def _bands(places: dict[str, NodePlace], tops: dict[int, int], width: int) -> list[str]:
    rows = []
    for band, lanes in lanes_per_band(places).items():
        height = LANE * lanes + BAND_GAP // 2
        rows.append(
            f'<rect class="band" x="8" y="{tops[band] - 4}" width="{width - 16}" height="{height}" rx="6"/>'
        )
        label = "image" if band == 0 else "pooled" if band > DEEPEST else f"1/{2**band}"
        rows.append(f'<text class="soft" x="18" y="{tops[band] + 14}" font-size="12">{label}</text>')
    return rows


def _edges(plan: Plan, places: dict[str, NodePlace], tops: dict[int, int]) -> list[str]:
    live = {node.name for node in plan.deployed().nodes}
    paths = []
    for node in plan.nodes:
        end_x, end_y = _centre(places[node.name], tops)
        for name in node.inputs:
            start_x, start_y = _centre(places[name], tops)
            bend = max(14, (end_x - start_x) * 0.45)
            faded = "" if node.name in live else " aux"
            paths.append(
                f'<path class="edge{faded}" d="M{start_x} {start_y}C{start_x + bend:.0f} {start_y} '
                f'{end_x - bend:.0f} {end_y} {end_x} {end_y}"/>'
            )
    return paths


def _nodes(
    plan: Plan, places: dict[str, NodePlace], tops: dict[int, int], colours: dict[str, str]
) -> list[str]:
    live = {node.name for node in plan.deployed().nodes}
    x, y = _centre(places[IMAGE], tops)
    parts = [f'<circle class="dot" cx="{x}" cy="{y}" r="6"><title>image {plan.image}</title></circle>']
    for node in plan.nodes:
        x, y = _centre(places[node.name], tops)
        faded = "" if node.name in live else ' class="aux"'
        parts.append(f"<g{faded}>{_mark(plan, node, x, y, colours)}<title>{_hint(plan, node)}</title></g>")
    return parts


def _mark(plan: Plan, node: Node, x: int, y: int, colours: dict[str, str]) -> str:
    kind = _kind(node)
    output = escaped(next((output for output, name in plan.outputs.items() if name == node.name), ""))
    if kind in SMALL:
        text = {"sum": "+", "concat": "‖", "gate": "×", "blend": "±"}.get(kind, "")
        after = (
            f'<text class="soft" x="{x + 12}" y="{y + 4}" font-size="10">{output}</text>' if output else ""
        )
        return (
            f'<circle class="dot" cx="{x}" cy="{y}" r="7"/>'
            f'<text class="ink" x="{x}" y="{y + 3.5}" font-size="10" text-anchor="middle">{text}</text>{after}'
        )
    return (
        f'<rect x="{x - BOX_WIDTH // 2}" y="{y - BOX_HEIGHT // 2}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="4" '
        f'fill="{colours[_label(node)]}"/><text x="{x}" y="{y + 3.5}" font-size="10" text-anchor="middle" '
        f'fill="#14171a">{output or plan.shape(node.name).channels}</text>'
    )


def _hint(plan: Plan, node: Node) -> str:
    call, shape = plan.call(node.name), plan.shape(node.name)
    return escaped(
        f"{node.name}: {_label(node)}, {shape.channels}x{shape.height}x{shape.width}, stride {node.stride}, "
        f"{call.macs() / 1e6:.1f} MMACs, {call.params()} parameters"
    )


def _legend(colours: dict[str, str], *, top: int, width: int) -> tuple[list[str], int]:
    parts, x, y = [], 16, top
    for label, colour in colours.items():
        need = 30 + 7 * len(label)
        if x + need > width - 16:
            x, y = 16, y + 22
        parts.append(f'<rect x="{x}" y="{y}" width="16" height="12" rx="3" fill="{colour}"/>')
        parts.append(f'<text class="ink" x="{x + 22}" y="{y + 10}" font-size="12">{escaped(label)}</text>')
        x += need
    note = "numbers are channels; + sum, × product, ‖ join, ○ resize or pass; faded: training only"
    parts.append(f'<text class="soft" x="16" y="{y + 32}" font-size="11">{note}</text>')
    return parts, y + 40 - top


def _colours(plan: Plan) -> dict[str, str]:
    labels = dict.fromkeys(_label(node) for node in plan.nodes if _kind(node) not in SMALL)
    return {label: COLOURS[index % len(COLOURS)] for index, label in enumerate(labels)}


def _band_tops(places: dict[str, NodePlace]) -> dict[int, int]:
    tops, y = {}, TOP
    for band, lanes in lanes_per_band(places).items():
        tops[band] = y
        y += LANE * lanes + BAND_GAP
    return tops


def _centre(place: NodePlace, tops: dict[int, int]) -> tuple[int, int]:
    return LEFT + COLUMN * place.column, tops[place.band] + LANE * place.lane + LANE // 2 - 2


def _kind(node: Node) -> str:
    return OPERATORS.name_of(type(node.op))


def _label(node: Node) -> str:
    """Name an operator with the settings that matter to a reader: kernel, dilation, repeats, expansion."""
    parts = [_kind(node).replace("_", " ")]
    kernel = getattr(node.op, "kernel", None)
    if kernel:
        parts.append(f"{kernel}x{kernel}")
    for field, sign in (("dilation", "d"), ("expansion", "e"), ("groups", "g"), ("repeats", "x")):
        value = getattr(node.op, field, 1)
        if value != 1:
            parts.append(f"{sign}{value}" if value else "depthwise")
    return " ".join(parts)
