"""Read weights from an untrusted file: nothing in it is executed, and an error says what is wrong with it.

This module knows file formats and the containers of training programs; `weights.py` knows which keys a network needs.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import struct
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from segtailor.core.memory import bounded_memory
from segtailor.core.text import first_line
from segtailor.nets.weights import WeightsProblem

MAX_FILE_BYTES = 4 * 2**30  # the largest published segmentation network has a tenth of it
SPARE_MEMORY_BYTES = 256 * 2**20  # that reading may take beyond twice the size of the file
MAX_HEADER_BYTES = 16 * 2**20  # of names and sizes in a .safetensors file: more than 100,000 tensors
MAX_DEPTH = 500  # containers inside each other; a checkpoint has about ten
MAX_OPERATIONS = 1_000_000  # of a pickle; a tensor takes about forty
LEGACY_PICKLES = 4  # at the start of the older format: magic number, version, machine, content
MAX_SHARING = 4  # tensors may share memory (tied weights): all together at most this many times the file
CONTAINERS = ("state_dict", "model")  # keys under which training programs store weights
PREFIXES = ("module.", "_orig_mod.")  # left by data-parallel and compiled modules

# Errors of torch's restricted unpickler and zip reader on damaged bytes; a fuzzed file can raise any of them.
DAMAGE = (
    ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, MemoryError, OSError,
    RuntimeError, TypeError, ValueError, struct.error, zipfile.BadZipFile,
)  # fmt: skip


def read_state(path: Path | str, *, limit: int = MAX_FILE_BYTES) -> dict[str, Tensor]:
    """Read a state dictionary (`.pth`, `.pt`, `.safetensors`) onto the CPU, without containers and prefixes."""
    path = Path(path)
    _check_size(path, limit)
    if path.suffix == ".safetensors":
        return _unprefixed(_read_safetensors(path))
    return _unprefixed(_tensors(_unwrapped(_read_torch(path)), path))


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read a `.safetensors` file; a bad one raises `SafetensorError`, `OSError` or `ValueError`."""
    if not path.is_file():  # a pipe would block for ever
        raise FileNotFoundError(f"{path} does not exist or is no regular file")
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"its header states {length} bytes; at most {MAX_HEADER_BYTES} are read")
    state: dict[str, Tensor] = safetensors.torch.load_file(path, device="cpu")
    return state


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
        return read_safetensors(path)
    except (safetensors.SafetensorError, *DAMAGE) as problem:
        raise _damaged(path, problem) from None


def _read_torch(path: Path) -> object:
    budget = SPARE_MEMORY_BYTES + 2 * path.stat().st_size
    try:
        for content in _pickles(path):
            _check_depth(content, path)
        with bounded_memory(budget), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about its own options
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as problem:
        raise WeightsProblem(
            f"checkpoint {path} was refused: it is damaged, or holds more than a plain dictionary of tensors"
            f"{_named(problem)}. Nothing in it was run. Where it was written, save `model.state_dict()` alone."
        ) from None
    except MemoryError:
        raise WeightsProblem(
            f"checkpoint {path} is {path.stat().st_size} bytes and takes more than {budget} bytes of memory to read: "
            "it is damaged or made to fill the memory. Nothing of it was used; fetch it again."
        ) from None
    except DAMAGE as problem:
        raise _damaged(path, problem) from None


def _pickles(path: Path) -> Iterator[IO[bytes]]:
    """Yield the pickled parts of a file; an archive that unpacks to more than its own size is refused.

    torch never compresses: members larger than the file are a decompression bomb, or overlap.
    """
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            for _ in range(LEGACY_PICKLES):
                yield file
        return
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
        if unpacked > size:
            raise WeightsProblem(
                f"checkpoint {path} unpacks to {unpacked} bytes and weighs {size}; torch writes its files without "
                "compression. Save it again with torch.save."
            )
        for entry in archive.infolist():
            if entry.filename.endswith(".pkl"):
                yield io.BytesIO(archive.read(entry))


