"""One interpreter for any plan. The graph is data; the module only executes it, node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from segtailor.core.plan import IMAGE, MAIN, Plan
from segtailor.core.space import Architecture


class Instruction(NamedTuple):
    """Run `module` on the values in slots `sources`, store into `slot`, then forget the slots in `last_use`."""

    module: nn.Module
    sources: tuple[int, ...]
    slot: int
    last_use: tuple[int, ...]


class Network(nn.Module):
    """Executes a plan; accepts any image size, whatever size the plan was counted at.

    `forward` gives the main logits at the network's own stride; `forward_all` every output that was built.
    Dormant nodes are built, frozen and computed (they are part of the published network), never read.
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
        """Turn names into slots once, so that running a node costs no look-up by name."""
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
        """Put another module in a node's place, e.g. its folded form."""
        self.replace_all({name: module})

    def replace_all(self, modules: Mapping[str, nn.Module]) -> None:
        """Put other modules in the places of the named nodes."""
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
        readers: dict[int, int] = {}
        for index, node in enumerate(plan.nodes):
            readers.update({slots[name]: index for name in node.inputs})
            readers.setdefault(slots[node.name], index)
        kept = {slots[name] for name in plan.outputs.values()}
        program = []
        for index, node in enumerate(plan.nodes):
            sources = tuple(slots[name] for name in node.inputs)
            last_use = tuple(slot for slot, reader in readers.items() if reader == index and slot not in kept)
            program.append(Instruction(self.nodes[node.name], sources, slots[node.name], last_use))
        return program


def initialise(network: nn.Module, seed: int) -> None:
    """Draw fresh weights: He-normal kernels (fan in, so that grouped ones are right), identity norms."""
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
