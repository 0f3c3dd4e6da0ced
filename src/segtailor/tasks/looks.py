"""What is written of a prediction: colours, bare values, or colours laid over the picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from segtailor.core.errors import Unsupported

Form: TypeAlias = Literal["colour", "overlay", "ids"]


@dataclass(frozen=True, kw_only=True)
class Look:
    """What is written: `colour`, `overlay` (colours over the picture) or `ids` (bare values); each kind says how."""

    form: Form = "colour"
    opacity: float = 0.55

    def __post_init__(self) -> None:
        if not 0 <= self.opacity <= 1:
            raise Unsupported(f"opacity {self.opacity:g} is outside 0..1; give for example 0.5.")
