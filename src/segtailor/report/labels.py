"""Names beside the points of a plot: each where it covers nothing, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from segtailor.report.document import Point
from segtailor.report.plotting import Frame, label

WIDTH, HEIGHT = 640, 340  # pixels of a usual plot; on a phone only the winner is named
LETTER, LINE = 6.6, 14  # pixels
LONGEST = 26  # letters of a name
SIDES = (("start", (8, 15)), ("end", (-8, -7)), ("start", (11, 4)), ("end", (-11, 4)), ("middle", (0, -12)))


class Box(NamedTuple):
    """A rectangle in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Tell whether the two overlap."""
        beside = self.right <= other.left or other.right <= self.left
        return not beside and self.bottom > other.top and other.bottom > self.top


def labelled(points: Sequence[Point], frame: Frame) -> list[str]:
    """Return the names of points, the last (foremost) first; one that finds no room is left to the pointer."""
    places = [frame.place(point.cost, 100 * point.quality) for point in points]
    taken = [_around(place) for place in places]
    found = []
    for point, place in reversed(list(zip(points, places, strict=True))):
        text = point.name if len(point.name) <= LONGEST else point.name[: LONGEST - 1] + "…"
        for anchor, shift in SIDES:
            box = _box(place, text, anchor, shift)
            inside = box.left >= 0 and box.right <= WIDTH and box.top >= 0
            own = _around(place)
            if inside and not any(box.meets(other) for other in taken if other != own):
                taken.append(box)
                kind = "major" if point.group == "winner" else "minor"
                found.append(f'<g class="{kind}">{label(place, text, anchor=anchor, shift=shift)}</g>')
                break
    return found


def _around(place: tuple[float, float]) -> Box:
    x, y = place[0] * WIDTH / 100, place[1] * HEIGHT / 100
    return Box(x - 7, y - 7, x + 7, y + 7)


def _box(place: tuple[float, float], text: str, anchor: str, shift: tuple[int, int]) -> Box:
    x, y = place[0] * WIDTH / 100 + shift[0], place[1] * HEIGHT / 100 + shift[1]
    wide = LETTER * len(text)
    left = {"start": x, "end": x - wide, "middle": x - wide / 2}[anchor]
    return Box(left, y - LINE + 3, left + wide, y + 3)
