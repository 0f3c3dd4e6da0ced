"""What a file may ask for: a choice among what is installed, but neither code to import nor machines to contact."""

from __future__ import annotations

from segtailor.core.errors import UserError

FLAG = "--trust-code"


class Untrusted(UserError):
    """A file of unknown origin that asks for code to be run or for something elsewhere to be contacted."""


def refuse_reach(what: str, *, trusted: bool) -> None:
    """Raise `Untrusted` unless the user typed the recipe, or said that the file that holds it is trusted."""
    if not trusted:
        raise Untrusted(
            f"the recipe of this run asks to {what}. A recipe that is read from a folder may not do that: "
            f"read its recipe.json, and if you trust its author, continue with 'segtailor resume RUN {FLAG}'."
        )
