"""Reads XML files of unknown origin: no document types, no entities, size and depth bounded."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol
from xml.parsers import expat

from segtailor.core.errors import DataProblem

MAX_XML_BYTES = 512 * 2**20
MAX_DEPTH = 50  # of elements inside of each other
MAX_ELEMENT_TEXT = 10_000  # characters between two tags


class Handler(Protocol):
    """Who is told about elements, one by one."""

    def start(self, path: tuple[str, ...], attributes: Mapping[str, str]) -> None:
        """An element begins; `path` are the names from the root to it."""

    def end(self, path: tuple[str, ...], text: str) -> None:
        """An element ends; `text` is what it holds directly before its end."""


def read_xml(path: Path, handler: Handler, *, what: str) -> None:
    """Read a file and tell the handler; damage raises `DataProblem` with file and line."""
    parser = expat.ParserCreate()
    open_elements: list[str] = []
    text: list[str] = []

    def start(name: str, attributes: dict[str, str]) -> None:
        open_elements.append(name)
        if len(open_elements) > MAX_DEPTH:
            raise DataProblem(
                f"{what} {path}: elements are nested over {MAX_DEPTH} deep. Is it the right file?"
            )
        text.clear()
        handler.start(tuple(open_elements), attributes)

    def end(name: str) -> None:
        del name
        handler.end(tuple(open_elements), "".join(text).strip())
        open_elements.pop()
        text.clear()

    def characters(data: str) -> None:
        if len(text) < MAX_ELEMENT_TEXT:
            text.append(data[:MAX_ELEMENT_TEXT])

    def refuse(*_: object) -> None:
        raise DataProblem(
            f"{what} {path} declares a document type, with which a short file can expand to endless text. Remove it."
        )

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = characters
    parser.StartDoctypeDeclHandler = refuse
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_XML_BYTES:
            raise DataProblem(
                f"{what} {path} is no regular file, or over {MAX_XML_BYTES} bytes. Is it the right file?"
            )
        parser.Parse(path.read_bytes(), True)  # in pieces, a long attribute is read again with every piece
    except OSError as problem:
        raise DataProblem(f"{what} {path} cannot be read: {problem.strerror}. Check the path.") from None
    except (expat.ExpatError, ValueError, LookupError) as problem:  # LookupError: an unknown encoding
        raise DataProblem(
            f"{what} {path} is not valid XML ({problem}); it may be truncated. Write it again."
        ) from None
