"""Pictures of any bands: files of every kind give their numbers, and statistics come from the data."""

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from segtailor.core.errors import UserError
from segtailor.core.task import Preprocessing
from segtailor.data.bands import band_statistics, read_bands
from segtailor.data.cache import open_pixels
from segtailor.data.dataset import preprocessing_of, scaled_as
from segtailor.data.doctor import check
from segtailor.data.locate import locate
from segtailor.tasks.bands import resized_picture, scaled_bands, shown_picture
from tests.data.trees import write_mask

RNG = np.random.default_rng(0)


def tiff(
    values: np.ndarray,
    *,
    order: str = "<",
    compressed: bool = False,
    differences: bool = False,
    planar: bool = False,
    rows: int | None = None,
    tile: tuple[int, int] | None = None,
) -> bytes:
    """Write (height, width, bands) as a TIFF, in the forms that remote sensing programs use."""
    height, width, bands = values.shape
    form = {"u": 1, "i": 2, "f": 3}[values.dtype.kind]
    planes = [values[:, :, band : band + 1] for band in range(bands)] if planar else [values]
    down, across = tile or (rows or height, width)
    parts = []
    for plane in planes:
        for top in range(0, height, down):
            for left in range(0, width, across):
                part = plane[top : top + down, left : left + across]
                if tile is not None:
                    part = np.pad(part, ((0, down - part.shape[0]), (0, across - part.shape[1]), (0, 0)))
                if differences:
                    part = np.diff(part, axis=1, prepend=np.zeros_like(part[:, :1]))
                data = part.astype(part.dtype.newbyteorder(order)).tobytes()
                parts.append(zlib.compress(data) if compressed else data)
    fields: dict[int, tuple[str, list[int]]] = {
        256: ("I", [width]), 257: ("I", [height]), 258: ("H", [values.itemsize * 8] * bands),
        259: ("H", [8 if compressed else 1]), 262: ("H", [1]), 277: ("H", [bands]), 284: ("H", [2 if planar else 1]),
        317: ("H", [2 if differences else 1]), 339: ("H", [form] * bands),
    }  # fmt: skip
    fields |= {322: ("I", [across]), 323: ("I", [down])} if tile else {278: ("I", [down])}
    places, sizes = (324, 325) if tile else (273, 279)
    fields |= {places: ("I", [0] * len(parts)), sizes: ("I", [len(part) for part in parts])}
    start = 8 + 2 + 12 * len(fields) + 4
    room = start + sum(4 * len(numbers) for _, numbers in fields.values() if len(numbers) > 1)
    fields[places] = ("I", [room + sum(map(len, parts[:index])) for index in range(len(parts))])
    entries, extra = b"", b""
    for tag, (code, numbers) in sorted(fields.items()):
        content = struct.pack(f"{order}{len(numbers)}{code}", *numbers)
        if len(content) > 4:
            place = struct.pack(order + "I", start + len(extra))
            extra += content.ljust(4 * len(numbers), b"\0")
        else:
            place = content.ljust(4, b"\0")
        entries += struct.pack(order + "HHI", tag, {"H": 3, "I": 4}[code], len(numbers)) + place
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, 8)
    head += struct.pack(order + "H", len(fields)) + entries + bytes(4)
    return head + extra.ljust(room - start, b"\0") + b"".join(parts)


def numbers(shape: tuple[int, ...], kind: str) -> np.ndarray:
    if kind == "f4":
        return RNG.normal(size=shape).astype(kind)
    limits = np.iinfo(kind)
    return RNG.integers(limits.min, limits.max, shape, dtype=kind, endpoint=True)


@pytest.mark.parametrize("kind", ["u1", "u2", "i2", "f4"])
@pytest.mark.parametrize(
    "form",
    [
        {},
        {"order": ">"},
        {"rows": 4},
        {"compressed": True, "rows": 5},
        {"compressed": True, "planar": True},
        {"compressed": True, "tile": (16, 16)},
        {"compressed": True, "order": ">"},
        {"planar": True, "tile": (16, 32)},
    ],
)
def test_a_tiff_gives_its_numbers(kind: str, form: dict, tmp_path: Path) -> None:
    values = numbers((19, 23, 5), kind)
    (tmp_path / "a.tif").write_bytes(tiff(values, **form))
    found = read_bands(tmp_path / "a.tif", bands=5)
    assert found.dtype == np.dtype(kind)
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", ["u1", "u2"])
def test_differences_between_neighbours_are_summed_up(kind: str, compressed: bool, tmp_path: Path) -> None:
    values = numbers((9, 12, 4), kind)
    (tmp_path / "a.tif").write_bytes(tiff(values, differences=True, compressed=compressed))
    np.testing.assert_array_equal(read_bands(tmp_path / "a.tif", bands=4), values)


def test_a_tiff_that_pil_wrote_with_lzw_is_read(tmp_path: Path) -> None:
    values = numbers((20, 30, 4), "u1")
    Image.fromarray(values, "RGBA").save(tmp_path / "a.tif", compression="tiff_lzw")
    np.testing.assert_array_equal(read_bands(tmp_path / "a.tif", bands=4), values)


