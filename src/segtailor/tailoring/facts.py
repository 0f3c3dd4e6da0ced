"""The data of a tailoring: samples that cannot be used are left out by name, and the rest is described in figures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from segtailor.core.errors import DataProblem
from segtailor.core.task import needs_classes
from segtailor.data.annotations.dataset import AnnotatedDataset
from segtailor.data.cache import Pixels, open_pixels
from segtailor.data.dataset import Dataset
from segtailor.data.doctor import Diagnosis, check, examine
from segtailor.data.locate import locate, with_option
from segtailor.data.pairs import FileDataset
from segtailor.tailoring.stage import DataOutcome, StageContext
from segtailor.verbs.train import MAX_CHECKED

MAX_SHARE_SET_ASIDE = 0.2  # of the samples; with more bad files the data itself is wrong


@dataclass(frozen=True, kw_only=True)
class UsableData:
    """A dataset without the samples that cannot be used; `data` is its name as text."""

    data: str
    dataset: Dataset
    diagnosis: Diagnosis
    set_aside: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """Figures of the training split; `usual` is the most frequent size (height, width) of its images."""

    images: int
    validation: int
    classes: int
    usual: tuple[int, int]
    smallest: tuple[int, int]
    largest: tuple[int, int]


def examine_data(stage: StageContext) -> DataOutcome:
    """Stage `data`: check the data as it was given."""
    recipe = stage.recipe

    def opened() -> Dataset:
        given = recipe.request.data
        return stage.dataset if given == recipe.data else locate(given)

    diagnosis = examine(opened, limit=MAX_CHECKED)
    return DataOutcome(
        ok=diagnosis.ok, findings=diagnosis.findings, splits=diagnosis.splits, used=recipe.data
    )


def usable_data(data: str) -> UsableData:
    """Check a dataset; samples with bad files are left out by name, every other error raises."""
    dataset = locate(data)
    needs_classes(dataset.task, "tailor")
    diagnosis = check(dataset, limit=MAX_CHECKED)
    names = _bad_samples(dataset, diagnosis)
    if not names:
        diagnosis.raise_for_errors()
        return UsableData(data=data, dataset=dataset, diagnosis=diagnosis)
    before = dataset.skip if isinstance(dataset, FileDataset | AnnotatedDataset) else ()
    reduced = with_option(data, "skip", ",".join([*before, *names]))
    rest = locate(reduced)
    check(rest, limit=MAX_CHECKED).raise_for_errors()
    return UsableData(data=reduced, dataset=rest, diagnosis=diagnosis, set_aside=names)


def data_facts(data: str, dataset: Dataset, cache: Path) -> DataFacts:
    """Decode the splits (once; the cache keeps them) and return their figures. `data` is the name of the dataset."""
    if "val" not in dataset.splits:
        raise DataProblem(
            f"{data} has no split 'val', so there are no unseen images to judge by; add one, or e.g. ?val=0.2."
        )
    train = open_pixels(dataset, "train", cache)
    sizes = [(int(height), int(width)) for height, width in train.sizes]
    return DataFacts(
        images=len(train),
        validation=len(open_pixels(dataset, "val", cache)),
        classes=dataset.task.outputs,
        usual=Counter(sizes).most_common(1)[0][0],
        smallest=_extreme_sides(train, largest=False),
        largest=_extreme_sides(train, largest=True),
    )


def _extreme_sides(pixels: Pixels, *, largest: bool) -> tuple[int, int]:
    height, width = (pixels.sizes.max(axis=0) if largest else pixels.sizes.min(axis=0)).tolist()
    return int(height), int(width)


def _bad_samples(dataset: Dataset, diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return the samples whose files have errors; none if these are too many, or if there are other errors."""
    if not isinstance(dataset, FileDataset | AnnotatedDataset) or not diagnosis.errors:
        return ()
    bad_files = {finding.file for finding in diagnosis.errors if finding.file}
    samples = _files_by_sample(dataset)
    names = {name for name, files in samples.items() if files & bad_files}
    explained = {file for name in names for file in samples[name]}
    too_many = len(names) > MAX_SHARE_SET_ASIDE * len(samples)
    return () if bad_files - explained or too_many else tuple(sorted(names))


def _files_by_sample(dataset: FileDataset | AnnotatedDataset) -> dict[str, set[str]]:
    """Return the files that belong to one sample alone; a COCO file holds many, so its faults blame no single one."""
    if isinstance(dataset, FileDataset):
        table: dict[str, set[str]] = {}
        for pairing in dataset.pairings.values():
            for name, files in pairing.pairs.items():
                table.setdefault(name, set()).update(str(path) for path in files)
            for path in pairing.images_alone:
                table.setdefault(path.stem, set()).add(str(path))
        return table
    pictures = {name: picture for part in dataset.parts.values() for name, picture in part.items()}
    uses = Counter(picture.file for picture in pictures.values())
    return {
        name: {str(picture.image), *([str(picture.file)] if uses[picture.file] == 1 else [])}
        for name, picture in pictures.items()
    }
