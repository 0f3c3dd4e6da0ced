"""Key names of the authors' checkpoints: `encoder.` and `decoder.`, both written from the plan's node names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from segtailor.spaces.decoder_cell.architecture import BLOCKS, TAPS, Cell, DecoderCellArchitecture, Operation
from segtailor.spaces.decoder_cell.encoders import LayerNames, encoder

if TYPE_CHECKING:
    from segtailor.nets.network import Network
    from segtailor.nets.weights import NameMap

POINT_PARTS = (("conv1", "0"), ("norm1", "1"))
CLASSIFIER_PARTS = (("conv1", ""),)
NORM_LEAVES = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def published_names(network: Network, arch: DecoderCellArchitecture) -> NameMap:
    """Return how the reference project names the weights of this network."""
    from segtailor.nets.weights import NameMap

    own_layout = next(iter(encoder(arch.encoder).layouts().values()))
    layers = [layer._replace(start=f"encoder.{layer.start}".rstrip(".")) for layer in own_layout.layers]
    layers += _decoder(arch)
    absent = {key for block in range(BLOCKS) for key in _keys(_auxiliary(arch, block))}
    names = key_map(layers, network.state_dict(), prefix="nodes.")
    return NameMap(names=names, droppable=absent.__contains__)


def key_map(
    layers: Iterable[LayerNames], own: Mapping[str, object], *, prefix: str = ""
) -> dict[str, tuple[str, ...]]:
    """Map our keys to those of a layout."""
    pairs: dict[str, tuple[str, ...]] = {}
    for layer in layers:
        for ours, theirs in layer.parts:
            start = f"{prefix}{layer.node}.{ours}."
            goal = "".join(f"{part}." for part in (layer.start, theirs) if part)
            pairs.update({key: (goal + key[len(start) :],) for key in own if key.startswith(start)})
    return pairs


def _decoder(arch: DecoderCellArchitecture) -> list[LayerNames]:
    layers = [LayerNames(f"adapt{tap}", f"decoder.adapt{tap + 1}", POINT_PARTS) for tap in range(TAPS)]
    for block in range(BLOCKS):
        start = f"decoder.cells.{block}"
        for side in (0, 1):
            layers += _cell(arch, f"block{block}_cell{side}", f"{start}.op_{side + 1}")
            layers.append(
                LayerNames(f"block{block}_point{side}", f"{start}.agg.branch_{side + 1}", POINT_PARTS)
            )
        layers += _auxiliary(arch, block)
    layers.append(LayerNames("head_point", "decoder.pre_clf", POINT_PARTS))
    layers.append(LayerNames("head", "decoder.conv_clf", CLASSIFIER_PARTS))
    return layers


def _auxiliary(arch: DecoderCellArchitecture, block: int) -> list[LayerNames]:
    """Name the train-only part behind a block."""
    start = f"decoder.aux_clfs.{block}"
    cell = _cell(arch, f"aux{block}_cell", f"{start}.aux_cell")
    return [*cell, LayerNames(f"aux{block}", f"{start}.aux_clf", CLASSIFIER_PARTS)]


def _keys(layers: Iterable[LayerNames]) -> Iterator[str]:
    """Yield every key that such layers may have, whether or not the network builds them."""
    for layer in layers:
        for ours, theirs in layer.parts:
            leaves = NORM_LEAVES if ours.startswith("norm") else ("weight", "bias")
            yield from (".".join(filter(None, (layer.start, theirs, leaf))) for leaf in leaves)


def _cell(arch: DecoderCellArchitecture, node: str, start: str) -> list[LayerNames]:
    """Name the operations: pool entry 1 is their slot 0, and so on."""
    return [
        LayerNames(f"{node}_node{entry}", f"{start}._ops.{entry - 1}", _parts(operation, arch.repeats))
        for entry, operation in _entries(arch.cell).items()
    ]


def _entries(cell: Cell) -> dict[int, Operation]:
    """Return the operations by pool entry."""
    entries = {1: cell.first}
    for number, branch in enumerate(cell.branches):
        entries |= {3 * number + 2 + slot: operation for slot, operation in enumerate(branch.operations)}
    return entries


def _parts(operation: Operation, repeats: int) -> list[tuple[str, str]]:
    if operation == "gap":
        return [("conv", "conv1x1.0"), ("norm", "conv1x1.1")]
    if operation.startswith("sep"):
        kinds = ("depth", "point", "norm")
        return [
            (f"{kind}{number + 1}", f"op.sep_{number}.{at}")
            for number in range(repeats)
            for at, kind in enumerate(kinds)
        ]
    return list(POINT_PARTS) if operation.startswith("conv") else []
