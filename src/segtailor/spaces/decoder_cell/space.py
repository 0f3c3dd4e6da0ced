"""Decisions and plans of the family (paper, section 3): 19 decisions in the controller's order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, ClassVar

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import OpCall, Plan, PlanBuilder, Shape
from segtailor.core.registry import SPACES
from segtailor.core.space import Decision, Picks, check_picks
from segtailor.spaces.decoder_cell.architecture import (
    BLOCKS,
    BRANCHES,
    OPERATIONS,
    TAPS,
    Auxiliary,
    DecoderCellArchitecture,
    Pair,
)
from segtailor.spaces.decoder_cell.decoder import dormant, write_decoder
from segtailor.spaces.decoder_cell.encoders import Tap, check_name, encoder
from segtailor.spaces.decoder_cell.sequence import flatten, unflatten

if TYPE_CHECKING:
    from segtailor.nets.network import Network
    from segtailor.nets.weights import NameMap

FRAME = ("encoder", "channels", "repeats", "auxiliary")  # fixed for the whole space
STRIDES = (4, 8, 16, 32)  # of the taps
CONNECTIONS_AT = 14  # where the flat form has the connections, which are decided first


@SPACES.register("decoder_cell")
@dataclass(frozen=True, kw_only=True)
class DecoderCell:
    """Block inputs and one cell on a given encoder; the defaults are the frame of final training."""

    encoder: str = "mobilenet_v2"
    channels: int = 64
    repeats: int = 2
    auxiliary: Auxiliary = "cell"

    architecture_type: ClassVar[type] = DecoderCellArchitecture

    def __post_init__(self) -> None:
        check_name(self.encoder)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Two inputs per block, the cell's first operation, then two inputs and two operations per branch."""
        rows = [
            _decision(f"block{block}_input{slot}", TAPS + block) for block in range(BLOCKS) for slot in (0, 1)
        ]
        rows.append(_decision("first_op"))
        for branch in range(BRANCHES):
            rows += [_decision(f"branch{branch}_input{slot}", 3 * branch + 2) for slot in (0, 1)]
            rows += [_decision(f"branch{branch}_op{slot}") for slot in (0, 1)]
        return tuple(rows)

    def architecture(self, picks: Picks) -> DecoderCellArchitecture:
        """Decode picks."""
        check_picks(self.decisions, picks)
        values = [picks[decision.name] for decision in self.decisions]
        connections, cell = values[: 2 * BLOCKS], values[2 * BLOCKS :]
        return unflatten([0, *cell, *connections], **self._frame())

    def picks(self, arch: DecoderCellArchitecture) -> Picks:
        """Encode an architecture that has this space's frame."""
        for field, value in self._frame().items():
            if getattr(arch, field) != value:
                raise InvalidArchitecture(
                    f"{field}: {getattr(arch, field)!r}; this space has {value!r}. Use a space of that {field}."
                )
        values = flatten(arch)
        ordered = values[CONNECTIONS_AT:] + values[1:CONNECTIONS_AT]
        return {decision.name: value for decision, value in zip(self.decisions, ordered, strict=True)}

    def plan(self, arch: DecoderCellArchitecture, image: Shape, classes: int) -> Plan:
        """Write the layers: encoder, adaptations, blocks, head, auxiliary outputs."""
        build = PlanBuilder(image)
        taps = encoder(arch.encoder).write(build)
        _check_taps(arch.encoder, build, taps)
        outputs = write_decoder(build, arch, taps, classes)
        return build.plan(outputs=outputs, align_corners=False, dormant=dormant(arch))

    def calls(self, image: Shape, classes: int) -> Iterator[OpCall]:
        """Yield every call of any plan, once."""
        seen: set[OpCall] = set()
        for arch in self._covering():
            for call in self.plan(arch, image, classes).calls:
                if call not in seen:
                    seen.add(call)
                    yield call

    @staticmethod
    def published_names(network: Network, arch: DecoderCellArchitecture) -> NameMap:
        """Return how the reference project names the weights of this network."""
        from segtailor.spaces.decoder_cell.names import published_names

        return published_names(network, arch)

    def _frame(self) -> dict[str, object]:
        return {field: getattr(self, field) for field in FRAME}

    def _covering(self) -> Iterator[DecoderCellArchitecture]:
        """Yield architectures that together make every call: calls depend on operation and resolutions only."""
        everywhere = [(0, 1), (2, 3), (2, 3)]
        for read in range(BRANCHES + 1):  # cells that collect four, three, two, one entries
            yield self._probe(everywhere, read)
        for first, second in product(range(TAPS), repeat=2):
            yield self._probe([(first, second), (4, 4), (5, 5)])  # one block reaches the head
            yield self._probe([(first, first), (4, 4), (second, second)])  # two
            for third in range(TAPS):
                yield self._probe([(first, first), (second, second), (third, third)])

    def _probe(self, connections: list[Pair], read: int = 0) -> DecoderCellArchitecture:
        """Build an architecture whose first `read` branches read the newest sum; operations differ with `read`."""
        names = range(7 * read, 7 * read + 7)
        first, *others = (index % len(OPERATIONS) for index in names)
        cell = [first]
        for branch in range(BRANCHES):
            newest = 3 * branch + 1 if branch < read else 0
            cell += [newest, newest, others[2 * branch], others[2 * branch + 1]]
        flat = [0, *cell, *(index for inputs in connections for index in inputs)]
        return replace(unflatten(flat, **self._frame()), auxiliary="none")


SEARCH_FORM = DecoderCell(channels=48, repeats=1)  # what the paper searches with


def final_form(
    arch: DecoderCellArchitecture, *, channels: int = 64, repeats: int = 2
) -> DecoderCellArchitecture:
    """Return a found architecture in the frame of final training."""
    return replace(arch, channels=channels, repeats=repeats)


def _check_taps(name: str, build: PlanBuilder, taps: Sequence[Tap]) -> None:
    """Refuse an encoder that does not give four maps at strides 4, 8, 16 and 32: blocks count on both."""
    strides = [tap.stride for tap in taps]
    sizes = [build.shape(tap.node)[1:] for tap in taps]
    wanted = [build.image.halved(1, stride)[1:] for stride in STRIDES]
    if strides != list(STRIDES) or sizes != wanted:
        raise InvalidArchitecture(
            f"encoder '{name}': its taps are {sizes} at strides {strides} for an image of {build.image.height}x"
            f"{build.image.width}; the decoder needs {wanted} at {list(STRIDES)}. Tap other layers."
        )


def _decision(name: str, entries: int = 0) -> Decision:
    """Return a choice among `entries` pool entries, or among the operations."""
    if entries:
        return Decision(name=name, options=tuple(range(entries)), group="path")
    return Decision(name=name, options=OPERATIONS, group="op")