@pytest.mark.parametrize(
    ("suffix", "kind"), [(".png", "u1"), (".png", "u2"), (".npy", "u2"), (".npy", "f4"), (".tif", "u2")]
)
def test_grey_is_one_band(suffix: str, kind: str, tmp_path: Path) -> None:
    values, path = numbers((7, 9), kind), tmp_path / f"a{suffix}"
    if suffix == ".npy":
        np.save(path, values)
    else:
        Image.fromarray(values).save(path)
    np.testing.assert_array_equal(read_bands(path, bands=1)[:, :, 0], values)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (tiff(numbers((6, 8, 3), "u2")), "3 bands, not 4"),
        (tiff(numbers((6, 8, 4), "u2"))[:150], "cannot be read"),
        (tiff(numbers((6, 8, 4), "u2"))[:-40], "cannot be read"),
        (tiff(numbers((6, 8, 4), "u2"), compressed=True)[:-20], "cannot be read"),
        (b"\x93NUMPY rubbish", "cannot be read"),
        (b"rubbish", "not a picture"),
        (b"", "empty"),
    ],
)
def test_a_bad_file_is_told_by_name(content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "bad.tif").write_bytes(content)
    with pytest.raises(UserError, match=says) as told:
        read_bands(tmp_path / "bad.tif", bands=4)
    assert "bad.tif" in str(told.value)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.tif")
    with pytest.raises(UserError, match="regular file"):
        read_bands(tmp_path / "a.tif", bands=4)


def test_an_array_of_objects_is_refused_unread(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match=r"a\.npy"):
        read_bands(tmp_path / "a.npy", bands=1)


def test_statistics_follow_the_numbers_of_each_band(tmp_path: Path) -> None:
    files = []
    for index in range(3):
        values = RNG.uniform((100, -3), (900, 5), size=(40, 50, 2)).astype(np.float32)
        values[0, 0] = 1e6  # a dead pixel
        values[1, 1] = np.nan
        np.save(tmp_path / f"{index}.npy", values)
        files.append(tmp_path / f"{index}.npy")
    found = band_statistics(files, bands=2)
    assert found.ranges is not None
    np.testing.assert_allclose(found.ranges, [(100, 900), (-3, 5)], rtol=0.05)
    np.testing.assert_allclose(found.mean, 0.5, atol=0.03)
    np.testing.assert_allclose(found.std, 1 / 12**0.5, atol=0.03)


def test_8_bits_keep_their_values(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", numbers((20, 20, 4), "u1"))
    assert band_statistics([tmp_path / "a.npy"], bands=4).ranges == ((0.0, 255.0),) * 4


def test_values_are_scaled_and_cut() -> None:
    values = np.array([[[0], [100], [150], [200], [60000]]], np.uint16)
    np.testing.assert_array_equal(scaled_bands(values, [(100, 200)])[0, :, 0], [0, 0, 128, 255, 255])
    nothing = np.array([[[np.nan], [np.inf]]], np.float32)
    np.testing.assert_array_equal(scaled_bands(nothing, [(0, 1)])[0, :, 0], [0, 255])


def test_pictures_of_any_bands_are_resized_and_shown() -> None:
    values = numbers((8, 10, 5), "u1")
    found = resized_picture(values, (4, 5))
    assert found.shape == (4, 5, 5)
    np.testing.assert_array_equal(
        found[:, :, :3], resized_picture(np.ascontiguousarray(values[:, :, :3]), (4, 5))
    )
    assert [shown_picture(values[:, :, :bands]).shape[2] for bands in (1, 2, 3, 5)] == [3, 3, 3, 3]


def write_set(root: Path, *, bands: int = 4, count: int = 8) -> Path:
    for index in range(count):
        values = RNG.integers(200, 3000, (24, 32, bands), dtype=np.uint16)
        (root / "images").mkdir(parents=True, exist_ok=True)
        (root / "images" / f"{index}.tif").write_bytes(tiff(values, compressed=True))
        write_mask(root / "masks" / f"{index}.png", size=(24, 32))
    return root


def test_a_folder_of_bands_is_read_by_its_own_statistics(tmp_path: Path) -> None:
    dataset = locate(f"folder:{write_set(tmp_path / 'set')}?bands=4&val=0.25")
    own = preprocessing_of(dataset)
    assert own.channels == 4
    pixels = open_pixels(dataset, "train", tmp_path / "cache")
    assert (pixels.channels, pixels.pair(0).image.shape) == (4, (24, 32, 4))
    assert pixels.canvas()[0].shape == (6, 24, 32, 4)
    assert 100 < pixels.images.mean() < 155
    assert check(dataset).ok
    assert open_pixels(dataset, "train", tmp_path / "cache").channels == 4


def test_another_network_brings_its_own_ranges(tmp_path: Path) -> None:
    dataset = locate(f"folder:{write_set(tmp_path / 'set')}?bands=4&val=0.25")
    other = Preprocessing(mean=(0.5,) * 4, std=(0.2,) * 4, ranges=((0.0, 65535.0),) * 4)
    assert scaled_as(dataset, other).samples("val")[0].read().image.max() < 20
    assert dataset.samples("val")[0].read().image.max() > 200


@pytest.mark.parametrize(("given", "reads"), [("?bands=4", None), ("", 4), ("?bands=4", 2)])
def test_data_of_other_bands_is_refused(given: str, reads: int | None, tmp_path: Path) -> None:
    dataset = locate(f"folder:{write_set(tmp_path / 'set')}{given}")
    wanted = Preprocessing()
    if reads is not None:
        wanted = Preprocessing(mean=(0.5,) * reads, std=(0.2,) * reads, ranges=((0.0, 1.0),) * reads)
    with pytest.raises(UserError, match="bands"):
        scaled_as(dataset, wanted)


def test_the_doctor_names_a_bad_file_among_good_ones(tmp_path: Path) -> None:
    place = write_set(tmp_path / "set")
    (place / "images" / "3.tif").write_bytes(b"rubbish")
    found = check(locate(f"folder:{place}?bands=4&val=0.25"))
    assert [Path(finding.file).name for finding in found.errors] == ["3.tif"]
