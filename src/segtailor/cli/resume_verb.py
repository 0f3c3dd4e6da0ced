"""`segtailor resume`: go on with an interrupted run."""

from __future__ import annotations

from pathlib import Path

from segtailor.cli.options import Json
from segtailor.cli.output import emit
from segtailor.cli.surroundings import Cache, Device, surroundings


def resume_(run: Path, /, *, cache: Cache = None, device: Device = None, json: Json = False) -> None:
    """Go on with a run that was interrupted; a finished one just shows its result.

    Parameters
    ----------
    run:
        The run directory.
    """
    from segtailor.api.training import resume

    result = {
        "run": str(run),
        **resume(run, surroundings=surroundings(cache=cache, device=device, json=json)),
    }
    emit(result, lambda console: console.print_json(data=result), json=json)
