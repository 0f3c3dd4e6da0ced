"""A part of a network: the nodes between some of its values and some others, e.g. a decoder without its encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from segtailor.core.errors import Unsupported
from segtailor.core.plan import IMAGE
from segtailor.nets.network import Network


class Part(nn.Module):
    """Computes the nodes named by `outputs` from the values of the nodes `inputs` (`image` for the image).

    Modules are shared with the network. Whatever needs a value that is not given raises `Unsupported`.
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
