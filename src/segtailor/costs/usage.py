"""Which table entries a space needs, most used first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random

from segtailor.core.plan import OpCall, Plan, Shape
from segtailor.core.sampling import sample
from segtailor.core.space import Architecture, SearchSpace
from segtailor.costs.estimate import group_of
from segtailor.costs.keys import parts

DRAWS = 200
PER_GROUP = 12  # entries of each group that come before everything else


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
    return _leaders_first(
        [*(call for call, _ in uses.most_common()), *(c for c in everything if c not in uses)]
    )


def needed(plan: Plan) -> list[OpCall]:
    """Return the entries that pricing a plan looks up, repeated as often as they are."""
    return [part for call in plan.calls for part in parts(call)]


def _leaders_first(ranked: Sequence[OpCall]) -> list[OpCall]:
    front = leaders(ranked)
    chosen = set(front)
    return front + [call for call in ranked if call not in chosen]


def leaders(ranked: Sequence[OpCall]) -> list[OpCall]:
    """Return the most used entries of each group: timed in any case, since estimates lean on them."""
    counts: Counter[str] = Counter()
    found = []
    for call in ranked:
        counts[group_of(call)] += 1
        if counts[group_of(call)] <= PER_GROUP:
            found.append(call)
    return found
