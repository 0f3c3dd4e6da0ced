"""What is written of a prediction: colours, bare values, or colours laid over the picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from segtailor.core.errors import Unsupported
from segtailor.core.task import Colour

WRONG: Colour = (213, 94, 0)  # vermilion: told from grey with any colour vision
Form: TypeAlias = Literal["colour", "overlay", "ids"]


@dataclass(frozen=True, kw_only=True)
class Look:
    """What is written: `colour`, `overlay` (colours over the picture) or `ids` (bare values); each kind says how."""

    form: Form = "colour"
    opacity: float = 0.55

    def __post_init__(self) -> None:
        if not 0 <= self.opacity <= 1:
            raise Unsupported(f"opacity {self.opacity:g} is outside 0..1; give for example 0.5.")


def pale(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a picture (height, width, 3) as a backdrop for what is marked on it."""
    grey = np.asarray(Image.fromarray(image).convert("L")).astype(np.float32)
    return np.repeat((186 + grey * 0.25).astype(np.uint8)[:, :, None], 3, axis=2)


def marked(image: NDArray[np.uint8], strength: NDArray[np.floating]) -> Image.Image:
    """Lay the colour of errors over a pale picture, as strong (0 to 1) as the errors (height, width) are."""
    share = np.clip(strength, 0, 1)[:, :, None]
    mixed = pale(image) * (1 - share) + np.array(WRONG) * share
    return Image.fromarray(np.rint(mixed).astype(np.uint8))
