"""Files of users: images and masks (through PIL only), text and YAML, and lists of folders.

Files are untrusted: sizes are limited, damaged files raise `DataProblem`, YAML is reduced to plain JSON data.
"""

from __future__ import annotations

import json
import os
import stat
import struct
import warnings
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.PngImagePlugin import PngInfo

from segtailor.core.errors import DataProblem
from segtailor.core.ownership import MARK

PICTURE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp"})
MAX_PIXELS = 2**27  # 16k x 8k; a larger picture is a mistake or a decompression bomb
MAX_INDEX_MASK_PIXELS = 178_956_970  # of a mask with a byte per pixel: PIL's own limit
# Tried in this order. Others are left out on purpose: some of PIL's readers start external programs.
FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "WEBP", "GIF", "PPM")
MAX_FOLDERS = 1_000_000  # folders walked below one root
# What PIL's decoders raise on damaged input (found by tests with truncated and scrambled files).
_DAMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    EOFError,
    LookupError,
    ArithmeticError,
    AttributeError,
    struct.error,
    zlib.error,
)
MAX_TEXT_BYTES = 64 * 2**20  # enough for a list of a million files
MAX_YAML_BYTES = 2**20
TIFF_SOFTWARE_TAG = 305  # holds the name of the program that wrote the file


class TooLarge(DataProblem):
    """A picture that would have to be decoded whole and has too many pixels for that."""


class RawMask(NamedTuple):
    """A mask as the file stores it: ids (height, width) or colours (height, width, 3).

    `palette` holds the colours (n, 3) of a palette file, whose `values` are indices into it.
    """

    values: NDArray[np.generic]
    palette: NDArray[np.uint8] | None = None

    @property
    def coloured(self) -> bool:
        """Whether `values` are colours rather than ids."""
        return self.values.ndim == 3


def read_image(path: Path) -> NDArray[np.uint8]:
    """Read an image as RGB (height, width, 3), turned upright as its EXIF orientation says.

    16-bit greyscale is scaled from its full range; transparency is dropped.
    """
    with _opened(path, "image") as picture:
        return _upright_rgb(picture, f"image {path}")


def decode_image(data: bytes, *, name: str, limit: int = MAX_PIXELS) -> NDArray[np.uint8]:
    """Decode an image that arrived as bytes, just as `read_image` would; `limit` bounds its pixels."""
    subject = f"image {name}"
    if not data:
        raise unusable(subject, "it is empty (zero bytes)")
    with _decoded(BytesIO(data), subject, limit) as picture:
        return _upright_rgb(picture, subject)


def image_size(data: bytes, *, name: str, limit: int = MAX_PIXELS) -> tuple[int, int]:
    """Return the height and width that the header of an image states; `limit` bounds its pixels."""
    subject = f"image {name}"
    if not data:
        raise unusable(subject, "it is empty (zero bytes)")
    with _decoded(BytesIO(data), subject, limit, load=False) as picture:
        return picture.height, picture.width


def read_mask(path: Path) -> RawMask:
    """Read a mask without interpreting it: greyscale and palette files give ids, the others colours."""
    with _opened(path, "mask") as picture:
        return _raw_mask(picture, f"mask {path}")


def decode_mask(data: bytes, *, name: str, limit: int = MAX_PIXELS) -> RawMask:
    """Decode a mask that arrived as bytes, just as `read_mask` would; `limit` bounds its pixels."""
    subject = f"mask {name}"
    if not data:
        raise unusable(subject, "it is empty (zero bytes)")
    with _decoded(BytesIO(data), subject, limit) as picture:
        return _raw_mask(picture, subject)


