"""A network as elementary layers: which convolution reads and writes which channels, and which blocks they form.

Two maps have the same channels if they are added, or if one becomes the other channel by channel (depthwise
convolution, norm, pooling, resizing). Such maps share a *space*: when channels of one are chosen, the same are chosen
in all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

from torch import nn

from segtailor.core.plan import IMAGE, Node
from segtailor.nets.network import Network
from segtailor.ops.attention import Likeness, SqueezeExcite
from segtailor.ops.combining import Concat, Identity, Resize
from segtailor.ops.convolutions import FactorisedReduction
from segtailor.ops.modules.attention import ChannelGate
from segtailor.ops.modules.blocks import InvertedResidualBlock, RepConvBlock, ResidualBlock
from segtailor.ops.modules.convolutions import Zoomed
from segtailor.ops.modules.pooling import PooledConvUnit

Role: TypeAlias = Literal["expand", "depth", "project", "first", "middle", "second", "shortcut", "only"]
BlockKind: TypeAlias = Literal["stem", "inverted", "basic", "bottleneck", "convolution"]
Chain: TypeAlias = list[tuple[str, nn.Module]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """A convolution with the norm after it; or a norm alone. Keys are the beginnings of names in the state."""

    node: str
    conv: nn.Conv2d | None
    conv_key: str | None
    norm: nn.BatchNorm2d | None
    norm_key: str | None
    reads: str
    writes: str
    gate: bool  # computes the channel weights of a squeeze-and-excitation

    @property
    def depthwise(self) -> bool:
        """Whether every channel is convolved alone."""
        return self.conv is not None and _is_depthwise(self.conv)

    @property
    def kernel(self) -> int:
        """The side of the kernel; 0 for a norm alone."""
        return 0 if self.conv is None else self.conv.kernel_size[0]

    @property
    def width(self) -> int:
        """The channels it writes."""
        return self.conv.out_channels if self.conv is not None else self.norm.num_features  # type: ignore[union-attr]


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerBlock:
    """Layers that belong together, by role; `level` is the number of halvings between image and output."""

    kind: BlockKind
    layers: dict[Role, Layer]
    level: int

    @property
    def reads(self) -> str:
        """The space of its input."""
        return next(iter(self.layers.values())).reads

    @property
    def last(self) -> Layer:
        """The layer that writes its output."""
        return [layer for role, layer in self.layers.items() if role != "shortcut"][-1]

    @property
    def writes(self) -> str:
        """The space of its output."""
        return self.last.writes

    @property
    def residual(self) -> bool:
        """Whether its input is added to what it computes."""
        return self.reads == self.writes

    @property
    def width(self) -> int:
        """The channels of its output."""
        return self.last.width


class StageKey(NamedTuple):
    """What the blocks of one stage have in common."""

    kind: BlockKind
    level: int
    width: int


@dataclass(kw_only=True, eq=False)
class Stage:
    """Successive blocks of one kind, width and level."""

    key: StageKey
    blocks: list[LayerBlock] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerGraph:
    """All layers of a network, the width of every space, and the branches of its blocks as stages."""

    layers: tuple[Layer, ...]
    image: str  # the space of the image
    widths: dict[str, int]
    nodes: dict[str, str]  # node -> the space of what it computes
    outputs: dict[str, str]  # output -> its space
    joins: dict[str, tuple[str, ...]]  # space of a concatenation -> the spaces of its parts
    branches: tuple[tuple[Stage, ...], ...]


def layer_graph(network: Network, *, only: frozenset[str] | None = None) -> LayerGraph:
    """Describe the layers of a network (of the nodes `only`); modules of an unknown form have none."""
    spaces, layers, joins = _Spaces(), [], {}
    for node in network.plan.nodes:
        if only is not None and node.name not in only:
            continue
        layers += list(_layers_of(node, network.nodes[node.name], spaces))
        _unite(node, network, spaces)
        if isinstance(node.op, Concat):
            joins[node.name] = node.inputs
    final = tuple(_with_spaces(layer, spaces) for layer in layers)
    widths = {spaces.find(node.name): node_width for node, node_width in _node_widths(network)}
    widths[spaces.find(IMAGE)] = network.plan.image.channels
    for layer in final:
        widths.setdefault(layer.writes, layer.width)
    return LayerGraph(
        layers=final,
        image=spaces.find(IMAGE),
        widths=widths,
        nodes={node.name: spaces.find(node.name) for node in network.plan.nodes},
        outputs={
            name: spaces.find(node)
            for name, node in network.plan.outputs.items()
            if only is None or node in only
        },
        joins={spaces.find(name): tuple(map(spaces.find, inputs)) for name, inputs in joins.items()},
        branches=_branches(
            list(_blocks(final, network, image=spaces.find(IMAGE))),
            passed={
                spaces.find(node.name): spaces.find(node.inputs[0])
                for node in network.plan.nodes
                if isinstance(node.op, FactorisedReduction)
            },
        ),
    )


class _Spaces:
    """Spaces by any of their members; united when two maps turn out to have the same channels."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}

    def find(self, name: str) -> str:
        parent = self._parents.setdefault(name, name)
        if parent != name:
            parent = self._parents[name] = self.find(parent)
        return parent

    def unite(self, one: str, other: str) -> None:
        first, second = self.find(one), self.find(other)
        if first != second:
            self._parents[second] = first


