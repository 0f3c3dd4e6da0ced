"""What a run ran on: recorded once, compared on resume, because other versions may compute other bits."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TypeAlias

from segtailor.core.codec import Json

Environment: TypeAlias = dict[str, Json]
PACKAGES = (
    "segtailor",
    "torch",
    "numpy",
    "pillow",
    "safetensors",
    "pydantic",
    "onnx",
    "onnxruntime",
    "openvino",
)


def environment() -> Environment:
    """Describe interpreter, machine and the packages that can change a result."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def changes(before: Environment, now: Environment) -> list[str]:
    """Name what differs, as `torch 2.11 -> 2.13`."""
    old, new = _flat(before), _flat(now)
    names = [name for name in new if name in old and old[name] != new[name]]
    return [f"{name} {old[name]} -> {new[name]}" for name in names]


def _flat(facts: Environment) -> dict[str, Json]:
    packages = facts.get("packages")
    return {
        **{name: value for name, value in facts.items() if name != "packages"},
        **(packages if isinstance(packages, dict) else {}),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