def picture_size(path: Path) -> tuple[int, int] | None:
    """Return the height and width that the header of a picture states; None where PIL cannot read it."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # reading from a pipe might never end
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as picture:
                return picture.height, picture.width
    except (UnidentifiedImageError, Image.DecompressionBombError, *_DAMAGE):
        return None


def _raw_mask(picture: Image.Image, subject: str) -> RawMask:
    upright = ImageOps.exif_transpose(picture)
    mode = upright.mode
    if mode == "F":
        raise unusable(subject, "it holds floating-point values")
    if mode in ("P", "PA"):
        flat = upright.getpalette("RGB") or []
        indices = np.array(upright if mode == "P" else upright.getchannel(0), dtype=np.uint8)
        return RawMask(indices, np.array(flat, dtype=np.uint8).reshape(-1, 3))
    if mode in ("1", "L", "LA"):
        channel = upright.getchannel(0) if mode == "LA" else upright
        return RawMask(np.array(channel).astype(np.uint8, copy=False))
    if mode.startswith("I"):
        return RawMask(np.array(upright).astype(np.int32))
    return RawMask(np.array(upright.convert("RGB"), dtype=np.uint8))


def to_rgb(values: NDArray[Any], *, brightest: int) -> NDArray[np.uint8]:
    """Scale grey or colour (height, width, 1 or 3) of any whole numbers, 0 to `brightest`, to RGB in uint8."""
    if brightest == 65535:
        values = values // 257
    elif brightest != 255:
        values = np.minimum(values, brightest).astype(np.uint32) * 255 // brightest
    return np.broadcast_to(values, (*values.shape[:2], 3)).astype(np.uint8)


def colours_of(raw: RawMask) -> NDArray[np.uint8] | None:
    """Return the mask as colours (height, width, 3), or nothing where the file stores plain ids."""
    if raw.coloured:
        return raw.values.astype(np.uint8, copy=False)
    if raw.palette is None:
        return None
    table = np.zeros((256, 3), dtype=np.uint8)
    table[: len(raw.palette)] = raw.palette[:256]
    colours: NDArray[np.uint8] = table[raw.values.astype(np.uint8, copy=False)]
    return colours


def read_text(path: Path, *, what: str, limit: int = MAX_TEXT_BYTES) -> str:
    """Read a text file in UTF-8, or raise `DataProblem`."""
    try:
        return read_bytes(path, what=what, most=limit).decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise DataProblem(f"{what} {path} is not text in UTF-8; write it again.") from None


def read_bytes(path: Path, *, what: str, most: int) -> bytes:
    """Read a file of at most so many bytes, or raise `DataProblem`."""
    try:
        status = path.stat()
        size = status.st_size
        if not stat.S_ISREG(status.st_mode):  # reading from a pipe might never end
            raise DataProblem(f"{what} {path} is not a regular file; check the path.")
        if size > most:
            raise DataProblem(
                f"{what} {path} is {size} bytes; at most {most} are read. Is it the right file?"
            )
        return path.read_bytes()
    except OSError as problem:
        raise DataProblem(f"{what} {path} cannot be read: {problem.strerror}. Check the path.") from None


def read_yaml(path: Path, *, what: str) -> Any:
    """Read a YAML file as plain JSON data, or raise `DataProblem`."""
    text = read_text(path, what=what, limit=MAX_YAML_BYTES)
    try:
        return json.loads(json.dumps(yaml.load(text, _PlainLoader), default=str))
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as problem:
        reason = " ".join(str(problem).split())
        raise DataProblem(f"{what} {path} is not valid YAML: {reason}. Correct it.") from None


def list_pictures(folder: Path, suffixes: Collection[str] = PICTURE_SUFFIXES) -> tuple[Path, ...]:
    """Return every file below `folder` with one of the suffixes, sorted. Links to folders are followed once."""
    pictures: list[Path] = []
    visited: set[tuple[int, int]] = set()  # device and inode of folders
    waiting = [folder]
    while waiting:
        current = waiting.pop()
        try:
            status = current.stat()
            if (status.st_dev, status.st_ino) in visited:
                continue  # a link back to a parent folder: following it would never end
            visited.add((status.st_dev, status.st_ino))
            entries = sorted(os.scandir(current), key=lambda entry: entry.name)
        except OSError as problem:
            raise DataProblem(
                f"folder {current} cannot be listed: {problem.strerror}. Check the path."
            ) from None
        if len(visited) > MAX_FOLDERS:
            raise DataProblem(
                f"{folder} holds more than {MAX_FOLDERS} folders; name the dataset's own folder."
            )
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if _is_folder(entry):
                waiting.append(Path(entry.path))
            elif Path(entry.name).suffix.lower() in suffixes:
                pictures.append(Path(entry.path))  # broken links too: the reader reports them
    return tuple(sorted(pictures))


def list_folders(folder: Path) -> tuple[Path, ...]:
    """Return the visible folders directly inside `folder`, sorted; none where `folder` cannot be listed."""
    try:
        entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
        return tuple(sorted(Path(entry.path) for entry in entries if _is_folder(entry)))
    except OSError:
        return ()


def file_fingerprint(path: Path) -> str:
    """Return path, size and modification time of a file as text: it changes when the content does."""
    try:
        status = path.stat()
    except OSError as problem:
        raise DataProblem(f"{path} cannot be read: {problem.strerror}. Restore or remove it.") from None
    return f"{path.absolute()}:{status.st_size}:{status.st_mtime_ns}"


def software_tag(kind: str) -> dict[str, Any]:
    """Return the options with which PIL stores the ownership mark in a picture; BMP files cannot hold one."""
    if kind == "PNG":
        info = PngInfo()
        info.add_text("Software", MARK)
        return {"pnginfo": info}
    if kind == "JPEG":
        return {"comment": MARK.encode()}
    return {"tiffinfo": {TIFF_SOFTWARE_TAG: MARK}} if kind == "TIFF" else {}


@contextmanager
def _opened(path: Path, what: str) -> Iterator[Image.Image]:
    """Open and fully decode a picture, turning every kind of damage into one clear error."""
    subject = f"{what} {path}"
    try:
        status = path.stat()
    except (OSError, ValueError) as problem:
        raise unusable(subject, _reason(problem)) from None
    if not stat.S_ISREG(status.st_mode):
        raise unusable(subject, "it is not a regular file")
    if status.st_size == 0:
        raise unusable(subject, "it is empty (zero bytes)")
    with _decoded(
        path, subject, MAX_PIXELS, of_bytes=MAX_INDEX_MASK_PIXELS if what == "mask" else 0
    ) as picture:
        yield picture


@contextmanager
def _decoded(
    source: Path | BytesIO, subject: str, limit: int, *, of_bytes: int = 0, load: bool = True
) -> Iterator[Image.Image]:
    """Open a picture of at most `limit` pixels, or `of_bytes` where that is more and each takes one byte."""
    smaller = "Make it smaller first."
    try:
        with warnings.catch_warnings():  # of sizes well below our own limit
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            opened = Image.open(source, formats=FORMATS)
        with opened as picture:
            if picture.mode in ("1", "L", "P"):
                limit = max(limit, of_bytes)
            if picture.width * picture.height > limit:
                size = f"{picture.width}x{picture.height}"
                raise TooLarge(str(unusable(subject, f"{size} is over the limit of {limit} pixels", smaller)))
            if load:
                picture.load()
            yield picture
    except Image.DecompressionBombError:
        raise TooLarge(str(unusable(subject, f"it is over the limit of {limit} pixels", smaller))) from None
    except UnidentifiedImageError:
        raise unusable(subject, "its content is not a picture of a known format") from None
    except _DAMAGE as problem:
        raise unusable(subject, _reason(problem)) from None


def _upright_rgb(picture: Image.Image, subject: str) -> NDArray[np.uint8]:
    upright = ImageOps.exif_transpose(picture)
    if upright.mode == "F":
        raise unusable(subject, "it holds floating-point values")
    if upright.mode.startswith("I"):
        grey = np.asarray(upright).astype(np.int64)
        if grey.min() < 0 or grey.max() > 65535:
            raise unusable(subject, "its values exceed 16 bits")
        return to_rgb(grey[:, :, None], brightest=65535)
    if upright.mode == "P" and "transparency" in upright.info:
        upright = upright.convert("RGBA")
    return np.array(upright.convert("RGB"), dtype=np.uint8)


@contextmanager
def opened_picture(path: Path) -> Iterator[Image.Image]:
    """Open and decode a picture, upright, in the mode of the file; damage raises `DataProblem`."""
    with _opened(path, "image") as picture:
        yield ImageOps.exif_transpose(picture)


@contextmanager
def decoded_picture(data: bytes, *, name: str, limit: int) -> Iterator[Image.Image]:
    """Decode a picture that arrived as bytes, upright, in the mode of the file; `limit` bounds its pixels."""
    with _decoded(BytesIO(data), f"image {name}", limit) as picture:
        yield ImageOps.exif_transpose(picture)


def _reason(problem: Exception) -> str:
    reason = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
    return str(reason).rstrip(".")


def unusable(subject: str, reason: str, remedy: str = "Restore, convert or remove it.") -> DataProblem:
    """Return the error for a file that cannot be read; `subject` is its kind and path."""
    return DataProblem(f"{subject} cannot be read: {reason}. {remedy}")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that points to itself
        return False


class _PlainLoader(yaml.SafeLoader):
    """A safe loader without aliases, with which a short file can expand to endless data."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not supported")
        return super().compose_node(parent, index)
