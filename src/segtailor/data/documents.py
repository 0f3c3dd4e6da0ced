"""Small text and YAML files from users: size bounded, damage explained, YAML reduced to plain JSON data."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import yaml

from segtailor.core.errors import DataProblem

TEXT_LIMIT = 64 * 2**20  # bytes: a list of a million files
YAML_LIMIT = 2**20  # bytes


def read_text(path: Path, *, what: str, limit: int = TEXT_LIMIT) -> str:
    """Read a text file in UTF-8, or raise `DataProblem`."""
    try:
        status = path.stat()
        size = status.st_size
        if not stat.S_ISREG(status.st_mode):  # a pipe would be waited for without end
            raise DataProblem(f"{what} {path} is no regular file; check the path.")
        if size > limit:
            raise DataProblem(
                f"{what} {path} is {size} bytes; at most {limit} are read. Is it the right file?"
            )
        return path.read_text(encoding="utf-8-sig")
    except OSError as problem:
        raise DataProblem(f"{what} {path} cannot be read: {problem.strerror}. Check the path.") from None
    except UnicodeDecodeError:
        raise DataProblem(f"{what} {path} is not text in UTF-8; write it again.") from None


def read_yaml(path: Path, *, what: str) -> Any:
    """Read a YAML file as plain JSON data, or raise `DataProblem`."""
    text = read_text(path, what=what, limit=YAML_LIMIT)
    try:
        return json.loads(json.dumps(yaml.load(text, _PlainLoader), default=str))
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as problem:
        reason = " ".join(str(problem).split())
        raise DataProblem(f"{what} {path} is not valid YAML: {reason}. Correct it.") from None


class _PlainLoader(yaml.SafeLoader):
    """A safe loader without aliases, which let a short file stand for endless data."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not supported")
        return super().compose_node(parent, index)
