"""The pixel cache: equal to the files, safe against interruption, disk-full and a second process."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from segtailor.core import lock
from segtailor.core.errors import DataProblem, RunProblem
from segtailor.core.task import Task
from segtailor.data.cache import IMAGES, INDEX, Pixels, open_pixels
from segtailor.data.dataset import Pair
from segtailor.data.folder import Folder
from segtailor.data.locate import locate
from tests.data.trees import write_image, write_mask, write_pairs

NAMES = [f"n{index}" for index in range(6)]


def folder(root: Path, **options: object) -> Folder:
    return Folder(path=write_pairs(root / "data", NAMES), val=0.0, **options)  # type: ignore[arg-type]


def leftovers(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.suffix != ".lock")


def test_cache_holds_exactly_what_the_files_hold(tmp_path: Path) -> None:
    dataset = folder(tmp_path)
    calls: list[tuple[int, int]] = []
    pixels = open_pixels(dataset, "train", tmp_path / "cache", progress=lambda *step: calls.append(step))
    assert calls == [(done, 6) for done in range(1, 7)]
    assert pixels.task == dataset.task
    assert list(pixels.names) == NAMES
    for index, sample in enumerate(dataset.samples("train")):
        image, labels = sample.read()
        assert np.array_equal(pixels.pair(index).image, image)
        assert np.array_equal(pixels.pair(index).labels, labels)
    assert np.array_equal(pixels.pair(-1).image, pixels.pair(5).image)
    images, labels = pixels.canvas()
    assert images.shape == (6, 6, 8, 3)
    assert np.shares_memory(images, pixels.images)
    assert np.shares_memory(labels, pixels.labels)
    assert np.array_equal(images[2], pixels.pair(2).image)
    with pytest.raises(ValueError):
        images[0] = 0  # mapped read-only


def test_second_opening_decodes_nothing(tmp_path: Path) -> None:
    dataset = folder(tmp_path)
    first = open_pixels(dataset, "train", tmp_path / "cache")
    calls: list[int] = []
    again = open_pixels(dataset, "train", tmp_path / "cache", progress=lambda done, _: calls.append(done))
    assert not calls
    assert again.fingerprint == first.fingerprint


def test_mixed_sizes_are_padded_on_the_canvas(tmp_path: Path) -> None:
    dataset = folder(tmp_path)
    write_image(tmp_path / "data/images/n1.png", (9, 4))
    write_mask(tmp_path / "data/masks/n1.png", size=(9, 4))
    pixels = open_pixels(dataset, "train", tmp_path / "cache")
    assert pixels.sizes.tolist() == [[6, 8], [9, 4], *[[6, 8]] * 4]
    images, labels = pixels.canvas()
    assert images.shape == (6, 9, 8, 3)
    assert np.array_equal(images[1, :, :4], pixels.pair(1).image)
    assert np.array_equal(labels[2, :6], pixels.pair(2).labels)
    assert (labels[1, :, 4:] == 255).all()
    assert (labels[0, 6:] == 255).all()
    assert (images[0, 6:] == 0).all()


def test_changed_files_and_changed_meaning_make_a_new_cache(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    before = open_pixels(folder(tmp_path), "train", root)
    write_mask(tmp_path / "data/masks/n0.png", (1,))
    os.utime(tmp_path / "data/masks/n0.png", ns=(1, 1))
    after = open_pixels(Folder(path=tmp_path / "data", val=0.0), "train", root)
    assert after.fingerprint != before.fingerprint
    other = open_pixels(Folder(path=tmp_path / "data", val=0.0, ignore=(1,)), "train", root)
    assert (other.pair(0).labels == 255).all()
    assert len(leftovers(root)) == 3


def test_fingerprint_does_not_depend_on_the_place(tmp_path: Path) -> None:
    first = open_pixels(folder(tmp_path / "a"), "train", tmp_path / "cache")
    second = open_pixels(folder(tmp_path / "b"), "train", tmp_path / "cache")
    assert first.fingerprint == second.fingerprint


def test_generated_samples_are_cached_too(tmp_path: Path) -> None:
    dataset = locate("synthetic:size=32x64,train=3,val=2")
    pixels = open_pixels(dataset, "train+val", tmp_path)
    assert len(pixels) == 5
    assert np.array_equal(pixels.pair(4).image, dataset.samples("val")[1].read().image)


def test_unreadable_sample_leaves_nothing_behind(tmp_path: Path) -> None:
    dataset = folder(tmp_path)
    (tmp_path / "data/images/n5.png").write_bytes(b"")
    with pytest.raises(DataProblem, match=r"n5\.png cannot be read: it is empty"):
        open_pixels(dataset, "train", tmp_path / "cache")
    assert leftovers(tmp_path / "cache") == []


TASK = Task(classes=("a", "b"))


@dataclass(frozen=True)
class Made:
    """A generated dataset whose samples are what the test says."""

    pair: Pair
    task: Task = TASK
    splits: tuple[str, ...] = ("train",)
    name: str = "made"
    fingerprint: str = "made"

    def samples(self, split: str) -> list[Made]:
        assert split == "train"
        return [self]

    def read(self) -> Pair:
        return self.pair


@pytest.mark.parametrize(
    ("image", "labels", "message"),
    [
        (
            np.zeros((2, 3, 3), np.uint8),
            np.full((2, 3), 254, np.uint8),
            "label 254, but the task has 2 classes",
        ),
        (np.zeros((2, 3, 3), np.uint8), np.zeros((3, 2), np.uint8), "has image"),
        (np.zeros((2, 3), np.uint8), np.zeros((2, 3), np.uint8), "has image"),
        (np.zeros((2, 3, 3), np.float32), np.zeros((2, 3), np.uint8), "must be uint8"),
    ],
)
def test_wrong_samples_are_refused(
    tmp_path: Path, image: np.ndarray, labels: np.ndarray, message: str
) -> None:
    with pytest.raises(DataProblem, match=message):
        open_pixels(Made(Pair(image, labels)), "train", tmp_path)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("damage", ["cut", "index", "missing"])
def test_damaged_cache_is_built_again(tmp_path: Path, damage: str) -> None:
    dataset, root = folder(tmp_path), tmp_path / "cache"
    good = open_pixels(dataset, "train", root)
    (place,) = (path for path in root.iterdir() if path.is_dir())
    if damage == "cut":
        (place / IMAGES).write_bytes((place / IMAGES).read_bytes()[:-1])
    elif damage == "index":
        (place / INDEX).write_text("{")
    else:
        (place / INDEX).unlink()
    again = open_pixels(dataset, "train", root)
    assert again.fingerprint == good.fingerprint
    assert np.array_equal(again.canvas()[0][0], dataset.samples("train")[0].read().image)


@contextlib.contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """Let every write past `limit` bytes fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def test_full_disk_is_told_and_cleaned_up(tmp_path: Path) -> None:
    dataset = folder(tmp_path)
    with file_size_limit(200), pytest.raises(DataProblem, match=r"cannot be written: File too large"):
        open_pixels(dataset, "train", tmp_path / "cache")
    assert leftovers(tmp_path / "cache") == []
    assert len(open_pixels(dataset, "train", tmp_path / "cache")) == 6


