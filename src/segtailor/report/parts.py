"""Parts of a report kept with a run: what was found while data and network were at hand, such as pictures.

`report/parts.json` in a run directory holds fields of `Parts` by name; they win over what the journal tells.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

from segtailor.core.atomic import write_json
from segtailor.core.codec import Json, from_json, read_json, to_json
from segtailor.core.errors import RunProblem
from segtailor.report.document import Parts, Report
from segtailor.runs import Layout

FILE = "parts.json"
LIMIT = 16 * 2**20  # bytes: pictures are in it


def parts_file(folder: Path) -> Path:
    """Return where the parts of a run are kept."""
    return Layout(folder).report / FILE


def save_parts(folder: Path, parts: Parts) -> Path:
    """Keep the parts that are there (of a whole report all but title and drawings); return the file."""
    own = Parts(**{field.name: getattr(parts, field.name) for field in fields(Parts)})
    written: dict[str, Json] = to_json(own)
    empty = to_json(Parts())
    file = parts_file(folder)
    file.parent.mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in written.items() if value != empty[name]}
    write_json(file, kept, what="parts of the report")
    return file


def kept_parts(folder: Path) -> Parts:
    """Return the parts kept in a folder, none where there are none; a damaged file raises."""
    file = parts_file(folder)
    if not file.exists():
        return Parts()
    kept = read_json(file, what="parts of the report", error=RunProblem, limit=LIMIT)
    return from_json(Parts, kept, what=f"parts of the report {file}", error=RunProblem)


def with_parts(report: Report, folder: Path) -> Report:
    """Return the report with the parts kept in the folder, if there are any; notes on what is missing add up."""
    found, empty = kept_parts(folder), Parts()
    given = {field.name: getattr(found, field.name) for field in fields(Parts)}
    there = {
        name: value for name, value in given.items() if value != getattr(empty, name) and name != "missing"
    }
    return replace(report, **there, missing=(*report.missing, *found.missing))
