"""`segtailor show`: describe a network without building it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from segtailor.core.atomic import write_text
from segtailor.core.ownership import is_drawing, marked_svg, refuse_overwrite
from segtailor.core.plan import Plan
from segtailor.core.registry import OPERATORS
from segtailor.core.space import Architecture, family_of
from segtailor.spaces.networks import COUNTING_SIZE, describe, expand, published_classes
from segtailor.verbs.options import Classes, Force, Json, Size
from segtailor.verbs.output import Printer, emit, note


def show_(
    name: str,
    /,
    *,
    image: Size = COUNTING_SIZE,
    classes: Classes | None = None,
    svg: Annotated[Path | None, Parameter(help="Write a drawing of the network to this file.")] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Describe a network: layers, multiply-accumulates, parameters, receptive field.

    Parameters
    ----------
    name:
        A published or shipped name (see `segtailor list architectures`, `baselines` and `weights`), or the path of an
        architecture file.
    image:
        Size HEIGHTxWIDTH at which to count.
    classes:
        Number of output channels; the published number when left out.
    """
    facts = describe(name, image=image, classes=classes)
    if svg is not None:
        draw(name, svg, image=image, classes=classes, force=force)
        note(f"wrote {svg}")
    emit(
        facts,
        lambda printer: _print(printer, facts, expand(name, image=image, classes=facts["classes"])),
        json=json,
    )


def draw(
    source: str | Path | Architecture,
    file: Path,
    *,
    image: tuple[int, int] = COUNTING_SIZE,
    classes: int | None = None,
    force: bool = False,
) -> None:
    """Draw a network as SVG; a file of that name that is no drawing of ours is replaced only by `force`."""
    from segtailor.report.drawing import draw_plan

    outputs = published_classes(source) if classes is None else classes
    plan = expand(source, image=image, classes=outputs)
    title = str(source) if isinstance(source, str | Path) else family_of(source)
    refuse_overwrite([(file, is_drawing)], force=force)
    write_text(file, marked_svg(draw_plan(plan, title=title)), what="drawing")


def _print(printer: Printer, facts: dict[str, Any], plan: Plan) -> None:
    rows = []
    for node in plan.nodes:
        call, shape = plan.call(node.name), plan.shape(node.name)
        size = f"{shape.channels}x{shape.height}x{shape.width}"
        kind = OPERATORS.name_of(type(node.op))
        inputs = (
            ", ".join(node.inputs) if len(node.inputs) < 4 else f"{node.inputs[0]}, ... {node.inputs[-1]}"
        )
        rows.append([node.name, kind, inputs, size, f"{call.macs() / 1e6:,.1f}", f"{call.params():,}"])
    printer.table(None, ["layer", "operator", "inputs", "output", ">MMACs", ">params"], rows)
    field = facts["receptive_field"]
    printer.say(
        "",
        f"{facts['name']}  {facts['family']}  {facts['fingerprint']}",
        f"{facts['macs'] / 1e9:,.3f} G multiply-accumulates at {facts['image'][0]}x{facts['image'][1]}, "
        f"{facts['params']:,} parameters ({facts['train_params']:,} in training), {facts['classes']} classes",
        f"output stride {facts['output_stride']:g}, "
        f"receptive field {'the whole image' if field is None else f'{math.ceil(field)} pixels'}",
    )
    for key, value in facts["published"].items():
        printer.say(f"  {key}: {value}")
