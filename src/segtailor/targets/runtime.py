"""What a runtime is, the registry of runtimes, and the functions that prepare a network for one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from segtailor.core.errors import Unsupported, unknown
from segtailor.core.plan import Shape
from segtailor.core.registry import RUNTIMES as RUNTIMES  # extensions import it from here
from segtailor.core.target import Target

if TYPE_CHECKING:
    from torch import nn

MAX_INPUT_VALUES = 2**28  # of one input: a larger size is a mistake, and is refused before allocating


class Compiled:
    """A network ready to run on resident inputs. Subclasses hold what their runtime needs.

    `run` does one inference and returns when it is done, unless `asynchronous`: then it only enqueues work
    on the device, and `synchronise` waits for it. `threads` is None if the runtime does not tell. `notes` are shown
    beside a measured time: what was done to the network.
    """

    asynchronous: bool = False
    threads: int | None = None
    notes: tuple[str, ...] = ()

    def run(self) -> None:
        """Do one inference on the resident inputs."""
        raise NotImplementedError

    def outputs(self, *arrays: NDArray[Any]) -> NDArray[Any]:
        """Run on arrays in host memory, of the shapes compiled for, and return the output in host memory."""
        raise NotImplementedError

    def synchronise(self) -> None:
        """Wait until everything that `run` enqueued is done."""

    def prepared(self) -> AbstractContextManager[None]:
        """Apply process-wide settings, such as the number of threads, while timing."""
        return nullcontext()

    def close(self) -> None:
        """Free memory and files."""


class Runtime(Protocol):
    """A way to run networks. It declares what it accepts; `runtime_for` checks that before any work."""

    devices: ClassVar[tuple[str, ...]]
    precisions: ClassVar[tuple[str, ...]]
    options: ClassVar[tuple[str, ...]]
    experimental: ClassVar[bool]

    def available(self, target: Target) -> str | None:
        """Return None if the target can be used here, else the reason and what to install."""

    def compile(
        self, network: nn.Module, target: Target, inputs: Sequence[Shape], *, pixels: bool = False
    ) -> Compiled:
        """Prepare `network` (a whole one, or a single operator with several inputs) for batch 1.

        The given network is not changed. With `pixels` its only input is a uint8 image
        (1, height, width, 3) instead of float maps (1, channels, height, width).
        """


def runtime_for(target: Target) -> Runtime:
    """Return the runtime of a target if it can be used here; otherwise raise with the reason and the remedy."""
    runtime: Runtime = RUNTIMES.get(target.runtime)()
    _check_declared(runtime, target)
    reason = runtime.available(target)
    if reason is not None:
        raise Unsupported(f"target {target} cannot be used here: {reason}")
    return runtime


def compile_network(
    network: nn.Module, target: Target, inputs: Sequence[Shape], *, pixels: bool = False
) -> Compiled:
    """Prepare a network for a target, checking the target and the input sizes before any work."""
    check_sizes(inputs)
    return runtime_for(target).compile(network, target, inputs, pixels=pixels)


def check_sizes(inputs: Sequence[Shape]) -> None:
    """Refuse inputs that are empty or too large to allocate."""
    if not inputs:
        raise Unsupported("a network needs at least one input; none was given.")
    for shape in inputs:
        values = shape.channels * shape.height * shape.width
        if min(shape) < 1 or values > MAX_INPUT_VALUES:
            raise Unsupported(
                f"input size {shape.channels}x{shape.height}x{shape.width} (channels, height, width) is out of "
                f"range: 1 to {MAX_INPUT_VALUES:,} values are accepted. Choose a smaller size, e.g. 512x1024."
            )


def describe_runtimes() -> list[tuple[str, str]]:
    """Return (name, 'available' or the reason why not) of every runtime, on its first device that works here."""
    return [(name, _availability(RUNTIMES.get(name)(), name)) for name in RUNTIMES.names()]


def describe_targets() -> list[tuple[str, str]]:
    """Return (target, 'available' or the reason why not) of every device, runtime and precision known."""
    rows = []
    for name in RUNTIMES.names():
        runtime = RUNTIMES.get(name)()
        for device in runtime.devices:
            for precision in runtime.precisions:
                target = Target(device=device, runtime=name, precision=precision)
                rows.append(
                    (str(target), runtime.available(target) or _with_experimental("available", runtime))
                )
    return rows


def example_inputs(inputs: Sequence[Shape], *, pixels: bool = False) -> tuple[NDArray[Any], ...]:
    """Return resident inputs: the same noise every time (some kernels are faster on zeros)."""
    rng = np.random.default_rng(0)
    if pixels:
        (image,) = inputs
        return (rng.integers(0, 256, (1, image.height, image.width, image.channels), dtype=np.uint8),)
    return tuple(rng.standard_normal((1, *shape), dtype=np.float32) for shape in inputs)


def split_device(device: str) -> tuple[str, int]:
    """Split a device such as `cuda:1` into kind and index."""
    kind, _, index = device.partition(":")
    if index and not index.isdecimal():
        raise Unsupported(f"device '{device}' is not a kind with a number; write for example cuda:0.")
    return kind, int(index or 0)


def flag(target: Target, name: str, *, default: bool) -> bool:
    """Read a target option that is on (1) or off (0)."""
    text = target.options.get(name)
    if text is None:
        return default
    if text not in ("0", "1"):
        raise Unsupported(f"target option {name}={text} is neither 0 nor 1; write for example ?{name}=1.")
    return text == "1"


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Run with a number of torch threads (None: unchanged); the process-wide setting is restored afterwards."""
    import torch

    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _availability(runtime: Runtime, name: str) -> str:
    reasons = []
    for device in runtime.devices:
        reason = runtime.available(Target(device=device, runtime=name, precision=runtime.precisions[0]))
        if reason is None:
            return _with_experimental(f"available on {device}", runtime)
        reasons.append(reason)
    return _with_experimental(reasons[0], runtime)


def _with_experimental(text: str, runtime: Runtime) -> str:
    return f"{text} (experimental)" if runtime.experimental else text


def _check_declared(runtime: Runtime, target: Target) -> None:
    kind, _ = split_device(target.device)
    if kind not in ("cpu", "cuda"):
        raise unknown("device", kind, ("cpu", "cuda"))
    if kind not in runtime.devices:
        raise Unsupported(
            f"target {target}: runtime '{target.runtime}' runs on {' and '.join(runtime.devices)}, "
            f"not on {kind}. Choose another runtime or device; `segtailor list targets` names them."
        )
    if target.precision not in runtime.precisions:
        able = [name for name in RUNTIMES.names() if target.precision in RUNTIMES.get(name).precisions]
        raise Unsupported(
            f"target {target}: runtime '{target.runtime}' computes in {', '.join(runtime.precisions)}, not in "
            f"{target.precision}. Choose one of these, or a runtime with {target.precision}: {', '.join(able)}."
        )
    for name in target.options:
        if name not in runtime.options:
            raise unknown(f"option of runtime '{target.runtime}'", name, runtime.options)
