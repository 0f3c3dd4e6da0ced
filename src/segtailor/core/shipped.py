"""What comes with the package: its version, and trained networks, each a bundle folder with the name users give."""

from __future__ import annotations

from pathlib import Path

VERSION = "0.1.0"
SHIPPED = Path(__file__).parents[1] / "weights"
DESCRIPTION = "model.json"  # the file by which a folder is recognised as a bundle
CARD = "card.md"  # says where a shipped network comes from
DATA_PLACEHOLDER = "PATH"  # written instead of the data folder into the provenance of shipped bundles


def shipped() -> tuple[str, ...]:
    """Return the names of the trained networks that come with the package."""
    return tuple(sorted(file.parent.name for file in SHIPPED.glob(f"*/{DESCRIPTION}")))


def bundle_folder(model: str | Path) -> Path:
    """Return the folder of a bundle: the named folder if it exists, else the one of shipped weights with that name."""
    path = Path(model)
    return SHIPPED / path.name if is_shipped(model) else path


def is_shipped(model: str | Path) -> bool:
    """Tell whether a name means shipped weights; an existing folder with that name has priority."""
    return str(model) in shipped() and not Path(model).is_dir()
