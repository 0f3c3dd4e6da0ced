"""How files of earlier exports are known again, so that others are not replaced in their stead."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from segtailor.core.codec import read_json
from segtailor.core.errors import UserError
from segtailor.core.ownership import IsOurs, contains_mark, has_fields, has_marked_neighbour
from segtailor.deploy.formats import NOTE
from segtailor.nets.onnx.metadata import KEY

VERIFY, DECISION = "verify.json", "int8.json"

is_onnx = contains_mark(
    b"\n%c%s\x12" % (len(KEY), KEY.encode())
)  # the key of its metadata, as ONNX files are coded
is_archive = contains_mark(NOTE.encode())
is_figures = has_fields("file", "equal", "label_agreement")
is_decision = has_fields("kept", "reason", "label_agreement")
_is_xml = contains_mark(f"<{KEY} ".encode(), begins=b"<?xml")


def _is_quantised(path: Path) -> bool:
    """Tell by its own mark, or by the decision that names it: a bare file that is quantised bears none."""
    return is_onnx(path) or (path.is_file() and _told(path.with_name(DECISION)).get("file") == path.name)


def _told(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path, what="file")
    except UserError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_engine(path: Path) -> bool:
    """Tell by the figures of the export: an engine has no place for a mark."""
    told = _told(path.with_name(VERIFY))
    return path.is_file() and path.name in (told.get("file"), *told.get("others", ()))


KNOWN: Mapping[str, IsOurs] = {
    "model.onnx": is_onnx,
    "model.xml": _is_xml,
    "model.bin": has_marked_neighbour("model.xml", _is_xml),
    "model.ts": is_archive,
    "model.pt2": is_archive,
    "model.engine": _is_engine,
    VERIFY: is_figures,
}
QUANTISED: Mapping[str, IsOurs] = {
    "model.int8.onnx": _is_quantised,
    DECISION: is_decision,
}


def exported(name: str) -> IsOurs:
    """Return how an exported file of this name is recognised; one of an unknown kind never is."""
    return KNOWN.get(name, lambda _: False)
