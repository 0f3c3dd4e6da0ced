"""Devices: which one to use, number formats, seeds, determinism, and steps that are recorded as CUDA graphs.

Apart from `targets/` this is the only module that names CUDA. Launching thousands of small kernels takes longer than
computing them, so a step that is recorded once and replayed is launched as one. Its tensors must stay where they are:
inputs are copied into the recorded ones, and all state is changed in place.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from segtailor.core.errors import Unsupported
from segtailor.ops.modules.convolutions import without_cudnn

Precision: TypeAlias = Literal["fp32", "bf16", "fp16"]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
TRIM_THRESHOLD, MAX_MAPPINGS = -1, -4  # parameters of glibc's mallopt (malloc.h)
NEVER = -1  # to trim


def pick_device(name: str | None = None) -> torch.device:
    """Return the named device, or an accelerator if there is one; a missing device raises `Unsupported`.

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
    """Use deterministic kernels where the device has them (slower); a CPU with a fixed number of threads needs none."""
    torch.backends.cudnn.deterministic = on
    torch.backends.cudnn.benchmark = not on
    torch.use_deterministic_algorithms(on, warn_only=True)


def tune_kernels(*, on: bool) -> None:
    """Let cuDNN time its kernels for every new shape of a layer, which takes seconds: only long work repays that."""
    torch.backends.cudnn.benchmark = on and not torch.backends.cudnn.deterministic


@contextmanager
def many_shapes(device: torch.device) -> Iterator[None]:
    """Run networks that are seen only a few times: their layers begin at once, though each is slower than planned ones.

    cuDNN plans its kernels anew for every shape of a layer, which takes longer than some hundred of its runs. CPUs
    plan nothing.
    """
    with without_cudnn() if device.type == "cuda" else nullcontext():
        yield


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
    """Free what a failure for lack of memory left behind, and cached blocks, so that smaller batches fit."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def keep_memory(device: torch.device) -> None:
    """Keep the memory that a CPU frees, instead of giving it back to the system after every operation.

    Steps take and free the same large blocks again and again. Those from the system are filled with zeros page by page
    first, which takes as long as computing small networks (docs/results.md#training-pipeline). Only glibc can be told.
    """
    if device.type == "cpu" and platform.libc_ver()[0] == "glibc":
        allocator = ctypes.CDLL(None)
        allocator.mallopt(MAX_MAPPINGS, 0)
        allocator.mallopt(TRIM_THRESHOLD, NEVER)


def collective_backend(device: torch.device) -> str:
    """Return the name of the communication library for several processes."""
    return "nccl" if device.type == "cuda" else "gloo"


def can_record(device: torch.device) -> bool:
    """Tell whether work on a device can be recorded and replayed."""
    return device.type == "cuda"


@contextmanager
def on_side_stream(device: torch.device) -> Iterator[None]:
    """Run on a side stream, which CUDA requires for warm-up steps before a recording."""
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
    """Return a handle by which recorded steps share memory; None where nothing is recorded."""
    return torch.cuda.graph_pool_handle() if can_record(device) else None


def record(function: Callable[[], None], device: torch.device, *, pool: object = None) -> Callable[[], None]:
    """Record the work of a function on a device without running it; return a function that replays it."""
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
        raise failure from None  # and not the error of ending a broken recording
    finally:
        del failure  # it refers to this frame: the cycle would keep tensors until garbage is collected
    return graph.replay


def allow_recording(optimiser: torch.optim.Optimizer) -> None:
    """Allow an optimiser in a recorded step: one that counts steps then does so on the device."""
    for group in optimiser.param_groups:
        if "capturable" in group:
            group["capturable"] = True


class CapturedStep:
    """Wraps a function of named tensors that returns nothing and never waits for the device.

    The first `warmup` calls run normally, so that kernels are chosen and caches filled. The next call records and
    replays, and later ones replay: every call does exactly one step. With `record` False, or where the device cannot
    record, every call runs normally. Steps that never run at the same time and only change tensors in place may share
    the memory of a `pool`.
    """

    def __init__(
        self,
        function: Callable[..., None],
        device: torch.device,
        *,
        warmup: int = 3,
        record: bool = True,
        pool: object = None,
    ) -> None:
        self.function, self.device, self._pool = function, device, pool
        self._warmup_left = warmup
        self._records = record and can_record(device)
        self._inputs: dict[str, Tensor] = {}
        self._replay: Callable[[], None] | None = None

    @property
    def recorded(self) -> bool:
        """Whether calls are replays now."""
        return self._replay is not None

    def __call__(self, **tensors: Tensor) -> None:
        """Do one step with these values."""
        if not self._records:
            self.function(**tensors)
            return
        self._copy_inputs(tensors)
        if self._warmup_left > 0:
            self._warmup_left -= 1
            with on_side_stream(self.device):
                self.function(**self._inputs)
            return
        if self._replay is None:
            self._replay = record(lambda: self.function(**self._inputs), self.device, pool=self._pool)
        self._replay()

    def _copy_inputs(self, tensors: Mapping[str, Tensor]) -> None:
        if not self._inputs:
            self._inputs = {name: value.clone() for name, value in tensors.items()}
            return
        for name, value in tensors.items():
            recorded = self._inputs.get(name)
            if recorded is None or recorded.shape != value.shape:
                raise Unsupported(
                    f"a recorded step takes '{name}' in one shape only; {tuple(value.shape)} is another than before. "
                    "Do not record where batches change their size."
                )
            recorded.copy_(value, non_blocking=True)
