"""What a file may make this program do: choose among what is installed, but neither import code nor contact anybody."""

from __future__ import annotations

from segtailor.core.errors import UserError

FLAG = "--trust-code"


class Untrusted(UserError):
    """A file of unknown origin that asks for code to be run or for something elsewhere to be contacted."""


def refuse_reach(what: str, *, trusted: bool) -> None:
    """Raise `Untrusted` unless whoever started this typed the recipe, or vouches for the file that holds it."""
    if not trusted:
        raise Untrusted(
            f"the recipe of this run asks to {what}. A recipe that is read from a folder may not do that unasked: "
            f"look into its recipe.json, and if you trust who wrote it, go on with 'segtailor resume RUN {FLAG}'."
        )
