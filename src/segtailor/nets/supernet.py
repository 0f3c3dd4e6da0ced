"""Weight-shared networks driven by weights per decision: the protocols, and what every supernet needs once.

Rule of cost: with one-hot weights `cost` equals the sum of `price` over `plan.calls` of that architecture, constant
parts included. `searched_cost` is what the searched operators alone contribute, the term that papers put in the loss.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Protocol, TypeAlias, runtime_checkable

import torch
from pydantic import SerializeAsAny, ValidatorFunctionWrapHandler, WrapValidator
from torch import Tensor, nn

from segtailor.core.codec import adapter
from segtailor.core.errors import Unsupported
from segtailor.core.plan import Plan, Shape
from segtailor.core.registry import SPACES
from segtailor.core.space import Architecture, Decision, Picks
from segtailor.nets.fused import EAGER, Kernels, compiled_kernels
from segtailor.nets.mixed import Mixed, Price
from segtailor.nets.network import Network
from segtailor.nets.relax import Live, Weights, live

Outputs: TypeAlias = dict[str, Tensor]  # logits by name (`main`, ...), each at its own stride


@dataclass(frozen=True, kw_only=True)
class SupernetSettings:
    """How a supernet computes, as every family understands it; a family adds settings of its own in a subclass.

    `fused` runs candidates together (fast on a GPU), `compiled` also hands what is between convolutions to torch's
    compiler (minutes at the first step). `recompute` trades a second forward pass for memory. `masked` leaves drawn
    options on the device: all that may be drawn run, those not drawn with weight zero, so that the host never waits.
    None of these changes results. `affine` False freezes scale and shift of the candidates' norms at 1 and 0, so that
    all candidates stay on one scale.
    """

    fused: bool = False
    compiled: bool = False
    recompute: bool = False
    affine: bool = True
    masked: bool = False

    @property
    def kernels(self) -> Kernels | None:
        """What fused candidates run between convolutions; None for the plain path."""
        if not self.fused:
            return None
        return compiled_kernels() if self.compiled else EAGER


def _read_settings(data: Any, read_general: ValidatorFunctionWrapHandler) -> SupernetSettings:
    """Read settings from JSON: general ones, or those of the first space whose own settings have all given fields."""
    if isinstance(data, dict) and not set(data) <= _names(SupernetSettings):
        for name in SPACES.names():
            own_type = getattr(SPACES.get(name), "supernet_settings", None)  # see `Relaxable`
            if own_type is not None and set(data) <= _names(own_type()):
                own: SupernetSettings = adapter(own_type()).validate_json(json.dumps(data), strict=True)
                return own
    settings: SupernetSettings = read_general(data)
    return settings


def _names(settings: type[SupernetSettings]) -> set[str]:
    return {field.name for field in fields(settings)}


# The type of a field that holds general settings or those of a family.
AnySupernetSettings: TypeAlias = Annotated[SerializeAsAny[SupernetSettings], WrapValidator(_read_settings)]


@runtime_checkable
class Supernet(Protocol):
    """A module that holds all architectures of a space; `nn.Module` in everything else."""

    decisions: tuple[Decision, ...]
    align_corners: bool  # of the resize from `main` to the image size

    def forward(self, image: Tensor, weights: Weights, live: Live | None = None) -> Outputs:
        """Return every output. `live` are the options to run; without it one transfer from the device finds them."""

    def cost(self, weights: Weights, price: Price) -> Tensor:
        """Return the expected cost of the whole network; equals the plan's cost for one-hot weights."""

    def searched_cost(self, weights: Weights, price: Price) -> Tensor:
        """Return the expected cost of the searched operators alone."""

    def transfer(self, arch: Architecture, network: Network) -> None:
        """Copy the weights that an architecture uses into its network."""

    def remove(self, decision: str, option: int) -> None:
        """Drop a candidate wherever the decision drives one; at least one of a decision stays.

        Its parameters are gone from the module; an optimiser that still holds them keeps their memory.
        """

    def remaining(self) -> dict[str, tuple[int, ...]]:
        """Return the options of every decision that were not removed."""


class Relaxable(Protocol):
    """A space that has a supernet.

    Where its supernet has settings of its own, a static method `supernet_settings` returns their type, a subclass of
    `SupernetSettings` whose defaults mean the same as general settings.
    """

    def supernet(self, image: Shape, classes: int, *, settings: SupernetSettings | None = None) -> Supernet:
        """Build the supernet; costs are those at the size of `image`, which `forward` does not depend on."""

    def discretise(self, probabilities: Mapping[str, Sequence[float]]) -> Picks:
        """Return the picks that probabilities stand for."""


@runtime_checkable
class Alternating(Protocol):
    """A relaxable space whose supernet has an output for each of a few networks to choose from in the end."""

    def alternatives(self, probabilities: Mapping[str, Sequence[float]]) -> Mapping[str, Picks]:
        """Return the picks by the output that judges them; on a tie the first is taken."""


