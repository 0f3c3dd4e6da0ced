"""`segtailor resume`: go on with an interrupted run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from segtailor.cli.options import Json
from segtailor.cli.output import emit
from segtailor.cli.surroundings import Where


def resume_(
    run: Path, /, *, where: Annotated[Where, Parameter(name="*")] = Where(), json: Json = False
) -> None:
    """Go on with a run that was interrupted; a finished one just shows its result.

    Parameters
    ----------
    run:
        The run directory.
    """
    import segtailor.tailoring.settings  # noqa: F401 - a run may be a tailoring
    from segtailor.api.training import resume

    result = {
        "run": str(run),
        **resume(run, surroundings=where.surroundings(json=json)),
    }
    emit(result, lambda console: console.print_json(data=result), json=json)
