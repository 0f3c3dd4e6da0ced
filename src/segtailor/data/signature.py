"""The mark inside pictures of ours, by which they are known again."""

from __future__ import annotations

from typing import Any

from PIL.PngImagePlugin import PngInfo

from segtailor.core.ownership import MARK

SOFTWARE = 305  # the TIFF tag for the program that wrote a file


def signature(kind: str) -> dict[str, Any]:
    """Return what PIL needs to be told to put the mark into a picture; a BMP file has no place for one."""
    if kind == "PNG":
        info = PngInfo()
        info.add_text("Software", MARK)
        return {"pnginfo": info}
    if kind == "JPEG":
        return {"comment": MARK.encode()}
    return {"tiffinfo": {SOFTWARE: MARK}} if kind == "TIFF" else {}