class MixedPlan(nn.Module):
    """Executes a plan, or `only` some of its nodes, in which the `mixed` ones are driven by decisions."""

    def __init__(
        self,
        plan: Plan,
        mixed: Mapping[str, Mixed],
        *,
        driven_by: Mapping[str, str],
        only: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self.plan = plan
        self.driven_by = dict(driven_by)
        names = [node.name for node in plan.nodes] if only is None else only
        self.nodes = nn.ModuleDict(
            {
                name: mixed[name] if name in mixed else plan.call(name).op.module(plan.call(name))
                for name in names
            }
        )

    @property
    def inputs(self) -> set[str]:
        """Names of all values that some node reads."""
        return {source for name in self.nodes for source in self.plan.by_name[name].inputs}

    def forward(self, values: Mapping[str, Tensor], weights: Weights, live: Live) -> Outputs:
        """Run from the named values on; return the plan's outputs."""
        known = dict(values)
        for name, module in self.nodes.items():
            inputs = [known[source] for source in self.plan.by_name[name].inputs]
            if isinstance(module, Mixed):
                decision = self.driven_by[name]
                known[name] = module(inputs[0], weights[decision], live[decision])
            else:
                known[name] = module(*inputs)
        return {name: known[node] for name, node in self.plan.outputs.items()}

    def fixed_cost(self, price: Price) -> float:
        """Return the price of all nodes that no decision drives."""
        fixed = [name for name in self.nodes if name not in self.driven_by]
        return sum(price(self.plan.call(name)) for name in fixed)

    def mixed_cost(self, weights: Weights, price: Price) -> Tensor:
        """Return the expected price of all nodes that a decision drives."""
        parts = []
        for name, decision in self.driven_by.items():
            node = self.nodes[name]
            if isinstance(node, Mixed):
                parts.append(node.expected_price(weights[decision], price))
        return torch.stack(parts).sum()


def checked(decisions: Iterable[Decision], weights: Weights, known: Live | None, *, images: int) -> Live:
    """Refuse weights that do not fit the decisions; return which options to run."""
    for decision in decisions:
        if decision.name not in weights:
            raise Unsupported(f"no weights for the decision '{decision.name}'; give one tensor per decision.")
        shape, options = tuple(weights[decision.name].shape), len(decision.options)
        if shape not in ((options,), (images, options)):
            raise Unsupported(
                f"weights of '{decision.name}' have shape {shape}; allowed: ({options},), or ({images}, {options}) "
                "with one row per image."
            )
    return live(weights) if known is None else known


def transfer_nodes(
    network: Network, modules: Mapping[str, nn.Module], *, picks: Picks, driven_by: Mapping[str, str]
) -> None:
    """Copy the state of every node that has one from the module of the same name, or its picked candidate."""
    for name, target in network.nodes.items():
        source: nn.Module | None = modules.get(name)
        if isinstance(source, Mixed):  # even where the target has no weights: the candidate may be removed
            source = _picked(source, driven_by[name], picks)
        if not target.state_dict():
            continue
        if source is None:
            raise Unsupported(
                f"node '{name}' has weights, but its candidate has none: another space's network?"
            )
        target.load_state_dict(source.state_dict())


def receive_nodes(
    network: Network, modules: Mapping[str, nn.Module], *, picks: Picks, driven_by: Mapping[str, str]
) -> None:
    """Copy the state of every node of a network into the module of the same name, or its picked candidate."""
    for name, source in network.nodes.items():
        target: nn.Module | None = modules.get(name)
        if isinstance(target, Mixed):
            target = _picked(target, driven_by[name], picks)
        if target is not None and source.state_dict():
            target.load_state_dict(source.state_dict())


def _picked(mixed: Mixed, decision: str, picks: Picks) -> nn.Module | None:
    try:
        return mixed.candidate(picks[decision])
    except Unsupported as problem:
        raise Unsupported(f"{decision}: {problem}") from None


def remaining_options(
    decisions: Iterable[Decision], mixed: Mapping[str, Sequence[Mixed]]
) -> dict[str, tuple[int, ...]]:
    """Return the options left for each decision; decisions without candidates keep all."""
    return {
        decision.name: mixed[decision.name][0].remaining
        if mixed.get(decision.name)
        else tuple(range(len(decision.options)))
        for decision in decisions
    }


def keep_only(supernet: Supernet, options: Mapping[str, Sequence[int]]) -> None:
    """Remove all other options, as a resumed search does before it loads the supernet's state."""
    for decision, left in supernet.remaining().items():
        for option in set(left) - set(options[decision]):
            supernet.remove(decision, option)


def most_likely(
    decisions: Iterable[Decision], probabilities: Mapping[str, Sequence[float]]
) -> dict[str, int]:
    """Pick the most likely option of every decision, the first of equals."""
    picks = {}
    for decision in decisions:
        row = list(probabilities[decision.name])
        picks[decision.name] = row.index(max(row))
    return picks


def freeze_affine(module: nn.Module) -> None:
    """Fix scale and shift of all norms at 1 and 0, as a norm without them has."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.reset_parameters()
            part.weight.requires_grad_(False)
            part.bias.requires_grad_(False)
