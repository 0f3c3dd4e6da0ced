"""Which table entries a space needs, most used first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random

from segtailor.core.plan import OPERATORS, OpCall, Plan, Shape
from segtailor.core.sampling import sample
from segtailor.core.space import Architecture, SearchSpace
from segtailor.costs.keys import parts

DRAWS = 200
PER_KIND = 12  # entries of each operator kind that come before everything else: what estimates lean on


def ranked_calls(
    space: SearchSpace, image: Shape, classes: int, *, examples: Iterable[Architecture] = (), seed: int = 0
) -> list[OpCall]:
    """Return every distinct entry of the space, ordered by use in random architectures and the given examples."""
    rng = Random(seed)
    uses: Counter[OpCall] = Counter()
    for arch in examples:
        uses.update(needed(space.plan(arch, image, classes)))
    for _ in range(DRAWS):
        uses.update(needed(space.plan(sample(space, rng), image, classes)))
    everything = dict.fromkeys(part for call in space.calls(image, classes) for part in parts(call))
    return _kinds_first(
        [*(call for call, _ in uses.most_common()), *(c for c in everything if c not in uses)]
    )


def needed(plan: Plan) -> list[OpCall]:
    """Return the entries that pricing a plan looks up, repeated as often as they are."""
    return [part for call in plan.calls for part in parts(call)]


def _kinds_first(ranked: Sequence[OpCall]) -> list[OpCall]:
    """Move the most used entries of each operator kind to the front, so that estimates have something to lean on."""
    counts: Counter[str] = Counter()
    front: list[OpCall] = []
    back: list[OpCall] = []
    for call in ranked:
        kind = OPERATORS.name_of(type(call.op))
        counts[kind] += 1
        (front if counts[kind] <= PER_KIND else back).append(call)
    return front + back
