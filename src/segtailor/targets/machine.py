"""The machine that measures: its hardware and software, and its state around a measurement (load, clocks, heat).

Nothing here names the owner of a machine: no host name, no paths.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import psutil

from segtailor.core.codec import fingerprint, to_json

PACKAGES = (
    "torch",
    "onnxruntime",
    "onnxruntime-gpu",
    "openvino",
    "ncnn",
    "ai-edge-litert",
    "executorch",
    "tensorrt",
)
BUSY_SHARE = 0.25  # of the processor, used by other processes: beyond this a measurement warns
CLOCK_RATIO = 0.85  # clock after over clock before: below this a measurement warns


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Hardware and software that decide how fast a network runs."""

    cpu: str
    cores: int
    memory_gib: int
    system: str
    gpus: tuple[str, ...]
    driver: str | None
    versions: Mapping[str, str]

    @property
    def fingerprint(self) -> str:
        """Sixteen digits that change with any of the fields."""
        return fingerprint(to_json(self))

    def differences(self, other: Machine) -> list[str]:
        """List the fields in which `other` differs, one line each."""
        mine, theirs = to_json(self), to_json(other)
        return [f"{name}: {mine[name]} against {theirs[name]}" for name in mine if mine[name] != theirs[name]]


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """State of the machine at one moment; None if it cannot be read. `busy` is the share of all cores in use."""

    busy: float
    load: float | None = None
    cpu_mhz: float | None = None
    cpu_celsius: float | None = None
    gpu_mhz: float | None = None
    gpu_celsius: float | None = None


@cache
def machine() -> Machine:
    """Describe this machine."""
    gpus, driver = _gpus()
    return Machine(
        cpu=_cpu(),
        cores=psutil.cpu_count(logical=True) or 1,
        memory_gib=round(psutil.virtual_memory().total / 2**30),
        system=f"{platform.system()} {platform.machine()}",
        gpus=gpus,
        driver=driver,
        versions={"python": platform.python_version(), **_versions()},
    )


def conditions(gpu: str | None = None) -> Conditions:
    """Read the state of the machine while this process is idle; `gpu` names a CUDA device to read as well."""
    busy = psutil.cpu_percent(interval=0.1) / 100
    gpu_mhz, gpu_celsius = _gpu_readings(gpu) if gpu else (None, None)
    return Conditions(
        busy=busy,
        load=_load(),
        cpu_mhz=_clock(),
        cpu_celsius=_temperature(),
        gpu_mhz=gpu_mhz,
        gpu_celsius=gpu_celsius,
    )


def condition_warnings(before: Conditions, after: Conditions) -> list[str]:
    """Return warnings about a machine that was busy or whose clocks fell during a measurement."""
    warnings = []
    busiest = max(before.busy, after.busy)
    if busiest > BUSY_SHARE:
        warnings.append(f"other processes used {busiest:.0%} of the processor; stop them and measure again")
    for name, early, late in (
        ("processor", before.cpu_mhz, after.cpu_mhz),
        ("GPU", before.gpu_mhz, after.gpu_mhz),
    ):
        if early and late and late < CLOCK_RATIO * early:
            warnings.append(
                f"the {name} clock fell from {early:.0f} to {late:.0f} MHz: throttling, or saving power"
            )
    return warnings


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine() or "unknown"


def _gpus() -> tuple[tuple[str, ...], str | None]:
    import torch

    if not torch.cuda.is_available():
        return (), None
    names = tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    return names, _driver()


def _driver() -> str | None:
    with suppress(OSError):
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
        words = text.splitlines()[0].split()
        return next((word for word in words if word[:1].isdigit() and "." in word), None)
    return None


def _versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


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


def _gpu_readings(device: str) -> tuple[float | None, float | None]:
    """Return clock in MHz and temperature in degrees Celsius."""
    import torch

    try:
        import pynvml
    except ImportError:  # the package nvidia-ml-py, through which torch reads clocks, may be absent
        return None, None
    with suppress(pynvml.NVMLError, RuntimeError):  # some virtual machines hide these readings
        index = torch.device(device)
        return float(torch.cuda.clock_rate(index)), float(torch.cuda.temperature(index))
    return None, None
