"""One set of weights for all networks of the family: each network uses the leading part of every tensor.

Channels are sorted by importance first (`nets.starts.order`), so that the leading ones are those worth keeping. A
training pass runs several networks on the same images (Yu and Huang, "Universally Slimmable Networks", ICCV 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from random import Random

import torch
from torch import Tensor, nn
from torch.func import functional_call

from segtailor.core.errors import Unsupported
from segtailor.core.plan import MAIN, Plan, Shape
from segtailor.core.space import Decision
from segtailor.nets.network import Network, initialise
from segtailor.nets.starts.order import sort_hidden_channels
from segtailor.spaces.elastic.architecture import (
    DETAIL_STRIDES,
    EXPANSION,
    OPTIONAL_STAGE,
    STAGES,
    ElasticArchitecture,
)
from segtailor.spaces.elastic.space import Elastic

READ_DEEPEST = ("context", "context_attention")  # nodes that read the last map of the encoder
SHALLOW = "shallow_"  # before their names where the encoder ends one stage earlier, with other channels
BUILT_IMAGE = Shape(3, 512, 1024)  # any size: weights do not depend on it
MAX_KEPT_NETWORKS = 512  # without weights, so that they need not be built in every pass


class ElasticSupernet(nn.Module):
    """Holds the weights of all networks; `forward` is the largest one, `forward_all` a training pass."""

    align_corners = False

    def __init__(self, space: Elastic, classes: int, *, channels: int = 3) -> None:
        super().__init__()
        self.space, self.classes = space, classes
        self.image = BUILT_IMAGE._replace(channels=channels)
        self.largest = largest_in(space)
        whole, short = self._built(self.largest), self._built(without_last_stage(self.largest))
        for network in (whole, short):
            initialise(network, 0)
        self.nodes = nn.ModuleDict(
            {**whole.nodes, **{SHALLOW + name: short.nodes[name] for name in READ_DEEPEST}}
        )
        self.plan: Plan = whole.plan
        self.carried: frozenset[str] = frozenset()  # names of the parameters that a start gave
        self.passes = 0  # done so far: they decide what is drawn next
        self._trained: Sequence[ElasticArchitecture] = (self.largest,)
        self._each, self._seed = 1, 0
        self._empty: dict[ElasticArchitecture, Network] = {}

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The decisions of the space."""
        return self.space.decisions

    def train_on(self, networks: Sequence[ElasticArchitecture], *, each: int, seed: int) -> None:
        """Set which networks are trained, cheapest first, and how many of them `each` pass runs."""
        self._trained, self._each, self._seed = tuple(networks), each, seed

    @torch.no_grad()
    def begin(self, start: Callable[[Network], Collection[str]]) -> None:
        """Let a start fill the largest network, and sort its channels by importance.

        `start` gives a network its weights and returns the names of the parameters that it gave.
        """
        for arch in (without_last_stage(self.largest), self.largest):
            network = self._built(arch)
            self.transfer(arch, network)
            self.carried = frozenset(start(network))
            if arch is self.largest:
                sort_hidden_channels(network)
            self._receive(arch, network)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of the largest network."""
        return self.logits(self.largest, images)

    def forward_all(self, images: Tensor) -> dict[str, Tensor]:
        """Return the logits of all networks of the next training pass."""
        names = [MAIN, *(f"other{number}" for number in range(1, self._each))]
        return {name: self.logits(arch, images) for name, arch in zip(names, self.drawn(), strict=True)}

    def drawn(self) -> list[ElasticArchitecture]:
        """Return the networks of the next pass: one of the costliest quarter, one of the cheapest, others from all."""
        rng = Random(f"{self._seed} {self.passes}")
        self.passes += 1
        networks = self._trained
        quarter = max(1, len(networks) // 4)
        groups = [networks[-quarter:], networks[:quarter], *(networks for _ in range(self._each))]
        return [rng.choice(group) for group in groups[: self._each]]

    def logits(self, arch: ElasticArchitecture, images: Tensor) -> Tensor:
        """Run one network on its part of the weights."""
        network = self._without_weights(arch).train(self.training)
        output: Tensor = functional_call(network, self._part(arch, network), (images,))
        return output

    @torch.no_grad()
    def transfer(self, arch: ElasticArchitecture, network: Network) -> None:
        """Copy the weights that an architecture uses into its network; outputs that only training needs stay."""
        own = network.state_dict()
        for name, value in self._part(arch, self._without_weights(arch)).items():
            own[name].copy_(value)

    def remaining(self) -> dict[str, tuple[int, ...]]:
        """Return nothing: options share tensors, so none can be removed."""
        return {}

    def remove(self, decision: str, option: int) -> None:
        """Refuse."""
        raise Unsupported(
            f"{decision}: options of this space share tensors; option {option} cannot be removed."
        )

    @torch.no_grad()
    def _receive(self, arch: ElasticArchitecture, network: Network) -> None:
        own = network.state_dict()
        for name, value in self._part(arch, network).items():
            value.copy_(own[name])

    def _part(self, arch: ElasticArchitecture, network: Network) -> dict[str, Tensor]:
        """Return the leading part of every tensor that a network has; views, so that gradients arrive here."""
        state = dict((*self.named_parameters(), *self.named_buffers()))
        shallow = not arch.depths[OPTIONAL_STAGE]
        return {
            name: state[_shared_name(name, shallow=shallow)][tuple(slice(side) for side in value.shape)]
            for name, value in (*network.named_parameters(), *network.named_buffers())
        }

    def _built(self, arch: ElasticArchitecture) -> Network:
        plan = self.space.plan(arch, self.image, self.classes).select((MAIN,))
        return Network(plan, architecture=arch)

    def _without_weights(self, arch: ElasticArchitecture) -> Network:
        if arch not in self._empty:
            if len(self._empty) >= MAX_KEPT_NETWORKS:
                self._empty.clear()
            with torch.device("meta"):
                self._empty[arch] = self._built(arch)
        return self._empty[arch]


def largest_in(space: Elastic) -> ElasticArchitecture:
    """Return the network that uses all weights."""
    return ElasticArchitecture(
        scale=space.scales[-1],
        depths=tuple(stage.blocks for stage in STAGES),
        expansions=(max(space.expansions),) * len(STAGES),
        decoder=max(space.decoders),
        detail=DETAIL_STRIDES[0],
    )


def without_last_stage(arch: ElasticArchitecture) -> ElasticArchitecture:
    """Return a network without the blocks of the last stage."""
    return replace(arch, depths=(*arch.depths[:-1], 0), expansions=(*arch.expansions[:-1], EXPANSION))


def _shared_name(name: str, *, shallow: bool) -> str:
    """Return the name here of a tensor of a network."""
    node = name.split(".")[1]
    return (
        name.replace(f"nodes.{node}.", f"nodes.{SHALLOW}{node}.", 1)
        if shallow and node in READ_DEEPEST
        else name
    )
