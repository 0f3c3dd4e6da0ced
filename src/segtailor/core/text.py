"""Safe display of names: of files, classes and runs, on terminals, in pages and drawings, and in commands.

Names come from other people and may hold anything: escape sequences, line breaks, characters that change the direction
of writing, bytes that are not UTF-8. Everything that shows a name goes through this module; files and `--json` keep
names unchanged.
"""

from __future__ import annotations

import html
import shlex
import unicodedata
from pathlib import Path

from segtailor.core.errors import UserError

# Control, format, surrogate, private and unassigned characters, and separators of lines and paragraphs.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"  # format characters that Persian, Indian scripts and emoji need
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_BYTES = range(0xDC80, 0xDD00)  # how Python represents bytes of a file name that are not UTF-8


def visible(text: str, *, lines: bool = False) -> str:
    r"""Return text in one line of visible characters; others become escapes such as `\x1b` or `\u202e`.

    `lines` keeps line breaks, for text of several lines whose names are already visible.
    """
    if text.isprintable():
        return text
    return "".join(_escape(sign) if _hidden(sign) and not (lines and sign == "\n") else sign for sign in text)


def escaped(text: str) -> str:
    """Return text for elements and attributes of HTML, SVG and XML: visible, and without markup."""
    return html.escape(visible(text, lines=True))


def command(*words: object) -> str:
    """Return a command line, in one visible line, that a shell splits into exactly these words."""
    return " ".join(word(str(each)) for each in words)


def word(text: str) -> str:
    """Return one quoted word of a command line; invisible characters become byte escapes, as bash, zsh and ksh read."""
    if not any(map(_hidden, text)):
        return shlex.quote(text)
    return "$'" + "".join(map(_quoted, text)) + "'"


def first_line(problem: BaseException) -> str:
    """Return the first line of an error of another package, cut to 200 characters, or its kind."""
    lines = str(problem).strip().splitlines()
    return lines[0][:200] if lines else type(problem).__name__


def path_argument(path: object) -> str:
    """Return a path as an argument, also if it starts like a flag or a home folder."""
    text = str(path)
    return f"./{text}" if text.startswith(("-", "~")) else text


def require_utf8(path: Path, *, what: str) -> None:
    """Refuse a path that is not UTF-8, because the library that reads weights cannot use it."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UserError(
            f"{what} {path}: its name holds bytes that are no UTF-8, which weights cannot be read from; rename it."
        ) from None


def _hidden(sign: str) -> bool:
    return unicodedata.category(sign) in _HIDDEN and sign not in _JOINERS


def _escape(sign: str) -> str:
    number = ord(sign)
    if sign in _SHORT:
        return _SHORT[sign]
    if number in _BYTES:
        return f"\\x{number - 0xDC00:02x}"
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _quoted(sign: str) -> str:
    if sign in "'\\":
        return "\\" + sign
    if not _hidden(sign):
        return sign
    errors = "surrogateescape" if ord(sign) in _BYTES else "surrogatepass"
    return "".join(f"\\x{byte:02x}" for byte in sign.encode(errors=errors))
