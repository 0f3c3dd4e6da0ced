"""Carry weights from one network to another that need not have its shape.

Blocks are matched stage by stage, in order: a target stage takes the donor stage of similar width and level. Of wider
donors the most important channels are chosen, the same ones in all maps that share them; channels that the donor does
not have begin fresh, and carried layers do not read them at first. Kernels are cropped or embedded at their centre,
and residual blocks beyond the donor's depth begin as identity. Where nothing was narrowed, the target computes
what the donor computes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from segtailor.core.task import Preprocessing
from segtailor.nets.network import Network
from segtailor.nets.starts.layers import Layer, LayerBlock, LayerGraph, Stage, layer_graph

UNMATCHED_COST = 3.0  # of a target stage that takes nothing, in doublings of the width
LEVEL_COST = 0.5  # per halving by which the levels of two stages differ
SHARED_COST = 0.25  # of a donor stage that serves two target stages
MOSTLY = 0.5  # share of a parameter's values that come from the donor, for it to count as the donor's
LITTLE_CUT = 0.75  # share of the donor's values in its place that were taken, for it to do what it did there
NORM_FIELDS = ("weight", "bias", "running_mean", "running_var")
MIN_VARIANCE = 1e-12
FRESH_LOGITS = 0.1  # size of the kernels of logits that begin fresh, in that of usual random ones


@dataclass(frozen=True, kw_only=True)
class Carried:
    """What a network took over: the share of its parameters, and one line per node in words.

    `parameters` are those that are mostly the donor's, and for which little of the donor was cut away: they still do
    what they learnt, while others have to learn anew. `uncut` is their share.
    """

    share: float
    uncut: float
    parameters: frozenset[str]
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Donor:
    """A network to take weights from; `classes` are the names of its outputs, if they mean anything.

    `only` names the nodes that were trained, where that is not all of them (an encoder that needs some decoder).
    """

    network: Network
    preprocessing: Preprocessing
    classes: tuple[str, ...] = ()
    only: frozenset[str] | None = None


@torch.no_grad()
def carry_weights(
    donor: Donor, target: Network, *, preprocessing: Preprocessing, classes: Sequence[str] = ()
) -> Carried:
    """Copy what fits from `donor` into `target`, whose other weights stay as they are.

    `preprocessing` and `classes` are those that the target is trained with: the first layer is adapted to another
    normalisation (exactly, but for the padded border), and logits of classes with equal names are carried.
    """
    bands = target.plan.image.channels
    if donor.network.plan.image.channels != bands:
        donor = with_bands(donor, bands, preprocessing=preprocessing)
    transfer = _Transfer(donor, target, preprocessing=preprocessing, classes=classes)
    transfer.run()
    return transfer.report()


@torch.no_grad()
def quieten_fresh_logits(graph: LayerGraph, *, carried: Mapping[str | None, Tensor]) -> None:
    """Make the kernels of logits that begin fresh small: their errors would first spoil what was carried.

    `carried` says which rows of a kernel, by its key, are not fresh.
    """
    outputs = set(graph.outputs.values())
    for layer in graph.layers:
        if layer.conv is None or layer.writes not in outputs:
            continue
        kernel = layer.conv.weight
        fresh = ~carried.get(layer.conv_key, torch.zeros(len(kernel), dtype=torch.bool))
        if fresh.any():
            most = FRESH_LOGITS * (2 / kernel[0].numel()) ** 0.5
            size = kernel[fresh].square().mean().sqrt()
            kernel[fresh] *= min(1.0, most / max(float(size), most))


def with_bands(donor: Donor, bands: int, *, preprocessing: Preprocessing) -> Donor:
    """Return a donor whose first layers read images of another number of bands, normalised as the target's.

    One band takes the sum of the kernels of all channels; otherwise kernels are repeated in turn and scaled, so that
    images whose bands are equal give about the same maps as before.
    """
    plan, network = donor.network.plan, copy.deepcopy(donor.network)
    graph, known = layer_graph(network, only=donor.only), plan.image.channels
    for layer in graph.layers:
        if layer.conv is None or layer.reads != graph.image or layer.conv.weight.shape[1] != known:
            continue
        kernel = layer.conv.weight.detach()
        repeated = kernel[:, torch.arange(bands) % known] * (known / bands)
        changed = kernel.sum(1, keepdim=True) if bands == 1 else repeated
        layer.conv.weight, layer.conv.in_channels = nn.Parameter(changed.clone(), requires_grad=False), bands
    network.plan = replace(plan, image=plan.image._replace(channels=bands), _shapes={})
    return replace(donor, network=network, preprocessing=preprocessing)


@dataclass(eq=False)
class _Pair:
    """A target layer and the donor layer that it takes its weights from."""

    target: Layer
    donor: Layer


class _Transfer:
    def __init__(
        self, donor: Donor, target: Network, *, preprocessing: Preprocessing, classes: Sequence[str]
    ) -> None:
        self._donor, self._target = donor, target
        self._from, self._to = layer_graph(donor.network, only=donor.only), layer_graph(target)
        self._preprocessing = preprocessing
        self._state = target.state_dict()
        self._donor_state = donor.network.state_dict()
        self._taken: dict[str, int] = {}  # name of a parameter -> how many of its values come from the donor
        self._given_sizes: dict[
            str, int
        ] = {}  # name of a parameter -> how many values the donor has in its place
        self._zeros: dict[str, int] = {}  # name of a kernel -> how many zeros embed the donor's kernels in it
        self._spaces: dict[str, str] = {self._to.image: self._from.image}  # target space -> donor space
        self._maps: dict[str, Tensor] = {}  # target space -> donor channel of each channel, -1 for none
        self._importance = channel_importance(self._from)
        self._classes = tuple(classes)

    def run(self) -> None:
        identities: list[LayerBlock] = []
        expansions: list[tuple[Layer, LayerBlock]] = []
        if self._same_form():
            pairs = self._by_name(self._to.layers)
        else:
            pairs, identities, expansions = self._by_stage()
            matched = {id(pair.target) for pair in pairs}
            in_blocks = {id(layer) for layer in _block_layers(self._from)}
            rest = [layer for layer in self._to.layers if id(layer) not in matched]
            pairs += [pair for pair in self._by_name(rest) if id(pair.donor) not in in_blocks]
        self._bind(pairs, expansions)
        for pair in pairs:
            self._carry_layer(pair)
        for layer, block in expansions:
            self._identity_expansion(layer, block)
        for block in identities:
            self._silence(block)
        if self._same_form():
            self._carry_unknown_modules()
        if pairs:
            carried = {
                layer.conv_key: self._maps[layer.writes] >= 0
                for layer in self._to.layers
                if f"{layer.conv_key}.weight" in self._taken
            }
            quieten_fresh_logits(self._to, carried=carried)

    def report(self) -> Carried:
        sizes = {name: value.numel() for name, value in self._target.named_parameters()}
        taken = {name: count for name, count in self._taken.items() if name in sizes}
        share = sum(taken.values()) / max(1, sum(sizes.values()))
        mostly = frozenset(
            name
            for name, count in taken.items()
            if count + self._zeros.get(name, 0) > MOSTLY * sizes[name]
            and count >= LITTLE_CUT * self._given_sizes.get(name, 0)
        )
        uncut = sum(sizes[name] for name in mostly) / max(1, sum(sizes.values()))
        return Carried(share=share, uncut=uncut, parameters=mostly, lines=tuple(self._lines(sizes, taken)))

    def _lines(self, sizes: Mapping[str, int], taken: Mapping[str, int]) -> Iterable[str]:
        for node in self._target.plan.nodes:
            names = [name for name in sizes if name.startswith(f"nodes.{node.name}.")]
            total = sum(sizes[name] for name in names)
            if total:
                share = sum(taken.get(name, 0) for name in names) / total
                words = "fresh" if share == 0 else "carried whole" if share == 1 else f"{share:.0%} carried"
                yield f"{node.name}: {words}"

    def _same_form(self) -> bool:
        """Whether both networks have the same nodes, of whatever width."""
        if self._donor.only is not None:
            return False
        one, other = self._donor.network.plan, self._target.plan
        names = {node.name: (type(node.op), node.inputs) for node in one.nodes}
        return all(names.get(node.name) == (type(node.op), node.inputs) for node in other.nodes)

    def _by_name(self, layers: Iterable[Layer]) -> list[_Pair]:
        known = {_layer_key(layer): layer for layer in self._from.layers}
        found = ((layer, known.get(_layer_key(layer))) for layer in layers)
        return [
            _Pair(layer, donor)
            for layer, donor in found
            if donor is not None and donor.depthwise == layer.depthwise
        ]

    def _by_stage(self) -> tuple[list[_Pair], list[LayerBlock], list[tuple[Layer, LayerBlock]]]:
        """Match blocks; also return those that begin as identity, and expansions that the donor does not have."""
        pairs, identities, expansions = [], [], []
        reached = {self._to.image}  # spaces that hold what the donor computes: other branches begin there
        for number, branch in enumerate(self._to.branches):
            if not self._from.branches or branch[0].blocks[0].reads not in reached:
                continue
            source = self._from.branches[min(number, len(self._from.branches) - 1)]
            for block, model, extra in _matched_blocks(branch, source):
                if "expand" in model.layers and "expand" not in block.layers:
                    continue  # a separable convolution reads other channels than the donor's kernels were made for
                reached.add(block.writes)
                for role, layer in block.layers.items():
                    if role in model.layers:
                        pairs.append(_Pair(layer, model.layers[role]))
                    elif role == "expand" and "depth" in model.layers:
                        expansions.append((layer, model))
                if extra and block.residual:
                    identities.append(block)
        return pairs, identities, expansions

    def _bind(self, pairs: Sequence[_Pair], expansions: Sequence[tuple[Layer, LayerBlock]]) -> None:
        """Decide which donor channels every space of the target has."""
        for name, space in self._to.outputs.items():
            given = self._from.outputs.get(name)
            if given is not None:
                self._spaces[space] = given
                self._maps[space] = self._class_map(space, given)
        for pair in pairs:
            self._spaces.setdefault(pair.target.writes, pair.donor.writes)
        for layer, model in expansions:
            self._spaces.setdefault(layer.writes, model.layers["depth"].reads)
        if self._same_form():  # also what modules of an unknown form compute, which are copied as they are
            for node, space in self._to.nodes.items():
                given = self._from.nodes[node]
                if self._to.widths[space] == self._from.widths[given]:
                    self._spaces.setdefault(space, given)
        for space, parts in self._to.joins.items():
            given_join = self._from.joins.get(space)
            if given_join is not None and len(given_join) == len(parts):
                self._spaces.setdefault(space, space)

    def _class_map(self, space: str, given: str) -> Tensor:
        wanted, known = self._to.widths[space], self._from.widths[given]
        if not self._classes or not self._donor.classes:
            same = wanted == known and self._same_form() and not self._classes and not self._donor.classes
            return torch.arange(wanted) if same else torch.full((wanted,), -1)
        places = {name.casefold(): place for place, name in enumerate(self._donor.classes)}
        return torch.tensor([places.get(name.casefold(), -1) for name in self._classes])

    def _map(self, space: str, *, donor_space: str) -> Tensor | None:
        """Return the donor channel of every channel of a space, if it stands for `donor_space`."""
        if self._spaces.get(space) != donor_space:
            return None
        if space not in self._maps:
            self._maps[space] = self._joined(space) if space in self._to.joins else self._chosen(space)
        return self._maps[space]

    def _chosen(self, space: str) -> Tensor:
        given = self._spaces[space]
        wanted, known = self._to.widths[space], self._from.widths[given]
        if wanted >= known:
            return torch.cat([torch.arange(known), torch.full((wanted - known,), -1)])
        importance = self._importance.get(given)
        if importance is None:
            return torch.arange(wanted)
        return importance.topk(wanted).indices.sort().values

    def _joined(self, space: str) -> Tensor:
        pieces, offset = [], 0
        for part, given in zip(self._to.joins[space], self._from.joins[self._spaces[space]], strict=True):
            piece = self._map(part, donor_space=given)
            if piece is None:
                piece = torch.full((self._to.widths[part],), -1)
            pieces.append(torch.where(piece < 0, piece, piece + offset))
            offset += self._from.widths[given]
        return torch.cat(pieces)

    def _carry_layer(self, pair: _Pair) -> None:
        layer, donor = pair.target, pair.donor
        outputs = self._map(layer.writes, donor_space=donor.writes)
        inputs = self._map(layer.reads, donor_space=donor.reads)
        if outputs is None:
            return
        shift = None
        if layer.conv is not None and donor.conv is not None:
            if inputs is None:
                return
            shift = self._carry_kernel(layer, donor, outputs, inputs)
        if layer.norm is not None and donor.norm is not None:
            self._carry_norm(layer, donor, outputs, shift)

    def _carry_kernel(self, layer: Layer, donor: Layer, outputs: Tensor, inputs: Tensor) -> Tensor | None:
        """Copy the kernel and bias; return what another normalisation adds to the outputs, for the norm to take off."""
        conv, given = layer.conv, donor.conv
        assert conv is not None
        assert given is not None
        assert layer.conv_key is not None
        kernel, shift = self._adapted_kernel(donor)
        kernel = _sized(kernel, conv.kernel_size[0])
        carried = outputs >= 0
        if layer.depthwise:
            values = kernel[outputs.clamp(min=0)]
            counted = carried
            conv.weight[carried] = values[carried].to(conv.weight.dtype)
        else:
            dense = _dense(kernel, given.groups)
            columns = inputs.view(conv.groups, -1)[
                _groups_of_rows(conv)
            ]  # row -> donor channels that it reads
            values = dense[outputs.clamp(min=0)[:, None], columns.clamp(min=0)]
            values = torch.where((columns >= 0)[:, :, None, None], values, 0.0)
            conv.weight[carried] = values[carried].to(conv.weight.dtype)
            read = _dense(torch.ones_like(given.weight[:, :, :1, :1]), given.groups)[:, :, 0, 0] > 0
            counted = read[outputs.clamp(min=0)[:, None], columns.clamp(min=0)]
            counted &= (columns >= 0) & carried[:, None]
        side = math.prod(map(min, conv.kernel_size, given.kernel_size))
        self._taken[f"{layer.conv_key}.weight"] = int(counted.sum()) * side
        self._given_sizes[f"{layer.conv_key}.weight"] = given.weight[..., 0, 0].numel() * side
        self._zeros[f"{layer.conv_key}.weight"] = int(counted.sum()) * (math.prod(conv.kernel_size) - side)
        if conv.bias is not None and given.bias is not None:
            bias = given.bias + shift if shift is not None else given.bias
            conv.bias[carried] = bias[outputs[carried]]
            self._taken[f"{layer.conv_key}.bias"] = int(carried.sum())
        return shift

    def _adapted_kernel(self, donor: Layer) -> tuple[Tensor, Tensor | None]:
        """Return the donor's kernel for images normalised as the target's, and what it then lacks in its outputs."""
        assert donor.conv is not None
        kernel = donor.conv.weight.detach().clone()
        theirs, ours = self._donor.preprocessing, self._preprocessing
        if donor.reads != self._from.image or theirs == ours or donor.depthwise:
            return kernel, None
        scale = torch.tensor(ours.std) / torch.tensor(theirs.std)
        offset = (torch.tensor(ours.mean) - torch.tensor(theirs.mean)) / torch.tensor(theirs.std)
        shift = (kernel * offset[None, :, None, None]).sum((1, 2, 3))
        return kernel * scale[None, :, None, None], shift

    def _carry_norm(self, layer: Layer, donor: Layer, outputs: Tensor, shift: Tensor | None) -> None:
        norm, given = layer.norm, donor.norm
        assert norm is not None
        assert given is not None
        carried = outputs >= 0
        chosen = outputs[carried]
        for name in NORM_FIELDS:
            value = getattr(given, name).detach()
            if name == "running_mean" and shift is not None:
                value = value - shift
            if name == "running_var":  # so that variance plus eps, which norms divide by, stays the same
                value = (value + (given.eps - norm.eps)).clamp(min=MIN_VARIANCE)
            getattr(norm, name)[carried] = value[chosen]
            self._taken[f"{layer.norm_key}.{name}"] = int(carried.sum())
            self._given_sizes[f"{layer.norm_key}.{name}"] = given.num_features

    def _identity_expansion(self, layer: Layer, model: LayerBlock) -> None:
        """Pass the input on where the donor has no expansion: its inputs are positive, so an activation keeps them."""
        outputs = self._map(layer.writes, donor_space=model.layers["depth"].reads)
        inputs = self._map(layer.reads, donor_space=model.layers["depth"].reads)
        conv, norm = layer.conv, layer.norm
        if outputs is None or inputs is None or conv is None or norm is None:
            return
        columns = inputs.view(conv.groups, -1)[_groups_of_rows(conv)]
        same = (columns == outputs[:, None]) & (columns >= 0)
        rows = same.any(dim=1)
        conv.weight[rows] = same[rows][:, :, None, None].to(conv.weight.dtype)
        for name, value in (
            ("weight", 1.0),
            ("bias", 0.0),
            ("running_mean", 0.0),
            ("running_var", 1 - norm.eps),
        ):
            getattr(norm, name)[rows] = value

    def _silence(self, block: LayerBlock) -> None:
        """Let a residual block pass its input on: what it adds is scaled by zero, which training changes."""
        norm, key = block.last.norm, block.last.norm_key
        if norm is not None:
            for name in ("weight", "bias"):
                getattr(norm, name).zero_()
                self._taken.pop(f"{key}.{name}", None)

    def _carry_unknown_modules(self) -> None:
        """Copy modules whose inside is not known as they are, if all sizes agree and no channels were chosen."""
        known = {layer.node for layer in self._to.layers}
        for name, value in self._state.items():
            node = name.split(".")[1]
            given = self._donor_state.get(name)
            if node in known or given is None or given.shape != value.shape:
                continue
            value.copy_(given)
            self._taken[name] = value.numel()


def _layer_key(layer: Layer) -> str:
    return layer.conv_key or layer.norm_key or ""


def _block_layers(graph: LayerGraph) -> Iterable[Layer]:
    for branch in graph.branches:
        for stage in branch:
            for block in stage.blocks:
                yield from block.layers.values()


def _matched_blocks(
    branch: Sequence[Stage], source: Sequence[Stage]
) -> Iterable[tuple[LayerBlock, LayerBlock, bool]]:
    """Yield a target block, its donor block, and whether it lies beyond the donor's depth."""
    used: dict[int, int] = {}  # donor stage -> how many target blocks took of it
    for stage, choice in zip(branch, _aligned(branch, source), strict=True):
        if choice is None:
            continue
        models = source[choice].blocks
        for block in stage.blocks:
            place = used.get(choice, 0)
            used[choice] = place + 1
            yield block, models[min(place, len(models) - 1)], place >= len(models)


