"""The state of a training on disk: one safetensors file and one JSON file, so that nothing is unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from segtailor.core.codec import Json, read_json
from segtailor.core.errors import RunProblem

TENSORS, COUNTERS = "state.safetensors", "state.json"


def write_state(
    folder: Path, groups: Mapping[str, Mapping[str, Tensor]], counters: Mapping[str, Json]
) -> None:
    """Write groups of named tensors and the plain counters."""
    tensors = {
        f"{group}/{name}": value.detach().cpu().contiguous().clone()  # safetensors refuses shared memory
        for group, members in groups.items()
        for name, value in members.items()
    }
    save_file(tensors, folder / TENSORS)
    (folder / COUNTERS).write_text(json.dumps(dict(counters)), encoding="utf-8")


def read_state(folder: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Read what `write_state` wrote; damage raises `RunProblem`."""
    counters = read_json(folder / COUNTERS, what="training state", error=RunProblem)
    try:
        tensors = load_file(folder / TENSORS)
    except (SafetensorError, OSError) as problem:
        raise RunProblem(
            f"the training state {folder / TENSORS} cannot be read ({problem}); resume from an older checkpoint."
        ) from None
    groups: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        group, name = key.split("/", 1)
        groups.setdefault(group, {})[name] = value
    return groups, counters
