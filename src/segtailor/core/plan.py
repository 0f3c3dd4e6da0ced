"""A network as plain data: shapes, operator calls, nodes, plans. Counting, pricing and drawing need no weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.registry import OPERATORS as OPERATORS  # extensions import it from here

IMAGE = "image"  # the name of the plan's only input
MAIN = "main"  # the name of the output that inference needs


class Shape(NamedTuple):
    """Channels, height and width of one feature map."""

    channels: int
    height: int
    width: int

    def halved(self, channels: int, stride: int) -> Shape:
        """Return the shape after a padded convolution of `stride`: odd sizes round up."""
        return Shape(channels, -(-self.height // stride), -(-self.width // stride))


class Operator(Protocol):
    """One definition per operator: shape, arithmetic and weights side by side.

    `params` counts the inference form. An operator whose training form differs also has `train_params` (same
    signature); one that reads more than a single pixel has `field`, its extent in input pixels.
    """

    def output(self, call: OpCall) -> Shape:
        """Return the output shape."""

    def macs(self, call: OpCall) -> int:
        """Count the multiply-accumulates of convolutions; norms, activations and resizes are free by convention."""

    def params(self, call: OpCall) -> int:
        """Count the learnable values of the inference form."""

    def module(self, call: OpCall) -> Any:
        """Build the `torch.nn.Module` (training form) that takes the inputs as positional arguments."""


@dataclass(frozen=True, kw_only=True)
class OpCall:
    """An operator at given input shapes, output channels and stride: the key of every cost table."""

    op: Operator
    inputs: tuple[Shape, ...]
    channels: int
    stride: int = 1

    @property
    def source(self) -> Shape:
        """The first (often only) input."""
        return self.inputs[0]

    def output(self) -> Shape:
        """Return the output shape."""
        return self.op.output(self)

    def macs(self) -> int:
        """Count the multiply-accumulates."""
        return self.op.macs(self)

    def params(self) -> int:
        """Count the learnable values of the inference form."""
        return self.op.params(self)

    def train_params(self) -> int:
        """Count the learnable values of the training form."""
        count: Callable[[OpCall], int] = getattr(self.op, "train_params", self.op.params)
        return count(self)

    def field(self) -> float:
        """Return the extent, in input pixels, that one output pixel depends on (infinite for global pooling)."""
        count: Callable[[OpCall], float] | None = getattr(self.op, "field", None)
        return count(self) if count else 1


@dataclass(frozen=True, kw_only=True)
class Node:
    """One step of a plan: `op` applied to the named inputs."""

    name: str
    op: Operator
    inputs: tuple[str, ...]
    channels: int
    stride: int = 1


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Nodes in execution order, plus named outputs (`main`, and train-only ones such as `aux1`).

    `dormant` nodes are part of the published network although no output reads them: they are counted, built and
    loaded, and dropped on deployment. `align_corners` is the flag of the resize from `main` to the image size.
    """

    image: Shape
    nodes: tuple[Node, ...]
    outputs: Mapping[str, str]
    dormant: frozenset[str] = frozenset()
    align_corners: bool = False
    _shapes: dict[str, Shape] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        shapes = self._shapes
        shapes.clear()
        shapes[IMAGE] = self.image
        for node in self.nodes:
            if node.name in shapes:
                raise InvalidArchitecture(f"plan: two nodes are called '{node.name}'; names must be unique.")
            missing = [name for name in node.inputs if name not in shapes]
            if missing:
                raise InvalidArchitecture(
                    f"plan: node '{node.name}' reads '{missing[0]}', which no earlier node computes."
                )
            shapes[node.name] = self._call(node).output()
            if min(shapes[node.name]) < 1:
                raise InvalidArchitecture(
                    f"plan: node '{node.name}' has an empty output {shapes[node.name]}."
                )
        for output, name in self.outputs.items():
            if name not in shapes:
                raise InvalidArchitecture(f"plan: output '{output}' is node '{name}', which does not exist.")

    def shape(self, name: str) -> Shape:
        """Return the shape that the named node computes."""
        return self._shapes[name]

    def call(self, name: str) -> OpCall:
        """Return the operator call of the named node."""
        return self._call(self.by_name[name])

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        """Nodes by name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def calls(self) -> tuple[OpCall, ...]:
        """The calls that `main` needs, in execution order: what a deployed network executes."""
        return tuple(self._call(node) for node in self.deployed().nodes)

    def select(self, outputs: Iterable[str] = (MAIN,)) -> Plan:
        """Return the plan that computes only `outputs`: dead-code elimination that keeps dormant nodes."""
        wanted = tuple(outputs)
        for output in wanted:
            if output not in self.outputs:
                raise InvalidArchitecture(f"plan: no output '{output}'; it has {', '.join(self.outputs)}.")
        needed = self._ancestors([self.outputs[name] for name in wanted] + sorted(self.dormant))
        nodes = tuple(node for node in self.nodes if node.name in needed)
        return self.with_nodes(nodes, outputs={name: self.outputs[name] for name in wanted})

    def deployed(self) -> Plan:
        """Return what inference runs: `main` alone, without train-only outputs and dormant nodes."""
        return replace(self, dormant=frozenset(), _shapes={}).select((MAIN,))

    def with_nodes(self, nodes: tuple[Node, ...], *, outputs: Mapping[str, str] | None = None) -> Plan:
        """Return a copy with other nodes (and outputs), checked again."""
        return replace(self, nodes=nodes, outputs=outputs or self.outputs, _shapes={})

    def with_operators(self, change: Callable[[OpCall], Operator]) -> Plan:
        """Return a copy whose operators are replaced one by one, e.g. by their re-parameterised form."""
        return self.with_nodes(tuple(replace(node, op=change(self._call(node))) for node in self.nodes))

    @property
    def output_stride(self) -> float:
        """Image height over the height of the main output; an integer where it divides."""
        ratio = self.image.height / self.shape(self.outputs[MAIN]).height
        return int(ratio) if ratio.is_integer() else ratio

    def macs(self) -> int:
        """Count multiply-accumulates of every node in this plan."""
        return sum(self._call(node).macs() for node in self.nodes)

    def params(self) -> int:
        """Count learnable values of every node in this plan, in inference form."""
        return sum(self._call(node).params() for node in self.nodes)

    def train_params(self) -> int:
        """Count learnable values of every node in this plan, in training form."""
        return sum(self._call(node).train_params() for node in self.nodes)

    def _call(self, node: Node) -> OpCall:
        inputs = tuple(self._shapes[name] for name in node.inputs)
        return OpCall(op=node.op, inputs=inputs, channels=node.channels, stride=node.stride)

    def _ancestors(self, names: Iterable[str]) -> set[str]:
        needed: set[str] = set()
        stack = list(names)
        while stack:
            name = stack.pop()
            if name not in needed and name != IMAGE:
                needed.add(name)
                stack.extend(self.by_name[name].inputs)
        return needed


class Count(NamedTuple):
    """Size of a network: multiply-accumulates and learnable values (inference form, then training form)."""

    macs: int
    params: int
    train_params: int


def count(plan: Plan) -> Count:
    """Count a plan without allocating weights: `macs` and `params` of `main`, `train_params` of everything."""
    main = plan.select((MAIN,))
    return Count(main.macs(), main.params(), plan.train_params())


def receptive_field(plan: Plan, output: str = MAIN) -> float:
    """Return the side, in image pixels, of the receptive field of `output`; infinite after global pooling.

    The widest path counts: each operator adds its extent minus one, in steps of the stride of its input. Bilinear
    resizing, which adds at most one step, is not counted.
    """
    fields: dict[str, float] = {IMAGE: 1}
    for node in plan.nodes:
        grown = plan.call(node.name).field() - 1
        reach = [
            fields[name] + (grown * plan.image.height / plan.shape(name).height if grown else 0)
            for name in node.inputs
        ]
        fields[node.name] = max(reach)
    return fields[plan.outputs[output]]


class PlanBuilder:
    """Collects nodes in order; `add` returns the name of the new node, so that code reads like the network."""

    def __init__(self, image: Shape) -> None:
        self.image = image
        self._nodes: list[Node] = []
        self._shapes: dict[str, Shape] = {IMAGE: image}

    def add(self, name: str, op: Operator, *inputs: str, channels: int | None = None, stride: int = 1) -> str:
        """Append a node; `channels` defaults to those of the first input."""
        width = self._shapes[inputs[0]].channels if channels is None else channels
        node = Node(name=name, op=op, inputs=inputs, channels=width, stride=stride)
        call = OpCall(
            op=op, inputs=tuple(self._shapes[source] for source in inputs), channels=width, stride=stride
        )
        self._shapes[name] = call.output()
        self._nodes.append(node)
        return name

    def shape(self, name: str) -> Shape:
        """Return the shape of a node added before."""
        return self._shapes[name]

    def plan(self, *, outputs: Mapping[str, str], align_corners: bool, dormant: Iterable[str] = ()) -> Plan:
        """Check everything and return the finished plan."""
        return Plan(
            image=self.image,
            nodes=tuple(self._nodes),
            outputs=dict(outputs),
            dormant=frozenset(dormant),
            align_corners=align_corners,
        )