def test_no_space_left_says_so(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full, which fails every write with 'no space left'")
    root = tmp_path / "cache"
    dataset = folder(tmp_path)

    def fill(done: int, total: int) -> None:
        with Path("/dev/full").open("wb") as full:
            full.write(bytes(done * total))

    with pytest.raises(DataProblem, match="the disk is full"):
        open_pixels(dataset, "train", root, progress=fill)
    assert leftovers(root) == []


def test_unwritable_root_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataProblem, match="Choose another cache folder"):
        open_pixels(folder(tmp_path), "train", tmp_path / "file")


BUILDER = """
import sys, time
from pathlib import Path
from segtailor.data.cache import open_pixels
from segtailor.data.folder import Folder

def progress(done, total):
    print("decoding", done, flush=True)
    time.sleep(float(sys.argv[3]))

pixels = open_pixels(Folder(path=Path(sys.argv[1]), val=0.0), "train", Path(sys.argv[2]), progress=progress)
print("done", pixels.fingerprint, flush=True)
"""


def builder(root: Path, pause: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BUILDER, str(root / "data"), str(root / "cache"), str(pause)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_two_processes_build_one_cache_once(tmp_path: Path) -> None:
    folder(tmp_path)
    both = [builder(tmp_path, 0.05) for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0].splitlines() for process in both]
    assert all(process.returncode == 0 for process in both)
    assert outputs[0][-1] == outputs[1][-1]
    assert sorted(len(lines) for lines in outputs) == [1, 7]  # one decoded, the other waited
    assert len(leftovers(tmp_path / "cache")) == 1


def no_locks(*_: object, **__: object) -> bool:
    raise OSError(errno.ENOSYS, "this file system has no locks")


def test_without_locks_the_first_finished_build_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "lock_descriptor", no_locks)
    dataset, root = folder(tmp_path), tmp_path / "cache"
    inner: list[Pixels] = []

    def overtake(done: int, total: int) -> None:
        if done == total:
            inner.append(open_pixels(dataset, "train", root))

    outer = open_pixels(dataset, "train", root, progress=overtake)
    assert outer.fingerprint == inner[0].fingerprint
    assert np.array_equal(outer.canvas()[0], inner[0].canvas()[0])
    assert len(leftovers(root)) == 1


def test_a_lock_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    dataset, root, victim = folder(tmp_path), tmp_path / "cache", tmp_path / "victim.txt"
    open_pixels(dataset, "train", root)
    victim.write_text("mine")
    (built,) = (path for path in root.iterdir() if path.is_dir())
    (built / INDEX).unlink()
    built.with_suffix(".lock").unlink()
    built.with_suffix(".lock").symlink_to(victim)
    with pytest.raises(RunProblem, match=r"no file of its own.*Remove it"):
        open_pixels(dataset, "train", root)
    assert victim.read_text() == "mine"


@pytest.mark.slow
def test_killed_build_is_neither_used_nor_kept(tmp_path: Path) -> None:
    dataset = folder(tmp_path)
    victim = builder(tmp_path, 10)
    assert victim.stdout is not None
    assert victim.stdout.readline().startswith("decoding")
    victim.kill()
    victim.wait(timeout=10)
    assert any(".build-" in name for name in leftovers(tmp_path / "cache"))
    started = time.monotonic()
    pixels = open_pixels(dataset, "train", tmp_path / "cache")
    assert time.monotonic() - started < 5  # the lock died with its owner
    assert np.array_equal(pixels.pair(3).image, dataset.samples("train")[3].read().image)
    assert len(leftovers(tmp_path / "cache")) == 1
