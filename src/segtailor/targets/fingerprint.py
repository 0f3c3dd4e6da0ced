"""Which machine measured: hardware and versions, nothing that names its owner (no host name, no paths)."""

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

PACKAGES = ("torch", "onnxruntime", "onnxruntime-gpu", "openvino", "tensorrt")


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
        """Sixteen digits that change with anything listed here."""
        return fingerprint(to_json(self))

    def differences(self, other: Machine) -> list[str]:
        """Say, one line each, in what `other` differs."""
        mine, theirs = to_json(self), to_json(other)
        return [f"{name}: {mine[name]} against {theirs[name]}" for name in mine if mine[name] != theirs[name]]


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
    found = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
