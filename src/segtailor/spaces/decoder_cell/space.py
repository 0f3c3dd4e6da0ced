"""Decisions and plans of the family (paper, section 3 and Figure 1): 19 decisions in the controller's order.

Two layers of the decoder follow the authors' program, not the text: each cell in a block is followed by a 1x1
convolution with norm and ReLU, and the cell's first operation is collected like a branch sum. The published parameter
counts need both. Names of nodes are stable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, ClassVar

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import OpCall, Operator, Plan, PlanBuilder, Shape
from segtailor.core.space import Decision, Picks, check_picks
from segtailor.ops import Concat, Conv, Identity, PooledConv, Separable, Sum, Zero
from segtailor.spaces.decoder_cell.architecture import (
    BLOCKS,
    BRANCHES,
    OPERATIONS,
    TAPS,
    Auxiliary,
    Cell,
    DecoderCellArchitecture,
    Inputs,
    Operation,
    flatten,
    unflatten,
)
from segtailor.spaces.decoder_cell.encoders import Tap, check_name, encoder

if TYPE_CHECKING:
    from segtailor.nets.network import Network
    from segtailor.nets.weights import NameMap

FRAME = ("encoder", "channels", "repeats", "auxiliary")  # fixed for the whole space
STRIDES = (4, 8, 16, 32)  # of the taps
CONNECTIONS_AT = 14  # index of the connections in the flat form; they are decided first
CLASSIFIER = Conv(norm=False, bias=True, activation="none")
POINT = Conv(kernel=1)
# Operations of the cell (section 3.2): channels and size stay; norm and ReLU follow every kernel.
_PLAIN: dict[Operation, Operator] = {
    "conv1x1": Conv(kernel=1),
    "conv3x3": Conv(),
    "conv3x3_rate3": Conv(dilation=3),
    "conv3x3_rate12": Conv(dilation=12),
    # In training its norm sees one pixel per image, so PyTorch refuses a batch of one per device: as published.
    "gap": PooledConv(),
    "skip": Identity(),
    "zero": Zero(),
}
_SEPARABLE: dict[Operation, tuple[int, int]] = {  # kernel and dilation
    "sep3x3": (3, 1),
    "sep5x5": (5, 1),
    "sep3x3_rate3": (3, 3),
    "sep5x5_rate6": (5, 6),
}


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
        outputs = _write_decoder(build, arch, taps, classes)
        return build.plan(outputs=outputs, align_corners=False, dormant=_dormant(arch))

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

    def _probe(self, connections: list[Inputs], read: int = 0) -> DecoderCellArchitecture:
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


def _decision(name: str, entries: int = 0) -> Decision:
    """Return a choice among `entries` pool entries, or among the operations."""
    if entries:
        return Decision(name=name, options=tuple(range(entries)), group="path")
    return Decision(name=name, options=OPERATIONS, group="op")


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


def _write_decoder(
    build: PlanBuilder, arch: DecoderCellArchitecture, taps: tuple[Tap, ...], classes: int
) -> dict[str, str]:
    """Add everything after the encoder; return the outputs: `main`, and `aux0` to `aux2` where asked for."""
    pool = [
        Tap(build.add(f"adapt{index}", POINT, tap.node, channels=arch.channels), tap.stride)
        for index, tap in enumerate(taps)
    ]
    blocks: list[Tap] = []
    for number, (first, second) in enumerate(arch.connections):
        blocks.append(_block(build, arch, number, [pool[first], pool[second]]))
        pool.append(blocks[-1])
    outputs = {"main": _head(build, arch, [blocks[number] for number in arch.collected], classes)}
    if arch.auxiliary != "none":
        for number, block in enumerate(blocks):
            outputs[f"aux{number}"] = _auxiliary(build, arch, f"aux{number}", block.node, classes)
    return outputs


def _dormant(arch: DecoderCellArchitecture) -> frozenset[str]:
    """Return the adaptations that no block reads: part of published networks, their counts and checkpoints."""
    read = {index for inputs in arch.connections for index in inputs}
    return frozenset(f"adapt{index}" for index in range(4) if index not in read)


def _cell(build: PlanBuilder, cell: Cell, name: str, source: str, *, repeats: int) -> str:
    pool = [source, build.add(f"{name}_node1", _operator(cell.first, repeats), source)]
    for branch in cell.branches:
        at = len(pool)
        pair = [
            build.add(f"{name}_node{at + slot}", _operator(operation, repeats), pool[index])
            for slot, (index, operation) in enumerate(zip(branch.inputs, branch.operations, strict=True))
        ]
        pool += [*pair, build.add(f"{name}_node{at + 2}", Sum(), *pair)]
    collected = [pool[index] for index in cell.collected]
    return collected[0] if len(collected) == 1 else build.add(f"{name}_out", Sum(), *collected)


def _block(build: PlanBuilder, arch: DecoderCellArchitecture, number: int, inputs: list[Tap]) -> Tap:
    sides = []
    for side, source in enumerate(inputs):
        name = f"block{number}_cell{side}"
        worked = _cell(build, arch.cell, name, source.node, repeats=arch.repeats)
        sides.append(Tap(build.add(f"block{number}_point{side}", POINT, worked), source.stride))
    return _join(build, f"block{number}_sum", Sum(like=_larger(sides)), sides)


def _head(build: PlanBuilder, arch: DecoderCellArchitecture, blocks: list[Tap], classes: int) -> str:
    joined = blocks[0]
    for number, block in enumerate(
        blocks[1:], start=1
    ):  # one by one: a map may be resized twice, as published
        pair = [joined, block]
        joined = _join(build, f"head_concat{number}", Concat(like=_larger(pair)), pair)
    reduced = build.add("head_point", POINT, joined.node, channels=arch.channels)
    return build.add("head", CLASSIFIER, reduced, channels=classes)


def _auxiliary(
    build: PlanBuilder, arch: DecoderCellArchitecture, name: str, source: str, classes: int
) -> str:
    if arch.auxiliary == "cell":
        source = _cell(build, arch.cell, f"{name}_cell", source, repeats=arch.repeats)
    return build.add(name, CLASSIFIER, source, channels=classes)


def _larger(pair: list[Tap]) -> int:
    """Tell which map is larger, by stride: sizes round up alike, so that holds at every image size."""
    return 0 if pair[0].stride <= pair[1].stride else 1


def _join(build: PlanBuilder, name: str, op: Operator, pair: list[Tap]) -> Tap:
    width = build.shape(pair[0].node).channels
    if isinstance(op, Concat):
        width += build.shape(pair[1].node).channels
    node = build.add(name, op, *(tap.node for tap in pair), channels=width)
    return Tap(node, min(tap.stride for tap in pair))


def _operator(operation: Operation, repeats: int) -> Operator:
    """Return the operator; `repeats` applies to separable convolutions alone."""
    if operation in _SEPARABLE:
        kernel, dilation = _SEPARABLE[operation]
        return Separable(kernel=kernel, dilation=dilation, repeats=repeats)
    return _PLAIN[operation]
