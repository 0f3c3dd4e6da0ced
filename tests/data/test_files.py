"""Reading single files: every form is normalised, every damage is named."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from segtailor.core.errors import DataProblem
from segtailor.data.files import (
    MAX_INDEX_MASK_PIXELS,
    decode_image,
    file_fingerprint,
    list_pictures,
    read_image,
    read_mask,
)
from tests.data.trees import write, write_image, write_mask, write_palette_mask


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".tif"])
def test_rgb_survives_lossless_formats(tmp_path: Path, suffix: str) -> None:
    pixels = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    assert np.array_equal(read_image(write(tmp_path / f"a{suffix}", pixels)), pixels)


def test_jpeg_is_read_as_rgb(tmp_path: Path) -> None:
    grey = write(tmp_path / "a.jpg", np.full((16, 24), 90, dtype=np.uint8))
    image = read_image(grey)
    assert image.shape == (16, 24, 3)
    assert abs(int(image.mean()) - 90) <= 1


def test_16_bit_grey_uses_its_full_range(tmp_path: Path) -> None:
    values = np.array([[0, 257, 32768, 65535]], dtype=np.uint16)
    for suffix in (".png", ".tif"):
        image = read_image(write(tmp_path / f"a{suffix}", values))
        assert image.dtype == np.uint8
        assert image[0, :, 0].tolist() == [0, 1, 127, 255]


def test_16_bit_colour_png_keeps_the_high_byte(tmp_path: Path) -> None:
    row = b"\0" + struct.pack(">6H", 0x1234, 0x5678, 0x9ABC, 0xFFFF, 0, 0x0100)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row)) + chunk(b"IEND", b"")
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + content)
    assert read_image(tmp_path / "a.png").tolist() == [[[0x12, 0x56, 0x9A], [0xFF, 0, 1]]]


def test_rgba_drops_transparency(tmp_path: Path) -> None:
    pixels = np.dstack([np.full((2, 3, 3), 77, dtype=np.uint8), np.zeros((2, 3), dtype=np.uint8)])
    assert (read_image(write(tmp_path / "a.png", pixels)) == 77).all()


def test_palette_image_shows_its_colours(tmp_path: Path) -> None:
    path = write_palette_mask(tmp_path / "a.png", [0, 1], [(1, 2, 3), (200, 100, 50)])
    assert read_image(path)[0, :2].tolist() == [[1, 2, 3], [200, 100, 50]]


def test_exif_orientation_turns_the_image_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees
    Image.fromarray(np.zeros((4, 10, 3), dtype=np.uint8)).save(tmp_path / "a.jpg", exif=exif)
    assert read_image(tmp_path / "a.jpg").shape == (10, 4, 3)


def test_masks_keep_ids_of_every_grey_form(tmp_path: Path) -> None:
    ids = np.array([[0, 1], [1, 0]], dtype=np.uint8)
    for mode in (None, "1", "LA", "P"):
        values = ids * 255 if mode == "1" else ids
        raw = read_mask(write(tmp_path / f"{mode}.png", values, mode))
        assert raw.values.tolist() == ids.tolist(), mode
    wide = read_mask(write(tmp_path / "wide.png", np.array([[0, 1000]], dtype=np.uint16)))
    assert wide.values.tolist() == [[0, 1000]]


@pytest.mark.parametrize("reader", [read_image, read_mask])
@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif", ".bmp"])
@pytest.mark.parametrize("keep", [0.0, 0.05, 0.5])
def test_cut_files_are_named(tmp_path: Path, reader: object, suffix: str, keep: float) -> None:
    path = write_image(tmp_path / f"broken{suffix}", (32, 48))
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(DataProblem, match=f"broken{suffix} cannot be read"):
        reader(path)  # type: ignore[operator]


@pytest.mark.filterwarnings("ignore::UserWarning")  # PIL remarks on odd tags
@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif", ".bmp"])
def test_scrambled_files_never_raise_anything_else(tmp_path: Path, suffix: str) -> None:
    original = write_image(tmp_path / f"a{suffix}", (16, 16)).read_bytes()
    rng = np.random.default_rng(0)
    for attempt in range(100):
        content = bytearray(original)
        for place in rng.integers(0, len(content) if attempt % 2 else min(64, len(content)), 4):
            content[place] = rng.integers(0, 256)
        (tmp_path / f"b{suffix}").write_bytes(content)
        try:
            image = read_image(tmp_path / f"b{suffix}")
        except DataProblem:
            continue
        assert image.ndim == 3


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_decompression_bomb_is_refused_before_decoding(tmp_path: Path) -> None:
    path = write_mask(tmp_path / "bomb.png")
    content = bytearray(path.read_bytes())
    content[16:24] = struct.pack(">II", MAX_INDEX_MASK_PIXELS // 1024 + 1, 1024)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    path.write_bytes(content)
    with pytest.raises(DataProblem, match=r"bomb\.png cannot be read: .*pixels"):
        read_mask(path)


def test_float_images_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataProblem, match="floating-point"):
        read_image(write(tmp_path / "a.tif", np.zeros((2, 2), dtype=np.float32)))
    (tmp_path / "b.png").mkdir()
    with pytest.raises(DataProblem, match="not a regular file"):
        read_image(tmp_path / "b.png")


def test_symlink_loops_end_and_links_are_followed(tmp_path: Path) -> None:
    write_image(tmp_path / "real" / "a.png")
    root = tmp_path / "root"
    root.mkdir()
    (root / "linked").symlink_to(tmp_path / "real")
    (root / "up").symlink_to(root)
    (tmp_path / "real" / "back").symlink_to(root)
    (root / "self.png").symlink_to(root / "self.png")
    assert [path.name for path in list_pictures(root)] == ["a.png", "self.png"]
    with pytest.raises(DataProblem, match=r"self\.png"):
        read_image(root / "self.png")
    with pytest.raises(DataProblem, match=r"self\.png"):
        file_fingerprint(root / "self.png")


def test_stamp_changes_with_the_file(tmp_path: Path) -> None:
    path = write_image(tmp_path / "a.png")
    before = file_fingerprint(path)
    os.utime(path, ns=(1, 1))
    assert file_fingerprint(path) != before


def test_bytes_are_decoded_like_files(tmp_path: Path) -> None:
    path = write(tmp_path / "a.png", np.array([[0, 257, 65535]], dtype=np.uint16))
    assert np.array_equal(decode_image(path.read_bytes(), name="sent"), read_image(path))
    for content, reason in ((b"", "empty"), (b"words", "not a picture"), (path.read_bytes()[:40], "")):
        with pytest.raises(DataProblem, match=f"image sent cannot be read: .*{reason}"):
            decode_image(content, name="sent")
    with pytest.raises(DataProblem, match=r"3x1 is over the limit of 2 pixels\. Make it smaller"):
        decode_image(path.read_bytes(), name="sent", limit=2)


def test_formats_that_start_outside_programs_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text(
        "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    )
    with pytest.raises(DataProblem, match="not a picture of a known format"):
        read_image(tmp_path / "a.png")
