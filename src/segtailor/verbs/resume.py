"""`segtailor resume`: continue an interrupted run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from segtailor.core.codec import Json as JsonValue
from segtailor.runs import Context, read_recipe, read_result
from segtailor.verbs.options import Json
from segtailor.verbs.output import emit, with_display


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
    context: Annotated[Context, Parameter(name="*")] = Context(),
    json: Json = False,
) -> int:
    """Continue an interrupted run; a finished one just shows its result.

    The exit code of a tailoring is 1 if no network keeps the budget.

    Parameters
    ----------
    run:
        The run directory.
    """
    outcome = resume(run, trust_code=trust_code, context=with_display(context, json=json))
    result = {"run": str(run), **outcome}
    emit(result, lambda printer: printer.document(result), json=json)
    return 0 if outcome.get("met", True) else 1


def resume(
    folder: str | Path, *, trust_code: bool = False, context: Context | None = None
) -> dict[str, JsonValue]:
    """Continue an interrupted run; a finished one, also one of an earlier version, just returns its result.

    A recipe that names code to import or a machine to contact is refused unless `trust_code`.
    """
    from segtailor.recipes.recipe import RunsItself, carry_out, has_old_form, parse_recipe

    placed = replace(context or Context(), folder=Path(folder), trusted=trust_code)
    document, result = read_recipe(placed.folder), read_result(placed.folder)
    if result is not None and has_old_form(document):
        return result
    recipe = parse_recipe(document, what=f"recipe of {folder}")
    return recipe.carry_out(placed) if isinstance(recipe, RunsItself) else carry_out(recipe, placed)
