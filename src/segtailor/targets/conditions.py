"""What the machine was doing around a measurement: clocks, temperatures, load, where they can be read."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import psutil

BUSY = 0.25  # share of the processor used by others while we are idle
SLOWED = 0.85  # clock after against clock before


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Readings at one moment; None where the machine does not tell. `busy` is the share of all cores in use."""

    busy: float
    load: float | None = None
    cpu_mhz: float | None = None
    cpu_celsius: float | None = None
    gpu_mhz: float | None = None
    gpu_celsius: float | None = None


def conditions(gpu: str | None = None) -> Conditions:
    """Read the machine, while our own process is idle; `gpu` names the CUDA device to read as well."""
    busy = psutil.cpu_percent(interval=0.1) / 100
    gpu_mhz, gpu_celsius = _gpu(gpu) if gpu else (None, None)
    return Conditions(
        busy=busy,
        load=_load(),
        cpu_mhz=_clock(),
        cpu_celsius=_temperature(),
        gpu_mhz=gpu_mhz,
        gpu_celsius=gpu_celsius,
    )


def condition_warnings(before: Conditions, after: Conditions) -> list[str]:
    """Return warnings: a machine that was busy, or whose clocks fell."""
    found = []
    busiest = max(before.busy, after.busy)
    if busiest > BUSY:
        found.append(f"other processes used {busiest:.0%} of the processor; stop them and measure again")
    for name, early, late in (
        ("processor", before.cpu_mhz, after.cpu_mhz),
        ("GPU", before.gpu_mhz, after.gpu_mhz),
    ):
        if early and late and late < SLOWED * early:
            found.append(
                f"the {name} clock fell from {early:.0f} to {late:.0f} MHz: throttling, or saving power"
            )
    return found


def _load() -> float | None:
    with suppress(OSError, AttributeError):
        return float(psutil.getloadavg()[0])
    return None


def _clock() -> float | None:
    with suppress(OSError, NotImplementedError, AttributeError, RuntimeError):
        reading = psutil.cpu_freq()
        return float(reading.current) if reading and reading.current else None
    return None


def _temperature() -> float | None:
    with suppress(OSError, AttributeError, RuntimeError):
        readings = [entry.current for group in psutil.sensors_temperatures().values() for entry in group]
        return float(max(readings)) if readings else None
    return None


def _gpu(device: str) -> tuple[float | None, float | None]:
    import torch

    try:
        import pynvml
    except ImportError:  # the package nvidia-ml-py, through which torch reads clocks, may be absent
        return None, None
    with suppress(pynvml.NVMLError, RuntimeError):  # some virtual machines hide these readings
        index = torch.device(device)
        return float(torch.cuda.clock_rate(index)), float(torch.cuda.temperature(index))
    return None, None
