"""Several processes, one run: `torchrun` starts them, each takes its share of every batch."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from segtailor.core.errors import Unsupported
from segtailor.training.device import collective_backend


class World(NamedTuple):
    """This process among all."""

    rank: int
    size: int


def world() -> World:
    """Return this process's place; alone unless processes were joined."""
    if dist.is_available() and dist.is_initialized():
        return World(dist.get_rank(), dist.get_world_size())
    return World(0, 1)


def join(device: torch.device) -> World:
    """Join the processes that `torchrun` started, if it did."""
    if dist.is_available() and dist.is_torchelastic_launched() and not dist.is_initialized():
        dist.init_process_group(collective_backend(device))
    return world()


def leave() -> None:
    """Part from the other processes."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def add_up(value: Tensor) -> Tensor:
    """Return the sum over all processes."""
    if world().size > 1:
        dist.all_reduce(value)
    return value


def from_first(value: int, device: torch.device) -> int:
    """Return the value that the first process has."""
    if world().size == 1:
        return value
    shared = torch.tensor(value, device=device)
    dist.broadcast(shared, 0)
    return int(shared)


def any_process(flag: bool, device: torch.device) -> bool:
    """Return whether any process says so, e.g. that it was asked to stop."""
    return bool(add_up(torch.tensor(int(flag), device=device)))


def share_buffers(network: nn.Module) -> None:
    """Give every process the statistics of the first one, so that all validate the same network."""
    if world().size > 1:
        for buffer in network.buffers():
            dist.broadcast(buffer, 0)


def with_shared_norms(network: nn.Module, device: torch.device) -> nn.Module:
    """Let batch norms see the batches of all processes."""
    if world().size > 1 and device.type == "cpu":
        raise Unsupported("sync_bn needs an accelerator: torch has no such norm for CPUs. Turn sync_bn off.")
    if world().size == 1:
        return network
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
    return converted


def parallel(module: nn.Module, device: torch.device) -> nn.Module:
    """Average gradients over processes, if there are several."""
    if world().size == 1:
        return module
    return DistributedDataParallel(module, device_ids=None if device.type == "cpu" else [device])