class _Convolution(NamedTuple):
    """A convolution in a chain, and the space that it reads."""

    key: str
    module: nn.Conv2d
    reads: str


def _layers_of(node: Node, module: nn.Module, spaces: _Spaces) -> Iterator[Layer]:
    """Yield the layers of one node: every convolution with the norm behind it, and norms that have none before them."""
    source, gate = node.inputs[0], isinstance(node.op, SqueezeExcite)

    def layer(conv: _Convolution | None, norm: tuple[str, nn.BatchNorm2d] | None, space: str) -> Layer:
        return Layer(
            node=node.name,
            conv=None if conv is None else conv.module,
            conv_key=None if conv is None else conv.key,
            norm=None if norm is None else norm[1],
            norm_key=None if norm is None else norm[0],
            reads=space if conv is None else conv.reads,
            writes=space,
            gate=gate,
        )

    for number, chain in enumerate(_chains(module)):
        mixing = [part for _, part in chain if isinstance(part, nn.Conv2d) and not _is_depthwise(part)]
        space = source
        pending: _Convolution | None = None  # its norm may follow
        for position, (name, part) in enumerate(chain):
            key = f"nodes.{node.name}.{name}"
            if isinstance(part, nn.Conv2d):
                if pending is not None:
                    yield layer(pending, None, space)
                pending = _Convolution(key, part, space)
                if not _is_depthwise(part):
                    space = node.name if part is mixing[-1] else f"{node.name}/{number}/{position}"
            elif isinstance(part, nn.BatchNorm2d):
                yield layer(pending, (key, part), space)
                pending = None
        if pending is not None:
            yield layer(pending, None, space)
        if not mixing:
            spaces.unite(node.name, source)


def _chains(module: nn.Module) -> list[Chain]:
    """Return the parts of a module that run one after the other; several chains where it adds branches."""
    if isinstance(module, nn.Sequential):
        return [_named("", module)]
    if isinstance(module, InvertedResidualBlock):
        return [_named("body.", module.body)]
    if isinstance(module, ResidualBlock):
        shortcut = [] if module.shortcut is None else [_named("shortcut.", module.shortcut)]
        return [_named("body.", module.body), *shortcut]
    if isinstance(module, ChannelGate):
        return [_named("weigh.", module.weigh)]
    if isinstance(module, Zoomed):
        return [_named("stack.", module.stack)]
    if isinstance(module, RepConvBlock):
        pairs: tuple[tuple[str, ...], ...] = (("conv", "norm"), ("point", "point_norm"), ("identity_norm",))
    elif isinstance(module, PooledConvUnit):
        pairs = (("conv", "norm"),)
    else:
        return []
    chains = [[(name, getattr(module, name)) for name in names] for names in pairs]
    return [chain for names in chains if (chain := [row for row in names if row[1] is not None])]


def _named(prefix: str, parts: nn.Sequential) -> Chain:
    return [(prefix + name, part) for name, part in parts.named_children()]


def _unite(node: Node, network: Network, spaces: _Spaces) -> None:
    """Unite the spaces that a node adds or passes on channel by channel."""
    plan, module, op = network.plan, network.nodes[node.name], node.op
    width = plan.shape(node.name).channels
    adds = (isinstance(module, InvertedResidualBlock) and module.residual) or (
        isinstance(module, ResidualBlock) and module.shortcut is None
    )
    if adds or isinstance(op, Identity):
        spaces.unite(node.name, node.inputs[0])
    if isinstance(op, Concat | Likeness) or any(True for _ in module.parameters()):
        return
    for source in node.inputs[:1] if isinstance(op, Resize) else node.inputs:
        if plan.shape(source).channels == width:
            spaces.unite(node.name, source)


def _with_spaces(layer: Layer, spaces: _Spaces) -> Layer:
    return replace(layer, reads=spaces.find(layer.reads), writes=spaces.find(layer.writes))


def _node_widths(network: Network) -> Iterator[tuple[Node, int]]:
    for node in network.plan.nodes:
        yield node, network.plan.shape(node.name).channels


def _is_depthwise(conv: nn.Conv2d) -> bool:
    return conv.groups > 1 and conv.groups == conv.in_channels == conv.out_channels


