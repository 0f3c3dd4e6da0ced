"""`segtailor resume`: go on with an interrupted run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from segtailor.cli.options import Json
from segtailor.cli.output import emit
from segtailor.cli.surroundings import Where


def resume_(
    run: Path,
    /,
    *,
    trust_code: Annotated[
        bool,
        Parameter(
            negative=(),
            help="The recipe in the folder may import code by name and contact other machines. Only for runs of people "
            "you trust.",
        ),
    ] = False,
    where: Annotated[Where, Parameter(name="*")] = Where(),
    json: Json = False,
) -> int:
    """Go on with a run that was interrupted; a finished one just shows its result.

    The exit code of a tailoring is 1 if no network keeps the budget.

    Parameters
    ----------
    run:
        The run directory.
    """
    from segtailor.api.training import resume
    from segtailor.tailoring.run import go_on, is_tailoring

    around = replace(where.surroundings(json=json), trust_code=trust_code)
    found = go_on(run, around) if is_tailoring(run) else resume(run, surroundings=around)
    result = {"run": str(run), **found}
    emit(result, lambda printer: printer.document(result), json=json)
    return 0 if found.get("met", True) else 1
