"""Pictures read in bands of rows hold the same pixels as pictures that are decoded whole."""

from __future__ import annotations

import struct
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from segtailor.core.errors import DataProblem
from segtailor.data import files, parts
from segtailor.data.files import TooLarge, read_image
from segtailor.data.parts import open_rows, read_whole

RGB = np.random.default_rng(0).integers(0, 256, (100, 70, 3), dtype=np.uint8)
GREY16 = np.random.default_rng(1).integers(0, 65536, (100, 70), dtype=np.uint16)


def bands(path: Path, rows: int = 23) -> np.ndarray:
    with open_rows(path) as picture:
        assert picture is not None
        height = picture.size[0]
        return np.concatenate([picture.read(top, min(top + rows, height)) for top in range(0, height, rows)])


@pytest.mark.parametrize("form", ["strips", "one strip"])
@pytest.mark.parametrize(
    ("compression", "pixels"),
    [
        *product(
            ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits"),
            ("rgb", "grey", "palette", "alpha", "grey16"),
        ),
        ("jpeg", "rgb"),
        ("jpeg", "grey"),
    ],
)
def test_tiff_in_parts_equals_the_whole(tmp_path: Path, compression: str, form: str, pixels: str) -> None:
    picture = {
        "rgb": Image.fromarray(RGB),
        "grey": Image.fromarray(RGB[..., 0]),
        "palette": Image.fromarray(RGB).quantize(16),
        "alpha": Image.fromarray(np.dstack([RGB, RGB[..., :1]])),
        "grey16": Image.fromarray(GREY16),
    }[pixels]
    rows_per_strip = 16 if form == "strips" else 100
    path = tmp_path / "a.tif"
    picture.save(path, compression=compression, tiffinfo={278: rows_per_strip})
    np.testing.assert_array_equal(bands(path), read_image(path))


def tiled_tiff(path: Path, pixels: np.ndarray, tile: int, *, order: str = "<", orientation: int = 1) -> Path:
    """Write an uncompressed TIFF in square tiles, the last ones filled up with zeros."""
    height, width, channels = pixels.shape
    blocks = []
    for top in range(0, height, tile):
        for left in range(0, width, tile):
            block = np.zeros((tile, tile, channels), pixels.dtype)
            part = pixels[top : top + tile, left : left + tile]
            block[: part.shape[0], : part.shape[1]] = part
            blocks.append(block.astype(pixels.dtype.newbyteorder(order)).tobytes())
    bits = 8 * pixels.dtype.itemsize
    fields = [
        (256, 4, [width]), (257, 4, [height]), (258, 3, [bits] * channels), (259, 3, [1]),
        (262, 3, [2 if channels == 3 else 1]), (274, 3, [orientation]), (277, 3, [channels]), (284, 3, [1]),
        (322, 4, [tile]), (323, 4, [tile]),
        (324, 4, []), (325, 4, [len(block) for block in blocks]),
    ]  # fmt: skip
    start = 8 + 2 + 12 * len(fields) + 4
    lists = start + 2 * channels + 8 * len(blocks)
    fields[10] = (324, 4, [lists + sum(len(block) for block in blocks[:i]) for i in range(len(blocks))])
    table, extra = b"", b""
    for tag, kind, values in fields:
        body = struct.pack(order + str(len(values)) + ("H" if kind == 3 else "I"), *values)
        if len(body) > 4:
            place = struct.pack(order + "I", start + len(extra))
            extra += body
        else:
            place = body.ljust(4, b"\0")
        table += struct.pack(order + "HHI", tag, kind, len(values)) + place
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, 8)
    extra = extra.ljust(lists - start, b"\0")
    path.write_bytes(
        head + struct.pack(order + "H", len(fields)) + table + b"\0" * 4 + extra + b"".join(blocks)
    )
    return path


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_tiff_in_tiles(tmp_path: Path, order: str, kind: type) -> None:
    pixels = RGB.astype(kind) * (257 if kind is np.uint16 else 1)
    path = tiled_tiff(tmp_path / "a.tif", pixels, 32, order=order)
    np.testing.assert_array_equal(bands(path), RGB)


