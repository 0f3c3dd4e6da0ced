"""Networks from plans: one interpreter runs any plan, whole or in part. The graph is data, the module executes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from segtailor.core.codec import short
from segtailor.core.errors import InvalidArchitecture, Unsupported
from segtailor.core.plan import IMAGE, MAIN, Plan, Shape
from segtailor.core.space import Architecture, plan_of

MAX_PARAMETERS = 1_000_000_000  # of a network: an architecture from outside must not make us allocate more


def build(arch: Architecture, classes: int, *, outputs: Any, channels: int = 3) -> Network:
    """Build a network that computes `outputs` ("all", or names); one that is too large is refused before allocating.

    `channels` is the number of bands of its images.
    """
    full = plan_of(
        arch, Shape(channels, 512, 1024), classes
    )  # any image size: parameters do not depend on it
    plan = full.select(_output_names(full, outputs))
    if plan.train_params() > MAX_PARAMETERS:
        raise InvalidArchitecture(
            f"the network would have {plan.train_params():,} parameters; at most {MAX_PARAMETERS:,} are built. "
            "Shrink it."
        )
    return Network(plan, architecture=arch)


def initialise(network: nn.Module, seed: int) -> None:
    """Draw new weights: He-normal kernels by fan-in (which is right for grouped kernels, too), identity norms."""
    generator = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            fan_in = module.weight[0].numel()
            with torch.no_grad():
                draw = torch.randn(module.weight.shape, generator=generator) * (2 / fan_in) ** 0.5
                module.weight.copy_(draw)
                if module.bias is not None:
                    module.bias.zero_()
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()


class Network(nn.Module):
    """Executes a plan; accepts any image size, not only the one that the plan was counted at.

    `forward` gives the main logits at the network's own stride, `forward_all` every output that was built.
    Dormant nodes are part of the published network: they are built, frozen and computed, but no node uses them.
    """

    def __init__(self, plan: Plan, *, architecture: Architecture | None = None) -> None:
        super().__init__()
        self.plan = plan
        self.architecture = architecture
        self.nodes = nn.ModuleDict(
            {node.name: plan.call(node.name).op.module(plan.call(node.name)) for node in plan.nodes}
        )
        for name in plan.dormant:
            self.nodes[name].requires_grad_(False)
        self._link()

    def _link(self) -> None:
        """Turn names into slots once, so that running a node needs no look-up by name."""
        self._main = self._program(self.plan.select((MAIN,)))
        self._all = self._program(self.plan)
        slots = self._slots()
        self._outputs = {name: slots[node] for name, node in self.plan.outputs.items()}

    def forward(self, image: Tensor) -> Tensor:
        """Return the main logits, (N, classes, h, w)."""
        return self._run(self._main, image)[self._outputs[MAIN]]

    def forward_all(self, image: Tensor) -> dict[str, Tensor]:
        """Return every output by name, each at its own stride."""
        values = self._run(self._all, image)
        return {name: values[slot] for name, slot in self._outputs.items()}

    def replace(self, name: str, module: nn.Module) -> None:
        """Replace the module of a node, e.g. by its folded form."""
        self.replace_all({name: module})

    def replace_all(self, modules: Mapping[str, nn.Module]) -> None:
        """Replace the modules of the named nodes."""
        self.nodes.update(modules)
        self._link()

    def _run(self, program: Sequence[Instruction], image: Tensor) -> dict[int, Tensor]:
        values = {0: image}
        for module, sources, slot, last_use in program:
            values[slot] = module(*[values[source] for source in sources])
            for used in last_use:
                del values[used]
        return values

    def _slots(self) -> dict[str, int]:
        return {name: slot for slot, name in enumerate([IMAGE, *(node.name for node in self.plan.nodes)])}

    def _program(self, plan: Plan) -> list[Instruction]:
        slots = self._slots()
        last_readers: dict[int, int] = {}
        for index, node in enumerate(plan.nodes):
            last_readers.update({slots[name]: index for name in node.inputs})
            last_readers.setdefault(slots[node.name], index)
        outputs = {slots[name] for name in plan.outputs.values()}
        program = []
        for index, node in enumerate(plan.nodes):
            sources = tuple(slots[name] for name in node.inputs)
            last_use = tuple(
                slot for slot, reader in last_readers.items() if reader == index and slot not in outputs
            )
            program.append(Instruction(self.nodes[node.name], sources, slots[node.name], last_use))
        return program


class Instruction(NamedTuple):
    """Run `module` on the values in slots `sources`, store the result in `slot`, then free the slots in `last_use`."""

    module: nn.Module
    sources: tuple[int, ...]
    slot: int
    last_use: tuple[int, ...]


class PartialNetwork(nn.Module):
    """Part of a network, e.g. a decoder without its encoder: computes `outputs` from the values of the nodes `inputs`.

    `image` stands for the image. Modules are shared with the network. An output that needs a value which is not given
    raises `Unsupported`.
    """

    def __init__(self, network: Network, *, inputs: Sequence[str], outputs: Mapping[str, str]) -> None:
        super().__init__()
        plan = network.plan
        needed: set[str] = set()
        stack = [name for name in outputs.values() if name not in inputs]
        while stack:
            name = stack.pop()
            if name == IMAGE:
                raise Unsupported(
                    f"the part behind {', '.join(inputs)} also reads the image: it cannot be trained on "
                    "pre-computed maps. Choose an encoder whose taps are all that the decoder reads."
                )
            if name not in needed:
                needed.add(name)
                stack += [source for source in plan.by_name[name].inputs if source not in inputs]
        self.outputs = dict(outputs)
        self.order = [node for node in plan.nodes if node.name in needed]
        self.nodes = nn.ModuleDict({node.name: network.nodes[node.name] for node in self.order})

    def forward(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the outputs by name."""
        known = dict(values)
        for node in self.order:
            known[node.name] = self.nodes[node.name](*[known[source] for source in node.inputs])
        return {name: known[node] for name, node in self.outputs.items()}


def _output_names(full: Plan, outputs: Any) -> tuple[str, ...]:
    """Return the names of the outputs to build, the main one among them."""
    if outputs == "all":
        return tuple(full.outputs)
    names = [outputs] if isinstance(outputs, str) else outputs
    allowed = tuple(full.outputs)
    if not isinstance(names, Sequence) or MAIN not in names or any(name not in allowed for name in names):
        raise InvalidArchitecture(
            f"outputs: {short(outputs)}; allowed: 'all', or '{MAIN}' and any of {', '.join(allowed)}."
        )
    return tuple(dict.fromkeys(names))