def _check_depth(content: IO[bytes], path: Path) -> None:
    """Refuse deeply nested containers, which overflow the stack of the interpreter.

    Only depths are computed here, one number for each value; torch explains what is not valid.
    """
    stack: list[int | None] = []  # depths; None is a MARK of the pickle
    memo: dict[Any, int] = {}
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
            name = opcode.name
            if name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
                memo[len(memo) if name == "MEMOIZE" else argument] = stack[-1] or 0
            elif name in ("GET", "BINGET", "LONG_BINGET"):
                stack.append(memo[argument])
            elif name == "MARK":
                stack.append(None)
            elif name == "DUP":
                stack.append(stack[-1])
            else:
                _apply(opcode, stack)
            deep = bool(stack) and (stack[-1] or 0) > MAX_DEPTH
            if deep or count > MAX_OPERATIONS:
                excess = (
                    f"{MAX_DEPTH} containers inside each other" if deep else f"{MAX_OPERATIONS} small parts"
                )
                raise WeightsProblem(
                    f"checkpoint {path} was refused: it holds more than {excess}. "
                    "Where it was written, save `model.state_dict()` alone."
                )
    except (LookupError, ValueError, OverflowError, UnicodeError):
        return


def _apply(opcode: pickletools.OpcodeInfo, stack: list[int | None]) -> None:
    """Replace the depths that an operation takes from the stack by those that it leaves there."""
    taken: list[int] = []
    if pickletools.markobject in opcode.stack_before:
        while (top := stack.pop()) is not None:
            taken.append(top)
        below = opcode.stack_before.index(pickletools.markobject)
    else:
        below = len(opcode.stack_before)
    operands = [stack.pop() or 0 for _ in range(below)]
    fills = opcode.name in ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD")
    if fills:  # a container gets deeper by its deepest item, not by the number of items
        container, inside = operands[-1], max((*taken, *operands[:-1]), default=0)
        stack.append(max(container, inside + 1))
    else:
        depth = 1 + max((*taken, *operands), default=0) if opcode.stack_before else 0
        stack.extend(depth for _ in opcode.stack_after)


def _unwrapped(content: object) -> object:
    """Return the weights out of the container of a training program, e.g. {"epoch": 3, "state_dict": {...}}."""
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
    _check_extent(content, path)
    return dict(content)


def _check_extent(state: Mapping[str, Tensor], path: Path) -> None:
    """Refuse tensors that are larger than what is stored for them: copying them would fill the memory."""
    total, limit = 0, MAX_SHARING * path.stat().st_size
    for key, value in state.items():
        if value.is_meta or value.layout is not torch.strided or value.is_nested or value.is_quantized:
            raise WeightsProblem(f"checkpoint {path}: entry '{key[:60]}' is no dense tensor with data.")
        size = value.numel() * value.element_size()
        total += size
        if size > value.untyped_storage().nbytes() or total > limit:
            raise WeightsProblem(
                f"checkpoint {path}: entry '{key[:60]}' has shape {_sides(value.shape)}, more than is stored for it. "
                "Where it was written, save contiguous copies of the tensors."
            )


def _sides(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _unprefixed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remove prefixes that all keys have; a prefix of only some keys is part of their names."""
    for _ in PREFIXES:
        for prefix in PREFIXES:
            if state and all(key.startswith(prefix) for key in state):
                state = {key.removeprefix(prefix): value for key, value in state.items()}
    return state


def _damaged(path: Path, problem: BaseException) -> WeightsProblem:
    return WeightsProblem(
        f"checkpoint {path} cannot be read ({first_line(problem)}); it is truncated, damaged or of another kind. "
        "Download or write it again; .pth, .pt and .safetensors are read."
    )


def _named(problem: BaseException) -> str:
    """Return what a refused pickle would call, if torch names it; torch's advice to disable the check is left out."""
    match = re.search(r"(?:GLOBAL|global|class|type|function)\s+`?([\w.]{1,80})", str(problem))
    return f" (it wants to call {match[1]})" if match and "." in match[1] else ""


def _describe(content: object) -> str:
    empty = isinstance(content, Mapping) and not content
    return "an empty dictionary" if empty else f"a value of type {type(content).__name__}"
