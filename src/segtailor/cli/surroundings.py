"""Flags that say where work is done, and the environment's say in it: the only reader of environment variables."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from cyclopts import Parameter

if TYPE_CHECKING:
    from segtailor.api.training import Surroundings

Cache: TypeAlias = Annotated[
    Path | None,
    Parameter(help="Folder for decoded images; SEGTAILOR_CACHE or the user's cache folder by default."),
]
Device: TypeAlias = Annotated[
    str | None, Parameter(help="cpu, cuda, cuda:1, ...; the best one here by default.")
]


def surroundings(*, cache: Path | None, device: str | None, json: bool) -> Surroundings:
    """Turn the flags into where work is done; progress goes to stderr."""
    from segtailor.api.training import Surroundings
    from segtailor.runs import display_for

    base = os.environ.get("SEGTAILOR_CACHE") or os.environ.get("XDG_CACHE_HOME")
    home = Path(base) if base else Path.home() / ".cache"
    return Surroundings(
        cache=cache or home / "segtailor", device=device, display=display_for(sys.stderr, json=json)
    )
