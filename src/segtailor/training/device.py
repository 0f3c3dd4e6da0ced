"""Devices: which one, number formats, seeds, determinism. Beside `targets/` the only place that names CUDA."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from segtailor.core.errors import Unsupported

Precision: TypeAlias = Literal["fp32", "bf16", "fp16"]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def pick_device(name: str | None = None) -> torch.device:
    """Return the named device, or the best one present; a device that is not there raises `Unsupported`.

    Of several processes on one machine, started by `torchrun`, each gets its own accelerator.
    """
    if name is None or name in ("auto", "cuda"):
        if torch.cuda.is_available():
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(device)
            return device
        name = name if name == "cuda" else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise Unsupported(f"device '{name}' is not available here; use 'cpu' or leave it out.") from None
    return device


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    """Return the context in which the forward pass runs; fp32 changes nothing."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=DTYPES[precision])


def place(module: nn.Module, device: torch.device, *, channels_last: bool) -> nn.Module:
    """Move a module to the device in the wanted memory format."""
    module.to(device)
    if channels_last:
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return module


def arrange(images: Tensor, *, channels_last: bool) -> Tensor:
    """Return images in the wanted memory format."""
    return images.contiguous(memory_format=torch.channels_last) if channels_last else images


def seed_everything(seed: int) -> None:
    """Seed torch on every device: initial weights and dropout. Data has its own seeds."""
    torch.manual_seed(seed)


def make_deterministic(*, on: bool) -> None:
    """Ask for repeatable kernels where the device has them (slower); a CPU with fixed threads repeats anyway."""
    torch.backends.cudnn.deterministic = on
    torch.backends.cudnn.benchmark = not on
    torch.use_deterministic_algorithms(on, warn_only=True)


def rng_state(device: torch.device) -> dict[str, Tensor]:
    """Return the states of torch's random generators."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["device"] = torch.cuda.get_rng_state(device)
    return states


def restore_rng(states: dict[str, Tensor], device: torch.device) -> None:
    """Set the states that `rng_state` returned."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "device" in states:
        torch.cuda.set_rng_state(states["device"], device)


def release_memory(device: torch.device) -> None:
    """Give back what a failure for lack of memory left behind, and cached blocks, so that smaller ones fit."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def collective_backend(device: torch.device) -> str:
    """Return the name of the communication library for several processes."""
    return "nccl" if device.type == "cuda" else "gloo"


def can_record(device: torch.device) -> bool:
    """Tell whether work on a device can be recorded and replayed."""
    return device.type == "cuda"


@contextmanager
def aside(device: torch.device) -> Iterator[None]:
    """Run on a stream beside the usual one, as work must that is recorded later."""
    if not can_record(device):
        yield
        return
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(side):
            yield
    finally:
        torch.cuda.current_stream(device).wait_stream(side)


def memory_pool(device: torch.device) -> object:
    """Return what recorded steps share their memory by; None where nothing is recorded."""
    return torch.cuda.graph_pool_handle() if can_record(device) else None


def record(function: Callable[[], None], device: torch.device, *, pool: object = None) -> Callable[[], None]:
    """Record what a function does on a device, without doing it; return what does it."""
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    failure: Exception | None = None
    try:
        with torch.cuda.graph(graph, pool=pool):  # type: ignore[arg-type]
            try:
                function()
            except Exception as problem:
                failure = problem
                raise
    except Exception:
        if failure is None:
            raise
        raise failure from None  # not what ending a broken recording may say besides
    finally:
        del failure  # it knows this frame, and both would keep what was computed until they are collected
    return graph.replay


def let_record(optimiser: torch.optim.Optimizer) -> None:
    """Allow an optimiser to be part of a recorded step: one that counts its steps must do so on the device."""
    for group in optimiser.param_groups:
        if "capturable" in group:
            group["capturable"] = True
