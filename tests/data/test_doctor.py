"""The dataset doctor: each fault planted in a small tree is found, named and given a fix; healthy sets pass."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from segtailor.core.errors import DataProblem
from segtailor.core.task import Task
from segtailor.data.dataset import Pair
from segtailor.data.doctor import MAX_LISTED, SEVERITIES, Diagnosis, Finding, check, examine
from segtailor.data.folder import Folder
from segtailor.data.synthetic import Synthetic
from tests.data.trees import write_colours, write_image, write_mask, write_pairs

TASK = Task(classes=("a", "b", "c"))
LABELS = np.resize(np.arange(3, dtype=np.uint8), (6, 8))


@dataclass(frozen=True)
class Item:
    """A sample held in memory."""

    name: str
    image: NDArray[np.uint8]
    labels: NDArray[Any]
    fingerprint: str = ""

    def read(self) -> Pair:
        return Pair(self.image, self.labels)


@dataclass(frozen=True)
class Memory:
    """A dataset held in memory."""

    parts: Mapping[str, Sequence[Item]]
    task: Task = TASK
    told: tuple[tuple[str, str, str, str, str], ...] = field(default=())

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.parts)

    def samples(self, split: str) -> Sequence[Item]:
        return self.parts[split]

    def problems(self) -> Sequence[Any]:
        return self.told


def items(names: Sequence[str], labels: NDArray[Any] = LABELS, seed: int = 0) -> list[Item]:
    rng = np.random.default_rng((seed, len(names)))
    return [Item(name, rng.integers(0, 256, (*labels.shape, 3), np.uint8), labels) for name in names]


def numbers(count: int, start: int = 0) -> list[str]:
    return [f"{index:04d}" for index in range(start, start + count)]


def healthy() -> dict[str, Sequence[Item]]:
    return {"train": items(numbers(20)), "val": items(numbers(10, 50), seed=1)}


def found(diagnosis: Diagnosis, kind: str) -> list[Finding]:
    return [finding for finding in diagnosis.findings if finding.kind == kind]


def the(diagnosis: Diagnosis, kind: str) -> Finding:
    """Return the only finding of a kind."""
    (finding,) = found(diagnosis, kind)
    return finding


def tree(root: Path, ids: Sequence[int] = (0, 1, 2)) -> Path:
    write_pairs(root, numbers(20), ids, split="train")
    return write_pairs(root, numbers(10, 50), ids, split="val")


def test_a_healthy_folder_has_no_findings(tmp_path: Path) -> None:
    diagnosis = check(Folder(path=tree(tmp_path), classes=("a", "b", "c")))
    assert diagnosis.findings == ()
    assert diagnosis.ok


def test_the_synthetic_scenes_have_no_findings() -> None:
    assert check(Synthetic(images={"train": 24, "val": 12}, size=(64, 128))).findings == ()


def test_shares_are_counted_per_split_and_leave_ignored_pixels_out() -> None:
    labels = np.array([[0, 0, 0, 1], [2, 255, 255, 255]], np.uint8)
    facts = check(Memory({"train": items(numbers(3), labels)})).splits["train"]
    assert facts.shares == pytest.approx({"a": 0.6, "b": 0.2, "c": 0.2})
    assert (facts.ignored, facts.images, facts.read) == (pytest.approx(3 / 8), 3, 3)


def test_files_without_a_partner_are_named_and_the_rest_is_still_checked(tmp_path: Path) -> None:
    image = write_image(tree(tmp_path) / "images" / "train" / "alone.png")
    mask = write_mask(tmp_path / "masks" / "val" / "spare.png")
    diagnosis = check(Folder(path=tmp_path, classes=("a", "b", "c")))
    assert [(f.severity, f.file) for f in found(diagnosis, "unpaired")] == [
        ("error", str(image)),
        ("warning", str(mask)),
    ]
    assert diagnosis.splits["train"].read == 20


@pytest.mark.parametrize("kind", ["images", "masks"])
@pytest.mark.parametrize("keep", [0, 0.6])
def test_empty_and_truncated_files_are_unreadable(tmp_path: Path, kind: str, keep: float) -> None:
    broken = tree(tmp_path) / kind / "train" / "0003.png"
    content = broken.read_bytes()
    broken.write_bytes(content[: int(len(content) * keep)])
    finding = the(check(Folder(path=tmp_path, classes=("a", "b", "c"))), "unreadable")
    assert (finding.severity, finding.file) == ("error", str(broken))
    assert "Restore" in finding.fix


def test_a_mask_of_another_size_is_found(tmp_path: Path) -> None:
    odd = write_mask(tree(tmp_path) / "masks" / "val" / "0051.png", size=(7, 8))
    finding = the(check(Folder(path=tmp_path, classes=("a", "b", "c"))), "size-mismatch")
    assert (finding.severity, finding.file) == ("error", str(odd))


@pytest.mark.parametrize("strange", [3, 254])
def test_an_id_beyond_the_classes_is_found(tmp_path: Path, strange: int) -> None:
    odd = write_mask(tree(tmp_path) / "masks" / "train" / "0002.png", (0, strange))
    finding = the(check(Folder(path=tmp_path, classes=("a", "b", "c"))), "id-out-of-range")
    assert (finding.severity, finding.file) == ("error", str(odd))
    assert str(strange) in finding.message


def test_an_id_of_254_is_found_although_no_classes_were_declared(tmp_path: Path) -> None:
    odd = write_mask(tree(tmp_path) / "masks" / "train" / "0002.png", (0, 1, 2, 254))
    (tmp_path / "masks" / "train" / "0001.png").write_bytes(b"")
    diagnosis = check(Folder(path=tmp_path))
    assert the(diagnosis, "id-out-of-range").file == str(odd)
    assert Path(the(diagnosis, "unreadable").file).name == "0001.png"


def test_ids_from_one_to_the_number_of_classes_are_off_by_one(tmp_path: Path) -> None:
    diagnosis = check(Folder(path=tree(tmp_path, (1, 2, 3, 255)), classes=("a", "b", "c")))
    assert the(diagnosis, "off-by-one").severity == "error"
    assert not found(diagnosis, "id-out-of-range")


def test_an_id_one_too_high_is_not_off_by_one_when_zero_occurs(tmp_path: Path) -> None:
    diagnosis = check(Folder(path=tree(tmp_path, (0, 1, 2, 3)), classes=("a", "b", "c")))
    assert not found(diagnosis, "off-by-one")
    assert found(diagnosis, "id-out-of-range")


def test_undeclared_ids_that_start_at_one_are_suspected_to_be_off_by_one(tmp_path: Path) -> None:
    diagnosis = check(Folder(path=tree(tmp_path, (1, 2, 3))))
    assert the(diagnosis, "off-by-one").severity == "warning"


@pytest.mark.parametrize("classes", [(), ("back", "front")])
def test_masks_of_0_and_255_are_binary_masks(tmp_path: Path, classes: tuple[str, ...]) -> None:
    finding = the(check(Folder(path=tree(tmp_path, (0, 255)), classes=classes)), "binary-mask")
    assert finding.severity == "error"
    assert "binary=true" in finding.fix


def test_binary_masks_read_as_binary_are_fine(tmp_path: Path) -> None:
    assert check(Folder(path=tree(tmp_path, (0, 255)), binary=True)).findings == ()


def test_masks_of_one_class_and_ignored_pixels_among_others_are_not_binary(tmp_path: Path) -> None:
    write_mask(tree(tmp_path, (0, 1, 2)) / "masks" / "train" / "0000.png", (0, 255))
    assert not found(check(Folder(path=tmp_path, classes=("a", "b", "c"))), "binary-mask")


def test_colour_masks_for_declared_ids_need_a_palette(tmp_path: Path) -> None:
    odd = write_colours(tree(tmp_path) / "masks" / "train" / "0004.png", [(255, 0, 0), (0, 255, 0)])
    finding = the(check(Folder(path=tmp_path, classes=("a", "b", "c"))), "colour-mask")
    assert (finding.severity, finding.file) == ("error", str(odd))
    assert "palette" in finding.fix


def test_colours_that_were_only_detected_are_worth_a_warning(tmp_path: Path) -> None:
    for split, names in (("train", numbers(20)), ("val", numbers(10, 50))):
        for name in names:
            write_image(tmp_path / "images" / split / f"{name}.png")
            write_colours(tmp_path / "masks" / split / f"{name}.png", [(255, 0, 0), (0, 255, 0)])
    assert the(check(Folder(path=tmp_path)), "colour-mask").severity == "warning"
    assert check(Folder(path=tmp_path, palette=("#ff0000", "#00ff00"), classes=("r", "g"))).findings == ()


def test_masks_saved_as_photographs_are_colour_masks(tmp_path: Path) -> None:
    for name in numbers(4):
        write_image(tmp_path / "images" / f"{name}.png", (24, 24))
        write_image(tmp_path / "masks" / f"{name}.png", (24, 24))
    finding = the(check(Folder(path=tmp_path)), "colour-mask")
    assert finding.severity == "error"


def test_only_ignored_masks_stop_training_and_one_is_a_warning(tmp_path: Path) -> None:
    blank = write_mask(tree(tmp_path) / "masks" / "train" / "0001.png", (255,))
    finding = the(check(Folder(path=tmp_path, classes=("a", "b", "c"))), "all-ignored")
    assert (finding.severity, Path(finding.file).stem) == ("warning", blank.stem)
    everything = check(Folder(path=tree(tmp_path / "b", (255,)), classes=("a", "b", "c")))
    assert {finding.severity for finding in found(everything, "all-ignored")} == {"error"}
    undeclared = check(Folder(path=tmp_path / "b"))
    assert the(undeclared, "all-ignored").severity == "error"


def test_a_class_that_a_split_never_shows_is_named(tmp_path: Path) -> None:
    write_pairs(tree(tmp_path), numbers(10, 50), (0, 1), split="val")
    finding = the(check(Folder(path=tmp_path, classes=("a", "b", "c"))), "missing-class")
    assert finding.severity == "warning"
    assert "'c'" in finding.message
    assert "'val'" in finding.message


def test_a_class_that_occurs_nowhere_is_said_to_occur_nowhere() -> None:
    parts = healthy()
    diagnosis = check(Memory(parts, Task(classes=("a", "b", "c", "d"))))
    assert all("nor in any other" in finding.message for finding in found(diagnosis, "missing-class"))
    assert len(found(diagnosis, "missing-class")) == 2


def test_the_same_picture_in_two_splits_is_a_duplicate() -> None:
    parts = healthy()
    copy = Item("copy", parts["train"][3].image, LABELS)
    finding = the(check(Memory({**parts, "val": [*parts["val"], copy]})), "duplicate")
    assert (finding.severity, finding.file) == ("warning", "copy")
    assert "0003" in finding.message


def test_the_same_picture_twice_in_one_split_is_only_worth_knowing() -> None:
    parts = healthy()
    copy = Item("copy", parts["train"][3].image, LABELS)
    assert the(check(Memory({**parts, "train": [*parts["train"], copy]})), "duplicate").severity == "info"


@pytest.mark.parametrize("change", ["brighter", "noisy", "smaller"])
def test_altered_copies_across_splits_are_near_duplicates(change: str) -> None:
    scenes = Synthetic(images={"train": 8, "val": 4}, size=(64, 128))
    parts = {split: [Item(s.name, *s.read()) for s in scenes.samples(split)] for split in scenes.splits}
    copy = altered(parts["train"][4], change)
    finding = the(check(Memory({**parts, "val": [*parts["val"], copy]}, scenes.task)), "near-duplicate")
    assert (finding.severity, finding.file) == ("warning", "copy")
    assert parts["train"][4].name in finding.message


def altered(item: Item, change: str) -> Item:
    image = item.image.astype(float)
    if change == "brighter":
        return Item("copy", (image * 0.8 + 20).astype(np.uint8), item.labels)
    if change == "noisy":
        noise = np.random.default_rng(0).normal(0, 8, image.shape)
        return Item("copy", np.clip(image + noise, 0, 255).astype(np.uint8), item.labels)
    small = np.asarray(Image.fromarray(item.image).resize((64, 32)))
    return Item("copy", small, np.ascontiguousarray(item.labels[::2, ::2]))


def test_plain_pictures_are_not_called_near_duplicates() -> None:
    flat = [Item(f"f{level}", np.full((6, 8, 3), level, np.uint8), LABELS) for level in range(40)]
    assert not found(check(Memory({"train": flat[:20], "val": flat[20:]})), "near-duplicate")


def test_frames_of_one_drive_in_two_splits_are_a_warning() -> None:
    parts = {
        "train": items([f"0016E5_{n}" for n in numbers(10)] + [f"0001TP_{n}" for n in numbers(10)]),
        "val": items([f"0016E5_{n}" for n in numbers(10, 50)], seed=1),
    }
    finding = the(check(Memory(parts)), "shared-drive")
    assert finding.severity == "warning"
    assert "0016E5" in finding.message
    assert "0001TP" not in finding.message
    assert "optimistic" in finding.message


@pytest.mark.parametrize(
    ("train", "val"), [("img_{}", "img_{}"), ("{}", "{}"), ("2007_{}", "2007_{}"), ("aachen_{}", "bochum_{}")]
)
def test_running_numbers_years_and_separate_drives_are_no_leak(train: str, val: str) -> None:
    parts = {
        "train": items([train.format(n) for n in numbers(20)]),
        "val": items([val.format(n) for n in numbers(10, 50)], seed=1),
    }
    assert not found(check(Memory(parts)), "shared-drive")


def test_tiny_and_empty_splits_and_missing_validation_are_found() -> None:
    diagnosis = check(Memory({"train": items(numbers(3)), "val": []}))
    assert "3 images" in the(diagnosis, "tiny-split").message
    assert the(diagnosis, "empty-split").severity == "error"
    assert found(check(Memory({"train": items(numbers(20))})), "no-validation")


def test_a_dominant_class_and_a_tiny_class_are_found() -> None:
    labels = np.zeros((60, 60), np.uint8)
    labels[0, 0], labels[0, 1:9] = 1, 2
    diagnosis = check(Memory({"train": items(numbers(20), labels), "val": items(numbers(10), labels, 1)}))
    assert "'a'" in the(diagnosis, "imbalance").message
    assert "'b'" in the(diagnosis, "tiny-class").message


@pytest.mark.parametrize(
    "labels",
    [LABELS.astype(np.int64), LABELS[:-1], np.zeros((0, 8), np.uint8)],
    ids=["type", "shape", "empty"],
)
def test_arrays_of_wrong_type_or_shape_from_other_datasets_are_refused(labels: NDArray[Any]) -> None:
    odd = Item("odd", items(["x"])[0].image, labels)
    finding = the(check(Memory({**healthy(), "train": [*healthy()["train"], odd]})), "size-mismatch")
    assert finding.file == "odd"


def test_a_label_beyond_the_classes_of_another_dataset_is_refused() -> None:
    odd = Item("odd", items(["x"])[0].image, LABELS + np.uint8(7))
    finding = the(check(Memory({**healthy(), "train": [*healthy()["train"], odd]})), "id-out-of-range")
    assert (finding.severity, finding.file) == ("error", "odd")


def test_many_findings_of_one_kind_are_listed_in_part_and_counted() -> None:
    blank = items(numbers(50, 100), np.full((6, 8), 255, np.uint8))
    findings = found(check(Memory({**healthy(), "train": [*healthy()["train"], *blank]})), "all-ignored")
    assert len(findings) == MAX_LISTED + 1
    assert "30 more" in findings[-1].message


def test_a_limit_reads_that_many_spread_over_the_split_and_softens_missing_classes() -> None:
    first = items(numbers(20), np.zeros((6, 8), np.uint8))
    parts = {"train": [*first, *items(numbers(1, 90))], "val": items(numbers(21, 50), seed=1)}
    assert check(Memory(parts), limit=5).splits["train"].read == 5
    missing = found(check(Memory({**parts, "train": first}), limit=5), "missing-class")
    assert {finding.severity for finding in missing} == {"info"}


def test_what_a_dataset_says_of_itself_is_included() -> None:
    told = (("warning", "unpaired", "x.png", "x.png has no mask", "Add it."),)
    finding = the(check(Memory(healthy(), TASK, told)), "unpaired")
    assert finding == Finding(
        severity="warning", kind="unpaired", file="x.png", message="x.png has no mask", fix="Add it."
    )


def test_a_dataset_that_cannot_be_opened_becomes_a_finding(tmp_path: Path) -> None:
    diagnosis = examine(lambda: Folder(path=tmp_path / "nowhere"))
    assert not diagnosis.ok
    assert "nowhere" in diagnosis.findings[0].message
    (tmp_path / "empty").mkdir()
    assert not examine(lambda: Folder(path=tmp_path / "empty")).ok
    one = write_pairs(tmp_path / "one", ["a"])
    assert not examine(lambda: Folder(path=one)).ok


def test_errors_come_first_and_stop_training_with_the_worst_told(tmp_path: Path) -> None:
    root = tree(tmp_path)
    for name in numbers(6):
        (root / "images" / "train" / f"{name}.png").write_bytes(b"")
    diagnosis = check(Folder(path=tmp_path, classes=("a", "b", "c")))
    ranks = [SEVERITIES.index(finding.severity) for finding in diagnosis.findings]
    assert ranks == sorted(ranks)
    with pytest.raises(DataProblem, match=r"6 error.*\n(.*\n)*.*0000\.png(.*\n)*.*3 more"):
        diagnosis.raise_for_errors()


def test_warnings_do_not_stop_training() -> None:
    diagnosis = check(Memory({"train": items(numbers(3))}))
    assert diagnosis.findings
    diagnosis.raise_for_errors()


def test_a_diagnosis_is_plain_json_with_the_promised_fields(tmp_path: Path) -> None:
    (tree(tmp_path) / "images" / "train" / "0000.png").write_bytes(b"no picture")
    document = json.loads(json.dumps(check(Folder(path=tmp_path)).document()))
    assert document["ok"] is False
    assert {"severity", "kind", "file", "message", "fix"} == set(document["findings"][0])
    assert all(finding["fix"] and finding["message"] for finding in document["findings"])


def test_findings_about_labels_name_the_mask(tmp_path: Path) -> None:
    root = tree(tmp_path / "binary", ids=(0, 255))
    assert the(check(Folder(path=root)), "binary-mask").file == str(root / "masks/train/0000.png")
    root = tree(tmp_path / "shifted", ids=(1, 2))
    assert the(check(Folder(path=root)), "off-by-one").file == str(root / "masks/train/0000.png")
    root = tree(tmp_path / "blank")
    blank = write_mask(root / "masks/val/0050.png", ids=(255,))
    assert the(check(Folder(path=root)), "all-ignored").file == str(blank)


def test_findings_about_no_single_file_name_the_folder(tmp_path: Path) -> None:
    root = write_pairs(tmp_path, numbers(5), split="train")
    findings = check(Folder(path=root)).findings
    assert {finding.kind for finding in findings} == {"tiny-split", "no-validation"}
    assert {finding.file for finding in findings} == {str(root)}


@pytest.mark.parametrize(
    ("problem", "message", "fix"),
    [
        ("'x' is a path; write e.g. folder:x.", "'x' is a path", "Write e.g. folder:x."),
        (
            "x is empty. Rename, or give images=... and masks=...",
            "x is empty",
            "Rename, or give images=... and masks=...",
        ),
        (
            "x is no folder: expected a/b beside c. Check it.",
            "x is no folder: expected a/b beside c",
            "Check it.",
        ),
        ("one image; add some, or give val=0.", "one image", "Add some, or give val=0."),
    ],
)
def test_an_error_while_opening_is_divided_into_message_and_fix(problem: str, message: str, fix: str) -> None:
    def fail() -> Any:
        raise DataProblem(problem)

    (finding,) = examine(fail, named="folder:x").findings
    assert (finding.file, finding.message, finding.fix) == ("folder:x", message, fix)


def test_masks_saved_as_jpeg_are_told_to_be_png(tmp_path: Path) -> None:
    for number in numbers(4):
        write_image(tmp_path / "images" / f"{number}.png", (32, 32))
        mask = np.zeros((32, 32), np.uint8)
        mask[5:20, 7:21] = 255
        path = tmp_path / "masks" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(mask).save(path)
    diagnosis = check(Folder(path=tmp_path))
    assert not diagnosis.ok
    assert "PNG" in diagnosis.errors[0].fix


def test_the_message_that_stops_a_training_reads_well(tmp_path: Path) -> None:
    root = tree(tmp_path)
    (root / "images/train/0003.png").write_bytes(b"")
    with pytest.raises(DataProblem) as caught:
        check(Folder(path=root)).raise_for_errors()
    assert ".." not in str(caught.value).replace(str(root), "")


def test_binary_masks_in_one_split_are_told(tmp_path: Path) -> None:
    write_pairs(tmp_path, numbers(20), (0, 1), split="train")
    root = write_pairs(tmp_path, numbers(10, 50), (0, 255), split="val")
    finding = the(check(Folder(path=root)), "binary-mask")
    assert (finding.severity, finding.file) == ("warning", str(root / "masks/val/0050.png"))
    assert "split 'val'" in finding.message
