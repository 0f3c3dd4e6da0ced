"""Where work is done and who watches it: one value from the command line down to the jobs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from segtailor.runs.display import Display
from segtailor.runs.session import Policy

HIDDEN = Parameter(parse=False)  # set by the program, not by a flag


@dataclass(frozen=True, kw_only=True)
class Context:
    """Where work is done. Nothing in it changes the meaning of a result.

    `folder` is the run directory. Under `torchrun` only the process that is `leader` writes. A recipe that was read
    from a file is not `trusted`: it may neither import code by name nor contact other machines.
    """

    cache: Path | None = None
    """Folder for decoded images; SEGTAILOR_CACHE or the user's cache folder by default."""
    device: str | None = None
    """cpu, cuda, cuda:1, ...; the best one here by default."""
    folder: Annotated[Path, HIDDEN] = Path()
    display: Annotated[Display | None, HIDDEN] = None
    policy: Annotated[Policy | None, HIDDEN] = None
    leader: Annotated[bool, HIDDEN] = True
    trusted: Annotated[bool, HIDDEN] = True

    @property
    def cache_folder(self) -> Path:
        """The folder for decoded images."""
        return self.cache or Path.home() / ".cache" / "segtailor"

    def tell(self, text: str) -> None:
        """Show a message to the user, if anybody watches."""
        if self.display is not None:
            self.display.message(text)
