"""Writes cells, blocks, head and auxiliary outputs into a plan (paper, section 3.2 and Figure 1; names are stable).

Two things follow the authors' program, not the text: each cell in a block is followed by a 1x1 convolution with norm
and ReLU, and the cell's first operation is collected like a branch sum. The published parameter counts need both.
"""

from __future__ import annotations

from segtailor.core.plan import Operator, PlanBuilder
from segtailor.ops import Concat, Conv, Sum
from segtailor.spaces.decoder_cell.architecture import Cell, DecoderCellArchitecture
from segtailor.spaces.decoder_cell.encoders import Tap
from segtailor.spaces.decoder_cell.operations import operator

CLASSIFIER = Conv(norm=False, bias=True, activation="none")
POINT = Conv(kernel=1)


def write_decoder(
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


def dormant(arch: DecoderCellArchitecture) -> frozenset[str]:
    """Return the adaptations that no block reads: part of published networks, their counts and checkpoints."""
    read = {index for inputs in arch.connections for index in inputs}
    return frozenset(f"adapt{index}" for index in range(4) if index not in read)


def _cell(build: PlanBuilder, cell: Cell, name: str, source: str, *, repeats: int) -> str:
    pool = [source, build.add(f"{name}_node1", operator(cell.first, repeats), source)]
    for branch in cell.branches:
        at = len(pool)
        pair = [
            build.add(f"{name}_node{at + slot}", operator(operation, repeats), pool[index])
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
