"""Flags that say where work is done, and the environment's say in it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from segtailor.api.training import Surroundings


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where work is done."""

    cache: Path | None = None
    """Folder for decoded images; SEGTAILOR_CACHE or the user's cache folder by default."""
    device: str | None = None
    """cpu, cuda, cuda:1, ...; the best one here by default."""

    def surroundings(self, *, json: bool) -> Surroundings:
        """Turn the flags into where work is done; progress goes to stderr."""
        from segtailor.api.training import Surroundings
        from segtailor.runs import display_for

        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        cache = self.cache or Path(os.environ.get("SEGTAILOR_CACHE") or home / "segtailor")
        return Surroundings(cache=cache, device=self.device, display=display_for(sys.stderr, json=json))