def _blocks(layers: Sequence[Layer], network: Network, *, image: str) -> Iterator[LayerBlock]:
    """Recognise blocks in the order of the network; what belongs to none is left out."""
    plain = [layer for layer in layers if layer.conv is not None and not layer.gate]
    taken: set[int] = set()
    for at in range(len(plain)):
        match = None if at in taken else _match(plain, at, image=image)
        if match is None:
            continue
        kind, members = match
        taken.update(members.values())
        roles = {role: plain[place] for role, place in members.items()}
        height = network.plan.shape(roles[_last_role(roles)].node).height
        level = round(math.log2(network.plan.image.height / height))
        yield LayerBlock(kind=kind, layers=roles, level=level)


def _last_role(roles: dict[Role, Layer]) -> Role:
    return [role for role in roles if role != "shortcut"][-1]


def _match(layers: Sequence[Layer], at: int, *, image: str) -> tuple[BlockKind, dict[Role, int]] | None:
    """Return the block that begins with a layer, as places in `layers`."""
    first = layers[at]
    if first.reads == image and not first.depthwise:
        return "stem", {"only": at}
    second = _next(layers, at)
    third = None if second is None else _next(layers, second)
    if first.depthwise:
        if first.norm is not None and second is not None and _is_point(layers[second]):
            return "inverted", {"depth": at, "project": second}
        return None
    if second is None:
        return ("convolution", {"only": at}) if first.kernel > 1 else None
    return _match_chain(layers, at, second, third)


def _match_chain(
    layers: Sequence[Layer], at: int, second: int, third: int | None
) -> tuple[BlockKind, dict[Role, int]] | None:
    """Return the block that begins with a layer that mixes channels, and others after it."""
    first = layers[at]
    if _stands_for_block(layers, at):
        return "inverted", {"project": at}
    if _widens(first) and layers[second].depthwise and third is not None and _is_point(layers[third]):
        return "inverted", {"expand": at, "depth": second, "project": third}
    if first.kernel > 1 and layers[second].kernel > 1 and not layers[second].depthwise:
        shortcut = _shortcut(layers, at, second)
        if shortcut is not None:
            return "basic", {"first": at, "second": second, **shortcut}
    if _is_point(first) and third is not None and layers[second].kernel > 1 and _is_point(layers[third]):
        shortcut = _shortcut(layers, at, third)
        if shortcut is not None:
            return "bottleneck", {"first": at, "middle": second, "second": third, **shortcut}
    return ("convolution", {"only": at}) if first.kernel > 1 else None


def _next(layers: Sequence[Layer], at: int) -> int | None:
    """Return the next layer, if it reads what this one writes."""
    after = at + 1
    return after if after < len(layers) and layers[after].reads == layers[at].writes else None


def _is_point(layer: Layer) -> bool:
    return layer.kernel == 1 and not layer.depthwise


def _widens(layer: Layer) -> bool:
    """Tell the expansion of an inverted bottleneck from a layer that narrows a map for a decoder."""
    return _is_point(layer) and layer.conv is not None and layer.conv.out_channels >= layer.conv.in_channels


def _stands_for_block(layers: Sequence[Layer], at: int) -> bool:
    """Tell a 1x1 convolution that a network has instead of an inverted bottleneck, between two blocks."""
    first, (expand, depth) = layers[at], (_next(layers, at), _next(layers, at + 1))
    return (
        _is_point(first)
        and first.norm is not None
        and layers[at - 1].writes == first.reads
        and expand is not None
        and depth is not None
        and _widens(layers[expand])
        and layers[depth].depthwise
    )


def _shortcut(layers: Sequence[Layer], first: int, last: int) -> dict[Role, int] | None:
    """Return the shortcut of a residual block: none, or a 1x1 convolution; None where nothing is added."""
    reads, writes = layers[first].reads, layers[last].writes
    if layers[first].writes == writes and first != last:
        return None
    if reads == writes:
        return {}
    after = last + 1
    if after < len(layers) and (layers[after].reads, layers[after].writes) == (reads, writes):
        return {"shortcut": after}
    return None


def _branches(blocks: Sequence[LayerBlock], *, passed: Mapping[str, str]) -> tuple[tuple[Stage, ...], ...]:
    """Order blocks into branches: each goes on from the last block of a branch that wrote what it reads.

    `passed` are spaces of reductions that a network has instead of a block, and what these read.
    """
    branches: list[list[LayerBlock]] = []
    for block in blocks:
        before = {block.reads, passed.get(block.reads, block.reads)}
        behind = [branch for branch in branches if branch[-1].writes in before]
        if behind and block.kind != "stem":
            behind[0].append(block)
        else:
            branches.append([block])
    return tuple(_stages(branch) for branch in branches)


def _stages(blocks: Sequence[LayerBlock]) -> tuple[Stage, ...]:
    stages: list[Stage] = []
    for block in blocks:
        key = StageKey(block.kind, block.level, block.width)
        if not stages or stages[-1].key != key:
            stages.append(Stage(key=key))
        stages[-1].blocks.append(block)
    return tuple(stages)
