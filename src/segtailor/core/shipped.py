"""Trained networks that come with the package: one bundle folder each, named as users name them."""

from __future__ import annotations

from pathlib import Path

SHIPPED = Path(__file__).parents[1] / "weights"
DESCRIPTION = "model.json"  # what makes a folder a bundle
CARD = "card.md"  # where a shipped network comes from, for people
ANYWHERE = "PATH"  # stands for the folder of the data in what shipped bundles say of their training


def shipped() -> tuple[str, ...]:
    """Return the names of the trained networks that come with the package."""
    return tuple(sorted(file.parent.name for file in SHIPPED.glob(f"*/{DESCRIPTION}")))


def bundle_place(model: str | Path) -> Path:
    """Return the folder that a bundle's name stands for: itself where there is one, else that of shipped weights."""
    path = Path(model)
    return SHIPPED / path.name if is_shipped(model) else path


def is_shipped(model: str | Path) -> bool:
    """Tell whether a name stands for shipped weights; a folder of that name comes first."""
    return str(model) in shipped() and not Path(model).is_dir()
