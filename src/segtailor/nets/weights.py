"""Load weights that have other names than ours: strictly, with an error that names the first key that does not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from segtailor.core.errors import UserError

COUNTER = "num_batches_tracked"  # end of the keys of batch counters


class WeightsProblem(UserError):
    """A state dictionary that cannot be read or does not fit the network; the message names the first wrong key."""


@dataclass(frozen=True, kw_only=True)
class NameMap:
    """How a published checkpoint names a network's weights.

    `names` maps our key to the published ones (several where one tensor has several names: the last is used).
    `droppable` tells which published keys belong to parts that this network does not have (train-only heads).
    `convert`, if given, changes the published dictionary first (e.g. from an inference form).
    """

    names: Mapping[str, tuple[str, ...]]
    droppable: Callable[[str], bool] = field(default=lambda _: False)
    convert: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] | None = None


def load_named(network: nn.Module, state: Mapping[str, Tensor], names: NameMap) -> None:
    """Copy a published state dictionary into `network`; nothing is written unless every key fits."""
    check_state(state)
    if names.convert is not None:
        state = names.convert(state)
    expected = network.state_dict()
    _check_mapping(expected, names)
    _check_keys(expected, state, names)
    with torch.no_grad():
        for key, target in expected.items():
            for published in names.names.get(key, ()):
                if published in state:
                    target.copy_(state[published])


def check_state(state: object) -> None:
    """Raise unless `state` is a dictionary of named, dense tensors."""
    if not isinstance(state, Mapping):
        raise WeightsProblem(
            f"expected a state dictionary, got a {type(state).__name__}. "
            "Pass `module.state_dict()`, or give a file to `segtailor import`."
        )
    for key, value in state.items():
        if not isinstance(key, str):
            raise WeightsProblem(f"key {key!r} is a {type(key).__name__}; names of weights are text.")
        if not isinstance(value, Tensor):
            raise WeightsProblem(
                f"key '{key}' is a {type(value).__name__}, not a tensor. Drop or convert it."
            )
        if value.is_meta or value.layout is not torch.strided:
            kind = "meta" if value.is_meta else str(value.layout).removeprefix("torch.")
            raise WeightsProblem(f"key '{key}' is a {kind} tensor; a dense one with data is needed.")


def check_entry(state: Mapping[str, Tensor], key: str, target: Tensor) -> None:
    """Raise unless `state` has `key`, with the shape and the kind of numbers of `target`."""
    if key not in state:
        raise WeightsProblem(
            f"missing key '{key}' (shape {tuple(target.shape)}); the file holds {len(state)} keys. "
            "Is it a checkpoint of this very network and number of classes?"
        )
    value = state[key]
    if tuple(value.shape) != tuple(target.shape):
        raise WeightsProblem(
            f"key '{key}' has shape {tuple(value.shape)}, the network needs "
            f"{tuple(target.shape)}. Check the architecture name and the number of classes."
        )
    if target.is_floating_point() and not value.is_floating_point():
        raise WeightsProblem(
            f"key '{key}' holds {str(value.dtype).removeprefix('torch.')}, the network needs floating point."
        )


def key_pairs(
    prefix: str, published: str, layers: Iterable[tuple[str, str]], own: Mapping[str, object]
) -> dict[str, tuple[str, ...]]:
    """Map `prefix.ours.*` to `published.theirs.*` for each (ours, theirs) in `layers`, for all our keys in `own`."""
    pairs: dict[str, tuple[str, ...]] = {}
    for ours, theirs in layers:
        start = f"{prefix}.{ours}." if ours else f"{prefix}."
        goal = f"{published}.{theirs}." if theirs else f"{published}."
        pairs.update({key: (goal + key[len(start) :],) for key in own if key.startswith(start)})
    return pairs


def _check_mapping(expected: Mapping[str, Tensor], names: NameMap) -> None:
    unmapped = [key for key in expected if key not in names.names]
    if unmapped:
        raise WeightsProblem(
            f"the name map has no published name for our '{unmapped[0]}': this is a bug, report it."
        )


def _check_keys(expected: Mapping[str, Tensor], state: Mapping[str, Tensor], names: NameMap) -> None:
    known: set[str] = set()
    for key, target in expected.items():
        for published in names.names[key]:
            known.add(published)
            if published not in state and published.endswith(COUNTER):
                continue  # old checkpoints have no counters, and inference does not need them
            check_entry(state, published, target)
    for key in state:
        if key not in known and not names.droppable(key):
            raise WeightsProblem(
                f"unknown key '{key}': the network has no such weight. Check the architecture name."
            )
