"""Mixed operators: candidates that read one map, summed with given weights.

The plain path runs one candidate after another and is the reference. A `Fuse` computes the same for many candidates,
and for several mixes of one map, at once (`fused.py` of a family); both use the same modules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from segtailor.core.errors import Unsupported
from segtailor.core.plan import OpCall
from segtailor.nets.relax import live

Price: TypeAlias = Callable[[OpCall], float]


class Terms(NamedTuple):
    """Candidates to run and their weights, (candidates,) or (images, candidates)."""

    modules: tuple[nn.Module, ...]
    weights: Tensor


Fuse: TypeAlias = Callable[[Tensor, Sequence[Terms]], list[Tensor]]  # one weighted sum for each of the terms


class Mixed(nn.Module):
    """Sum of candidates of one input, each times its weight, plus the input itself once where `residual`.

    `calls` has one entry per option. An option without a call (None) costs nothing and contributes zero; a `silent` one
    costs what its call costs, but contributes zero too. Only candidates with a weight other than zero run, so one-hot
    weights run one. Straight-through weights make it
    `op_k(x) * (1 + m_k - stop_gradient(m_k))`.
    """

    def __init__(
        self,
        calls: Mapping[str, OpCall | None],
        *,
        silent: Collection[str] = (),
        residual: bool = False,
        fuse: Fuse | None = None,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.options = tuple(calls)
        self.calls = tuple(calls.values())
        computing = {name: call for name, call in calls.items() if call is not None and name not in silent}
        self.candidates = nn.ModuleDict({name: call.op.module(call) for name, call in computing.items()})
        self.residual = residual
        self.fuse = fuse
        self.recompute = recompute
        self._removed: set[str] = set()
        self._priced: tuple[Price, Tensor] | None = None
        some = next(iter(computing.values()))
        self._channels, self._stride = some.output().channels, some.stride

    @property
    def remaining(self) -> tuple[int, ...]:
        """The options that were not removed."""
        return tuple(index for index, name in enumerate(self.options) if name not in self._removed)

    def remove(self, option: int) -> None:
        """Drop a candidate and its weights for good; the last one cannot be dropped."""
        name = self.options[option]
        if name in self._removed:
            return
        if len(self.remaining) == 1:
            raise Unsupported(f"'{name}' is the last candidate left; at least one must stay.")
        self._removed.add(name)
        if name in self.candidates:
            del self.candidates[name]

    def candidate(self, option: int) -> nn.Module | None:
        """Return the module of an option, or None where it contributes zero."""
        name = self.options[option]
        if name in self._removed:
            raise Unsupported(
                f"'{name}' was removed from the supernet; choose among the remaining options "
                f"{', '.join(self.options[index] for index in self.remaining)}."
            )
        return dict(self.candidates.items()).get(name)

    def terms(self, weights: Tensor, keep: Sequence[int]) -> Terms:
        """Return what there is to run: live options that compute something."""
        if weights.shape[-1] != len(self.options):
            raise Unsupported(f"{weights.shape[-1]} weights were given for {len(self.options)} candidates.")
        found = [(index, self.candidate(index)) for index in keep]
        run = [(index, module) for index, module in found if module is not None]
        indices = [index for index, _ in run]
        return Terms(tuple(module for _, module in run), _columns(weights, indices))

    def forward(self, image: Tensor, weights: Tensor, keep: Sequence[int] | None = None) -> Tensor:
        """Return the weighted sum of the options in `keep`, by default of those with a weight other than zero."""
        return mix([self], image, [weights], [live({"": weights})[""] if keep is None else keep])[0]

    def expected_price(self, weights: Tensor, price: Price) -> Tensor:
        """Return the price of the candidates weighted by `weights`, averaged over images.

        Prices stay on the device until another `price` is given: no transfer and no look-up per step.
        """
        rows = per_batch(weights)
        if self._priced is None or self._priced[0] != price or self._priced[1].device != rows.device:
            prices = [0.0 if call is None else price(call) for call in self.calls]
            self._priced = price, torch.tensor(prices, dtype=torch.float64, device=rows.device)
        return (rows * self._priced[1].to(rows.dtype)).sum()

    def zeros(self, image: Tensor) -> Tensor:
        """Return zeros of the output's shape."""
        sides = [-(-side // self._stride) for side in image.shape[2:]]
        return image.new_zeros((image.shape[0], self._channels, *sides))


def mix(
    mixes: Sequence[Mixed], image: Tensor, weights: Sequence[Tensor], kept: Sequence[Sequence[int]]
) -> list[Tensor]:
    """Run several mixed operators that read the same map; those that fuse do it together."""
    terms = [mixed.terms(row, keep) for mixed, row, keep in zip(mixes, weights, kept, strict=True)]
    running = [index for index, found in enumerate(terms) if found.modules]
    recompute = any(mixed.recompute for mixed in mixes) and torch.is_grad_enabled()
    run = _recomputed if recompute else _sums
    sums = dict(zip(running, run(mixes[0].fuse, image, [terms[index] for index in running]), strict=True))
    outputs = []
    for index, mixed in enumerate(mixes):
        if mixed.residual:
            outputs.append(image + sums[index] if index in sums else image)
        else:
            outputs.append(sums[index] if index in sums else mixed.zeros(image))
    return outputs


def per_batch(weights: Tensor) -> Tensor:
    """Average weights per image to weights of the batch: (options,)."""
    return weights.reshape(-1, weights.shape[-1]).mean(dim=0)


def plain(image: Tensor, terms: Sequence[Terms]) -> list[Tensor]:
    """Run one candidate after another: the reference that every `Fuse` must equal."""
    return [_plain_sum(image, found) for found in terms]


def scaled(image: Tensor, weight: Tensor) -> Tensor:
    """Multiply a map by one weight, or by one for each image of the batch."""
    return image * weight.to(image.dtype).reshape(-1, 1, 1, 1)


def _columns(weights: Tensor, indices: Sequence[int]) -> Tensor:
    """Return some columns; indexing by a list would wait for its transfer to the device."""
    if not indices:
        return weights[..., :0]
    first, last = indices[0], indices[-1]
    if list(indices) == list(range(first, last + 1)):
        return weights[..., first : last + 1]
    columns = weights.unbind(dim=-1)
    return torch.stack([columns[index] for index in indices], dim=-1)


def _plain_sum(image: Tensor, terms: Terms) -> Tensor:
    outputs = [
        scaled(module(image), weight)
        for module, weight in zip(terms.modules, terms.weights.unbind(dim=-1), strict=True)
    ]
    total = outputs[0]
    for output in outputs[1:]:
        total = total + output
    return total


def _sums(fuse: Fuse | None, image: Tensor, terms: Sequence[Terms]) -> list[Tensor]:
    """Fuse the mixes of several candidates, run those of one as they are."""
    several = [found for found in terms if len(found.modules) > 1]
    joint = iter((fuse or plain)(image, several) if several else ())
    return [next(joint) if len(found.modules) > 1 else _plain_sum(image, found) for found in terms]


def _recomputed(fuse: Fuse | None, image: Tensor, terms: Sequence[Terms]) -> list[Tensor]:
    """Keep only the input for the backward pass and run again there; running statistics are updated only once."""

    def run(image: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        again = [Terms(found.modules, row) for found, row in zip(terms, weights, strict=True)]
        return tuple(_sums(fuse, image, again))

    if not terms:
        return []
    rows = [found.weights for found in terms]
    contexts = partial(_contexts, [module for found in terms for module in found.modules])
    return list(checkpoint(run, image, *rows, use_reentrant=False, context_fn=contexts))


def _contexts(
    modules: Sequence[nn.Module],
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _statistics_untouched(modules)


@contextmanager
def _statistics_untouched(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Let norms normalise by the batch without updating their running statistics a second time."""
    norms = [part for module in modules for part in module.modules() if isinstance(part, nn.BatchNorm2d)]
    before = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        # The tensors saved for the backward pass must be the same as the first time, so statistics stay in the call.
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, momentum, counter in before:
            norm.momentum, norm.num_batches_tracked = momentum, counter
