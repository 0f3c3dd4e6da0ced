"""Training in several processes that `torchrun` starts: each takes its share of every batch."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from segtailor.core.errors import Unsupported
from segtailor.training.device import collective_backend


class World(NamedTuple):
    """The rank of this process and the number of processes."""

    rank: int
    size: int


def world() -> World:
    """Return rank and number of processes; (0, 1) unless processes were joined."""
    if dist.is_available() and dist.is_initialized():
        return World(dist.get_rank(), dist.get_world_size())
    return World(0, 1)


def join(device: torch.device) -> World:
    """Join the processes that `torchrun` started, if it did."""
    if dist.is_available() and dist.is_torchelastic_launched() and not dist.is_initialized():
        dist.init_process_group(collective_backend(device))
    return world()


def leave() -> None:
    """Leave the group of processes."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def sum_over_processes(value: Tensor) -> Tensor:
    """Return the sum over all processes."""
    if world().size > 1:
        dist.all_reduce(value)
    return value


def broadcast_from_first(value: int, device: torch.device) -> int:
    """Return the value of the first process on all of them."""
    if world().size == 1:
        return value
    shared = torch.tensor(value, device=device)
    dist.broadcast(shared, 0)
    return int(shared)


def any_process(flag: bool, device: torch.device) -> bool:
    """Return whether the flag is set in any process, e.g. that it was asked to stop."""
    return bool(sum_over_processes(torch.tensor(int(flag), device=device)))


def share_buffers(network: nn.Module) -> None:
    """Copy the statistics of norms of the first process to all, so that they validate the same network."""
    if world().size > 1:
        for buffer in network.buffers():
            dist.broadcast(buffer, 0)


def convert_to_sync_norms(network: nn.Module, device: torch.device) -> nn.Module:
    """Let batch norms compute their statistics over the batches of all processes."""
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