def test_a_tiff_that_is_not_upright_is_decoded_whole(tmp_path: Path) -> None:
    path = tiled_tiff(tmp_path / "a.tif", RGB, 32, orientation=6)
    with open_rows(path) as picture:
        assert picture is None
    assert read_whole(path).shape == (70, 100, 3)


def test_portable_and_array_files(tmp_path: Path) -> None:
    Image.fromarray(RGB).save(tmp_path / "a.ppm")
    Image.fromarray(RGB[..., 0]).save(tmp_path / "b.pgm")
    np.save(tmp_path / "c.npy", RGB)
    np.save(tmp_path / "d.npy", GREY16)
    (tmp_path / "e.pgm").write_bytes(
        b"P5\n# a comment\n70 100\n1023\n" + (GREY16 // 64).astype(">u2").tobytes()
    )
    grey = np.repeat(RGB[..., :1], 3, axis=2)
    for name, wanted in (("a.ppm", RGB), ("b.pgm", grey)):
        np.testing.assert_array_equal(bands(tmp_path / name), wanted)
        np.testing.assert_array_equal(bands(tmp_path / name), read_image(tmp_path / name))
    np.testing.assert_array_equal(bands(tmp_path / "c.npy"), RGB)
    np.testing.assert_array_equal(bands(tmp_path / "d.npy")[..., 1], GREY16 // 257)
    np.testing.assert_allclose(bands(tmp_path / "e.pgm")[..., 2], GREY16 / 257, atol=1.5)


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "bmp"])
def test_other_formats_are_decoded_whole(tmp_path: Path, suffix: str) -> None:
    Image.fromarray(RGB).save(tmp_path / f"a.{suffix}")
    with open_rows(tmp_path / f"a.{suffix}") as picture:
        assert picture is None


def test_a_png_too_large_to_decode_is_told_what_can_be_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_PIXELS", 100)
    Image.fromarray(RGB).save(tmp_path / "a.png")
    with pytest.raises(TooLarge, match=r"70x100 is over the limit of 100 pixels.*TIFF.*read in parts.*PNG"):
        read_whole(tmp_path / "a.png")


def test_damaged_and_hostile_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = tiled_tiff(tmp_path / "good.tif", RGB, 32).read_bytes()
    for keep in (5, 9, 60, 300, len(good) // 2):
        (tmp_path / "cut.tif").write_bytes(good[:keep])
        with pytest.raises(DataProblem, match=r"cut\.tif"):
            bands(tmp_path / "cut.tif")
    (tmp_path / "wide.tif").write_bytes(
        good.replace(struct.pack("<HHII", 256, 4, 1, 70), struct.pack("<HHII", 256, 4, 1, 2**31))
    )
    with pytest.raises(DataProblem, match="side over"):
        bands(tmp_path / "wide.tif")
    monkeypatch.setattr(parts, "MAX_PART_PIXELS", 100)
    monkeypatch.setattr(parts, "MAX_PIXELS", 100)
    with pytest.raises(DataProblem, match="Write it again in tiles of 512x512"):
        bands(tmp_path / "good.tif")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "floats.npy", np.zeros((4, 4)))
    for name in ("objects.npy", "floats.npy"):
        with pytest.raises(DataProblem, match=name):
            bands(tmp_path / name)
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (4, 4"  # a bracket that never ends
    (tmp_path / "open.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    with pytest.raises(DataProblem, match=r"open\.npy"):
        bands(tmp_path / "open.npy")
    (tmp_path / "short.pgm").write_bytes(b"P5 70 100 255\n" + b"\0" * 500)
    with pytest.raises(DataProblem, match="ends within row 7"):
        bands(tmp_path / "short.pgm")
