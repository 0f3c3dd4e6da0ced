"""What a dataset may ask for is bounded before anything is allocated, and its files stay inside its folder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from segtailor.core.errors import DataProblem, Unsupported
from segtailor.core.task import Task
from segtailor.data import doctor
from segtailor.data.augment import Augment
from segtailor.data.batches import Batches
from segtailor.data.cache import open_pixels
from segtailor.data.dataset import Pair
from segtailor.data.locate import locate
from segtailor.data.splits import read_list


def listed(root: Path, line: str) -> Path:
    root.mkdir()
    for name in ("a.png", "b.png"):
        Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(root / name)
    (root / "train.txt").write_text(f"{line}\n")
    return root


@pytest.mark.parametrize(
    "name", ["../secret.png", "x/../../secret.png", "{outside}/secret.png", "/secret.png"]
)
@pytest.mark.parametrize("column", [0, 1])
def test_a_list_that_names_files_outside_its_folder_is_refused(
    tmp_path: Path, name: str, column: int
) -> None:
    Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(tmp_path / "secret.png")
    row = ["a.png", "b.png"]
    row[column] = name.format(outside=tmp_path)
    root = listed(tmp_path / "data", ",".join(row))
    with pytest.raises(DataProblem, match="lies outside"):
        locate(f"folder:{root}")


def test_a_list_may_name_files_of_its_folder_by_their_full_path(tmp_path: Path) -> None:
    root = listed(tmp_path / "data", "a.png b.png")
    (root / "train.txt").write_text(f"{root / 'a.png'},{root / 'b.png'}\n")
    assert len(locate(f"folder:{root}?count=2").samples("train")) == 1


@pytest.mark.parametrize("count", ["99999999999", "1" + "0" * 30])
def test_more_rendered_images_than_can_be_listed_are_refused_at_once(count: str) -> None:
    with pytest.raises(DataProblem, match=r"too many; at most 1,000,000"):
        locate(f"synthetic:train={count}")


class Wide:
    """A dataset of one black picture, again and again."""

    task, splits, name, fingerprint = Task(classes=("a",)), ("train",), "black", "black"

    def samples(self, split: str) -> Any:
        del split
        return [self] * 200_000

    def read(self) -> Pair:
        return Pair(np.zeros((2048, 2048, 3), dtype=np.uint8), np.zeros((2048, 2048), dtype=np.uint8))


def test_a_cache_that_the_disk_cannot_hold_is_refused_after_one_image(tmp_path: Path) -> None:
    with pytest.raises(DataProblem, match="GiB are free there"):
        open_pixels(Wide(), "train", tmp_path)
    assert not list(tmp_path.glob("*.build-*"))


def batches(**changes: Any) -> Batches:
    settings: dict[str, Any] = {
        "images": np.zeros((2, 8, 8, 3), dtype=np.uint8),
        "labels": np.zeros((2, 8, 8), dtype=np.uint8),
        "sizes": np.array([[8, 8], [8, 8]]),
        "augment": Augment(crop=(8, 8)),
        "batch": 2,
        "seed": 0,
        "device": torch.device("cpu"),
    }
    return Batches(**{**settings, **changes})


@pytest.mark.parametrize(
    "changes", [{"batch": 10**11}, {"augment": Augment(crop=(4096, 4096)), "batch": 10**6}]
)
def test_a_batch_that_does_not_fit_is_refused_before_it_is_made(changes: dict[str, Any]) -> None:
    with pytest.raises(
        Unsupported, match=r"needs [\d.,]+ GiB of memory or more, .* are free. Choose a smaller"
    ):
        batches(**changes)


def mat_file(place: Path, **changes: Any) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(place, "w") as content:
        for name, shape, kind in (("images", (2, 3, 8, 6), "u1"), ("depths", (2, 8, 6), "f4")):
            if name not in changes:
                content.create_dataset(name, data=np.ones(shape, dtype=kind))
        for name, make in changes.items():
            make(h5py, content, name)
    return place


def by_external_link(h5py: Any, content: Any, name: str) -> None:
    content[name] = h5py.ExternalLink("other.mat", f"/{name}")


def by_soft_link(h5py: Any, content: Any, name: str) -> None:
    content["there"] = h5py.ExternalLink("other.mat", f"/{name}")
    content[name] = h5py.SoftLink("/there")


def by_external_storage(h5py: Any, content: Any, name: str) -> None:
    del h5py
    Path(content.filename).with_name("raw.bin").write_bytes(bytes(288))
    content.create_dataset(name, (2, 3, 8, 6), "u1", external=[("raw.bin", 0, 288)])


def by_virtual_dataset(h5py: Any, content: Any, name: str) -> None:
    layout = h5py.VirtualLayout((2, 3, 8, 6), "u1")
    layout[:] = h5py.VirtualSource("other.mat", name, (2, 3, 8, 6))
    content.create_virtual_dataset(name, layout)


@pytest.mark.parametrize("how", [by_external_link, by_soft_link, by_external_storage, by_virtual_dataset])
def test_a_mat_file_that_points_into_other_files_is_refused(tmp_path: Path, how: Any) -> None:
    mat_file(tmp_path / "other.mat")
    with pytest.raises(DataProblem, match="do not lie in the file itself"):
        locate(f"nyudv2:{mat_file(tmp_path / 'nyu.mat', images=how)}")


def test_a_mat_file_with_blocks_that_fill_the_memory_is_refused(tmp_path: Path) -> None:
    def huge(h5py: Any, content: Any, name: str) -> None:
        del h5py
        sides = (2, 10**4, 10**4) if name == "depths" else (2, 3, 10**4, 10**4)
        content.create_dataset(
            name, sides, "f8" if name == "depths" else "u1", chunks=sides, compression="gzip"
        )

    with pytest.raises(DataProblem, match="blocks of"):
        locate(f"nyudv2:{mat_file(tmp_path / 'nyu.mat', images=huge, depths=huge)}")


def test_the_doctor_examines_a_mat_file(tmp_path: Path) -> None:
    file = mat_file(tmp_path / "nyu.mat")
    diagnosis = doctor.examine(lambda: locate(f"nyudv2:{file}?val=0.5"), named="nyu", limit=None)
    assert not [finding for finding in diagnosis.findings if finding.kind == "unusable"]


@pytest.mark.parametrize("line", ["[" * 3000, "images/" + "x" * 300 + ".png masks/y.png"])
def test_a_list_with_a_name_that_no_file_can_have_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "train.txt").write_text(f"1\n{line}\n")
    with pytest.raises(DataProblem, match=r"line 2: .* is longer than a file's name can be"):
        read_list(tmp_path / "train.txt")
