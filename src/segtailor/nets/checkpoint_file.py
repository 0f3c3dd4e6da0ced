"""Read weights from a file that may come from anywhere: nothing in it is executed, and damage is explained.

Owns file formats and their wrappings; which keys a network needs is the business of `weights.py`.
"""

from __future__ import annotations

import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from segtailor.nets.weights import WeightsProblem

LIMIT = 4 * 2**30  # bytes, on disk and unpacked: the largest published segmentation network has a tenth of it
CONTAINERS = (
    "state_dict",
    "model",
)  # keys under which training programs keep the weights, beside their own state
PREFIXES = ("module.", "_orig_mod.")  # left by data-parallel and compiled modules

# What torch's restricted unpickler and zip reader raise on damaged bytes; a fuzzed file can reach any of them.
DAMAGE = (
    ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, MemoryError, OSError,
    RuntimeError, TypeError, ValueError, struct.error, zipfile.BadZipFile,
)  # fmt: skip


def read_state(path: Path | str, *, limit: int = LIMIT) -> dict[str, Tensor]:
    """Read a state dictionary (`.pth`, `.pt`, `.safetensors`) onto the CPU, without wrappings and prefixes."""
    path = Path(path)
    _check_size(path, limit)
    if path.suffix == ".safetensors":
        return _unprefixed(_read_safetensors(path))
    return _unprefixed(_tensors(_unwrapped(_read_torch(path, limit)), path))


def _check_size(path: Path, limit: int) -> None:
    try:
        size = path.stat().st_size
    except OSError as problem:
        raise WeightsProblem(
            f"checkpoint {path} cannot be read: {problem.strerror}. Check the path."
        ) from None
    if not path.is_file():
        raise WeightsProblem(
            f"checkpoint {path} is not a file; give the path of a .pth, .pt or .safetensors."
        )
    if size > limit:
        raise WeightsProblem(
            f"checkpoint {path} is {size} bytes; at most {limit} are read. Is it the right file?"
        )


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        state: dict[str, Tensor] = safetensors.torch.load_file(path, device="cpu")
    except (safetensors.SafetensorError, *DAMAGE) as problem:
        raise _damaged(path, problem) from None
    return state


def _read_torch(path: Path, limit: int) -> object:
    try:
        _check_unpacked_size(path, limit)
        with warnings.catch_warnings():  # torch's advice is about its own switches
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as problem:
        raise WeightsProblem(
            f"checkpoint {path} was refused: it is damaged, or holds more than a plain dictionary of tensors"
            f"{_named(problem)}. Nothing in it was run. Where it was written, save `model.state_dict()` alone."
        ) from None
    except DAMAGE as problem:
        raise _damaged(path, problem) from None


def _check_unpacked_size(path: Path, limit: int) -> None:
    """Refuse a small archive that unpacks to a huge one; older files are no archives and hold what they weigh."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    if size > limit:
        raise WeightsProblem(f"checkpoint {path} unpacks to {size} bytes; at most {limit} are read.")


def _unwrapped(content: object) -> object:
    """Return what is inside the containers of training programs, e.g. {"epoch": 3, "state_dict": {...}}."""
    for _ in CONTAINERS:
        inner = [content[key] for key in CONTAINERS if key in content] if isinstance(content, Mapping) else []
        content = next((value for value in inner if isinstance(value, Mapping)), content)
    return content


def _tensors(content: object, path: Path) -> dict[str, Tensor]:
    if not isinstance(content, Mapping) or not content:
        raise WeightsProblem(
            f"checkpoint {path} holds {_describe(content)}, not a dictionary of named tensors. "
            f"Weights may also be under one of {', '.join(map(repr, CONTAINERS))}."
        )
    for key, value in content.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise WeightsProblem(
                f"checkpoint {path}: entry {str(key)[:60]!r} is {_describe(value)}, not a named tensor. "
                f"Weights may also be under one of {', '.join(map(repr, CONTAINERS))}."
            )
    return dict(content)


def _unprefixed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Drop prefixes that every key has; one that only some have is part of their names."""
    for _ in PREFIXES:
        for prefix in PREFIXES:
            if state and all(key.startswith(prefix) for key in state):
                state = {key.removeprefix(prefix): value for key, value in state.items()}
    return state


def _damaged(path: Path, problem: BaseException) -> WeightsProblem:
    return WeightsProblem(
        f"checkpoint {path} cannot be read ({_first_line(problem)}); it is truncated, damaged or of another kind. "
        "Download or write it again; .pth, .pt and .safetensors are read."
    )


def _named(problem: BaseException) -> str:
    """Name what a refused pickle wanted to call, if torch says; its advice to switch the check off is not passed on."""
    match = re.search(r"(?:GLOBAL|global|class|type|function)\s+`?([\w.]{1,80})", str(problem))
    return f" (it wants to call {match[1]})" if match and "." in match[1] else ""


def _describe(content: object) -> str:
    empty = isinstance(content, Mapping) and not content
    return "an empty dictionary" if empty else f"a value of type {type(content).__name__}"


def _first_line(problem: BaseException) -> str:
    lines = str(problem).strip().splitlines()
    return lines[0][:160] if lines else type(problem).__name__
