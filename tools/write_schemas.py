"""Write the JSON schema of every family's architecture files from its dataclass; a test keeps them in step."""

from __future__ import annotations

import json
from pathlib import Path

import segtailor.spaces  # noqa: F401 - registers the families
from segtailor.core.space import architecture_schema, families

ROOT = Path(__file__).parents[1] / "src" / "segtailor" / "spaces"


def main() -> None:
    for family in families():
        text = json.dumps(architecture_schema(family), indent=1, ensure_ascii=False)
        (ROOT / family / "schema.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
