"""How the family grows: start and the ten operations of LPS-Net's expansion (section 3.4, Table 4)."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.variation import Coordinates, Direction, Growth
from segtailor.spaces.scalable_path.architecture import STAGES, ScalablePathArchitecture

START_DEPTH = (1, 1, 1, 1, 1)
START_WIDTH = (4, 8, 16, 32, 32)
START_RATIO = Fraction(1, 2)
DEPTHS = ((0, 1, 1, 1, 1), (0, 0, 1, 1, 1), (0, 0, 0, 1, 1))
WIDTHS = ((4, 8, 16, 32, 32), (0, 8, 16, 32, 32), (0, 0, 16, 32, 32), (0, 0, 0, 32, 32))
RATIO_STEP = Fraction(1, 8)


def growth(paths: int, make: Callable[..., ScalablePathArchitecture]) -> Growth:
    """Return the growth of networks with up to `paths` paths; `make` adds block and interaction.

    Ratios keep their positions while growing; the architecture drops zeros and sorts them.
    """
    directions = [_direction("depth", delta) for delta in DEPTHS]
    directions += [_direction("width", delta) for delta in WIDTHS]
    for path in range(paths):
        delta = tuple(RATIO_STEP if path == other else 0 for other in range(paths))
        directions.append(_direction("resolution", delta))

    def build(place: Coordinates) -> ScalablePathArchitecture:
        return make(
            depth=tuple(int(place[f"depth{stage}"]) for stage in range(STAGES)),
            width=tuple(int(place[f"width{stage}"]) for stage in range(STAGES)),
            resolution=tuple(Fraction(place[f"resolution{path}"]) for path in range(paths)),
        )

    def locate(arch: ScalablePathArchitecture) -> Coordinates:
        if len(arch.resolution) > paths:
            raise InvalidArchitecture(f"resolution: {len(arch.resolution)} paths; this space allows {paths}.")
        ratios = (*arch.resolution, *[Fraction(0)] * (paths - len(arch.resolution)))
        return _coordinates(arch.depth, arch.width, ratios)

    start = _coordinates(START_DEPTH, START_WIDTH, (START_RATIO, *[Fraction(0)] * (paths - 1)))
    return Growth(start=start, directions=tuple(directions), build=build, locate=locate)


def _direction(dimension: str, delta: tuple[int | Fraction, ...]) -> Direction:
    steps = {f"{dimension}{index}": step for index, step in enumerate(delta) if step}
    return Direction(name=f"{dimension} {{{','.join(map(str, delta))}}}", delta=steps)


def _coordinates(depth: tuple[int, ...], width: tuple[int, ...], ratios: tuple[Fraction, ...]) -> Coordinates:
    place: dict[str, int | Fraction] = {f"depth{stage}": value for stage, value in enumerate(depth)}
    place |= {f"width{stage}": value for stage, value in enumerate(width)}
    return place | {f"resolution{path}": value for path, value in enumerate(ratios)}
