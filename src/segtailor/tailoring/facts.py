"""What a tailoring is made for: facts of the data, the machine and the target that its choices follow from."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from segtailor.core.errors import DataProblem
from segtailor.core.task import needs_classes
from segtailor.data.cache import Pixels, open_pixels
from segtailor.data.dataset import Dataset
from segtailor.data.doctor import Diagnosis, check
from segtailor.data.locate import locate, with_option
from segtailor.data.pairs import FileDataset
from segtailor.training.device import pick_device
from segtailor.verbs.train import MAX_CHECKED

MOST_SET_ASIDE = 0.2  # of the samples; more means that the data is wrong, not a few files of it


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """The training split in figures; `usual` is the most frequent size (height, width) of its images."""

    images: int
    validation: int
    classes: int
    usual: tuple[int, int]
    smallest: tuple[int, int]
    largest: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Usable:
    """A dataset without the samples that cannot be used, as text that names it."""

    data: str
    diagnosis: Diagnosis
    set_aside: tuple[str, ...] = ()


def usable(data: str) -> Usable:
    """Examine a dataset; files that alone are at fault are left out by name, anything else at fault raises."""
    dataset = locate(data)
    needs_classes(dataset.task, "tailor")
    diagnosis = check(dataset, limit=MAX_CHECKED)
    names = _faulty(dataset, diagnosis)
    if not names:
        diagnosis.raise_for_errors()
        return Usable(data=data, diagnosis=diagnosis)
    before = dataset.skip if isinstance(dataset, FileDataset) else ()
    mended = with_option(data, "skip", ",".join([*before, *names]))
    check(locate(mended), limit=MAX_CHECKED).raise_for_errors()
    return Usable(data=mended, diagnosis=diagnosis, set_aside=names)


def data_facts(data: str, cache: Path) -> DataFacts:
    """Decode the splits (once; they are kept) and return their figures."""
    dataset = locate(data)
    if "val" not in dataset.splits:
        raise DataProblem(
            f"{data} has no split 'val', so nothing unseen is left to judge by; add one, or e.g. ?val=0.2."
        )
    train = open_pixels(dataset, "train", cache)
    sizes = [(int(height), int(width)) for height, width in train.sizes]
    return DataFacts(
        images=len(train),
        validation=len(open_pixels(dataset, "val", cache)),
        classes=dataset.task.outputs,
        usual=Counter(sizes).most_common(1)[0][0],
        smallest=_corner(train, largest=False),
        largest=_corner(train, largest=True),
    )


def on_accelerator(device: str | None) -> bool:
    """Tell whether training happens on something faster than the processor."""
    return pick_device(device).type != "cpu"


def _corner(pixels: Pixels, *, largest: bool) -> tuple[int, int]:
    height, width = (pixels.sizes.max(axis=0) if largest else pixels.sizes.min(axis=0)).tolist()
    return int(height), int(width)


def _faulty(dataset: Dataset, diagnosis: Diagnosis) -> tuple[str, ...]:
    """Name the samples whose own files are at fault, if the dataset can do without them."""
    if not isinstance(dataset, FileDataset) or not diagnosis.errors:
        return ()
    blamed = {finding.file for finding in diagnosis.errors if finding.file}
    samples = {
        name: {str(path) for path in files}
        for pairing in dataset.pairings.values()
        for name, files in pairing.pairs.items()
    }
    names = {name for name, files in samples.items() if files & blamed}
    alone = {path for pairing in dataset.pairings.values() for path in pairing.images_alone}
    names |= {path.stem for path in alone if str(path) in blamed}
    explained = {file for name in names for file in samples.get(name, set())} | {str(path) for path in alone}
    if blamed - explained or len(names) > MOST_SET_ASIDE * (len(samples) + len(alone)):
        return ()
    return tuple(sorted(names))
