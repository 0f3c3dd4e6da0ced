"""Receptive field of a plan: how many image pixels one output pixel can see."""

from __future__ import annotations

from segtailor.core.plan import IMAGE, MAIN, Plan


def receptive_field(plan: Plan, output: str = MAIN) -> float:
    """Return the side, in image pixels, of what one pixel of `output` sees; infinite behind global pooling.

    Follows the widest path: each operator adds its extent minus one, in steps of its input's stride. Bilinear
    resizing adds at most one step more and is not counted.
    """
    fields: dict[str, float] = {IMAGE: 1}
    for node in plan.nodes:
        grown = plan.call(node.name).field() - 1
        reach = [
            fields[name] + (grown * plan.image.height / plan.shape(name).height if grown else 0)
            for name in node.inputs
        ]
        fields[node.name] = max(reach)
    return fields[plan.outputs[output]]
