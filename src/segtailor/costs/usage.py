"""Which table entries a space needs, most used first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random

from segtailor.core.plan import OpCall, Plan, Shape
from segtailor.core.space import Architecture, SearchSpace
from segtailor.core.variation import sample
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


def leaders(ranked: Sequence[OpCall], per_group: int = PER_GROUP) -> list[OpCall]:
    """Return the most used entries of each group, since estimates lean on them: first one of each, and so on."""
    places: Counter[str] = Counter()
    found: list[tuple[int, OpCall]] = []
    for call in ranked:
        group = group_of(call)
        if places[group] < per_group:
            found.append((places[group], call))
        places[group] += 1
    return [call for _, call in sorted(found, key=lambda item: item[0])]
