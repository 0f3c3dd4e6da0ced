"""A report as one HTML file: style, script, plots and pictures are inside, nothing is fetched, all text is escaped."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from segtailor.core.text import visible
from segtailor.report import figures, numbers, strips, views
from segtailor.report.comparison import Comparison
from segtailor.report.document import DrawnNetwork, Report
from segtailor.report.drawing import draw_plan

LEGIBLE = 0.55  # a drawing is never shown smaller than this share of its natural size; it scrolls instead
NARROW = 900  # pixels below which a drawing is not shrunk at all on a desk
MOST_STRIPS = 60
MOST_PICTURES = 4  # of a kind: the file stays below 2 MB
LONG_GROUP = 12  # facts that are set in two columns


def render(report: Report) -> str:
    """Return the page of one report."""
    return _page("report.html.j2", report.title, report.subtitle, views.sections(report), report=report)


def render_comparison(comparison: Comparison) -> str:
    """Return the page that compares runs."""
    return _page(
        "comparison.html.j2",
        comparison.title,
        comparison.subtitle,
        comparison.sections(),
        comparison=comparison,
    )


def _page(template: str, title: str, subtitle: str, sections: list[tuple[str, str]], **content: Any) -> str:
    script = _resource("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        _environment()
        .get_template(template)
        .render(
            title=title,
            subtitle=subtitle,
            sections=sections,
            style=Markup(_resource("style.css")),
            script=Markup(script),
            script_hash=f"sha256-{digest}",
            **content,
        )
    )


def _drawing(network: DrawnNetwork) -> Markup:
    """Draw a network that fills the page, but stays legible."""
    svg = draw_plan(network.plan, title=f"Drawing of {network.name}", embedded=True)
    found = re.search(r' width="(\d+)" height="\d+"', svg)
    width = int(found[1]) if found else NARROW
    least = max(min(width, NARROW), round(LEGIBLE * width))
    return Markup(
        re.sub(
            r' width="\d+" height="\d+"', f' style="min-width:{least}px;max-width:{width}px"', svg, count=1
        )
    )


def _resource(name: str) -> str:
    return resources.files("segtailor.report").joinpath("templates", name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    """Return the templates with all that they may call; what makes SVG escapes the text it is given."""
    made = Environment(
        loader=PackageLoader("segtailor.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    for write in (
        numbers.percent,
        numbers.milliseconds,
        numbers.amount,
        numbers.duration,
        numbers.size,
        numbers.significant,
    ):
        made.filters[write.__name__] = write
    for draw in (figures.front_plot, figures.line_chart, figures.trust_plot, strips.strip):
        made.globals[draw.__name__] = _marked(draw)
    for view in (
        views.network_facts, views.trust_facts, views.layer_facts, views.layer_rows, views.table_points,
        views.confusion_rows, views.largest_confusions, views.class_names,         strips.alike, numbers.share_of,
    ):  # fmt: skip
        made.globals[view.__name__] = view
    made.globals |= {
        "drawing": _drawing,
        "most_strips": MOST_STRIPS,
        "most_pictures": MOST_PICTURES,
        "long_group": LONG_GROUP,
        "most_rows": views.MOST_ROWS,
        "most_classes": views.MOST_CLASSES,
    }
    return made


def _shown(value: Any) -> Any:
    """Make a value that a template writes visible; what is markup has done so itself."""
    return visible(value, lines=True) if isinstance(value, str) and not isinstance(value, Markup) else value


def _marked(draw: Any) -> Any:
    def drawn(*values: Any) -> Markup:
        return Markup(draw(*values))

    return drawn