def _aligned(branch: Sequence[Stage], source: Sequence[Stage]) -> list[int | None]:
    """Return a donor stage for every target stage, in ascending order and at least cost."""
    best: list[tuple[float, list[int | None]]] = [(0.0, []), *((math.inf, []) for _ in source)]
    for stage in branch:  # best[j]: the donor stages so far end before number j
        grown: list[tuple[float, list[int | None]]] = []
        for j in range(len(source) + 1):
            ways = [(best[j][0] + UNMATCHED_COST, [*best[j][1], None])]
            if j > 0:
                cost = _difference(stage, source[j - 1])
                ways += [(best[i][0] + cost, [*best[i][1], j - 1]) for i in range(j)]
                ways.append((best[j][0] + cost + SHARED_COST, [*best[j][1], j - 1]))
            grown.append(min(ways, key=lambda way: way[0]))
        best = grown
    return min(best, key=lambda way: way[0])[1]


def _difference(stage: Stage, other: Stage) -> float:
    one, two = stage.key, other.key
    if one.kind != two.kind:
        return math.inf
    return abs(math.log2(one.width / two.width)) + LEVEL_COST * abs(one.level - two.level)


def channel_importance(graph: LayerGraph) -> dict[str, Tensor]:
    """Return how much the channels of every space matter: by the scales that write and the weights that read them."""
    scores: dict[str, Tensor] = {}

    def add(space: str, values: Tensor) -> None:
        values = values / values.mean().clamp(min=1e-12)
        if len(values) == graph.widths.get(space):
            scores[space] = scores.get(space, torch.zeros(len(values))) + values

    for layer in graph.layers:
        if layer.norm is not None:
            add(layer.writes, layer.norm.weight.detach().abs())
        if layer.conv is not None and not layer.depthwise and not layer.gate:
            kernel = _dense(layer.conv.weight.detach(), layer.conv.groups)
            add(layer.reads, kernel.abs().sum((0, 2, 3)))
            if layer.norm is None:
                add(layer.writes, kernel.abs().sum((1, 2, 3)))
    return scores


def _dense(kernel: Tensor, groups: int) -> Tensor:
    """Return the kernel of a grouped convolution as one that reads all channels, with zeros."""
    if groups == 1:
        return kernel
    outputs, each = kernel.shape[:2]
    dense = kernel.new_zeros(outputs, each * groups, *kernel.shape[2:])
    rows = outputs // groups
    for group in range(groups):
        part = slice(group * rows, (group + 1) * rows)
        dense[part, group * each : (group + 1) * each] = kernel[part]
    return dense


def _groups_of_rows(conv: nn.Conv2d) -> Tensor:
    return torch.arange(conv.groups).repeat_interleave(conv.out_channels // conv.groups)


def _sized(kernel: Tensor, side: int) -> Tensor:
    """Crop a kernel to its centre, or embed it in zeros."""
    have = kernel.shape[-1]
    if side < have:
        start = (have - side) // 2
        return kernel[..., start : start + side, start : start + side]
    pad = (side - have) // 2
    return nn.functional.pad(kernel, (pad, pad, pad, pad)) if pad else kernel
