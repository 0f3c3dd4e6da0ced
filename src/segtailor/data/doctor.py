"""The dataset doctor: reads every sample before training, reports what is wrong and how to correct it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segtailor.core.codec import Json, to_json
from segtailor.core.errors import DataProblem, UserError
from segtailor.core.task import IGNORE, Task
from segtailor.data.annotations.dataset import AnnotatedDataset
from segtailor.data.checks.census import Census, explain_masks, take_census
from segtailor.data.checks.rules import CHECKS, CLASSLESS_RULES, counter, fault_finding, label_counts
from segtailor.data.dataset import Dataset, Finding, HasProblems, Sample, Severity
from segtailor.data.files import RawMask
from segtailor.data.legend import LabelMap, numbered_names
from segtailor.data.pairs import FileDataset, FileSample, Pairing
from segtailor.data.survey import MaskProblem

__all__ = ["Diagnosis", "Finding", "SplitFacts", "check", "examine"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
MAX_LISTED = 20  # findings of one kind and severity; the rest are counted
MAX_ERRORS_IN_MESSAGE = 3  # of the error that stops a training
UNKNOWN_TASK = Task(classes=("unknown",))  # used where the classes cannot be derived


@dataclass(frozen=True, kw_only=True)
class SplitFacts:
    """Figures of one split: number of images, of images read, share of each class and of ignored pixels."""

    images: int
    read: int
    shares: Mapping[str, float]
    ignored: float


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """All findings, errors first, and figures of each split."""

    findings: tuple[Finding, ...] = ()
    splits: Mapping[str, SplitFacts] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether training may start: there is no error (warnings are allowed)."""
        return not self.errors

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that stop a training."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    def document(self) -> dict[str, Json]:
        """Return plain JSON data."""
        return {
            "ok": self.ok,
            "findings": [to_json(finding) for finding in self.findings],
            "splits": {name: to_json(facts) for name, facts in self.splits.items()},
        }

    def raise_for_errors(self) -> None:
        """Raise `DataProblem` naming the first errors, if there are any."""
        if self.ok:
            return
        lines = [
            f"- {_place(finding)}{finding.message.rstrip('.')}. {finding.fix}"
            for finding in self.errors[:MAX_ERRORS_IN_MESSAGE]
        ]
        more = len(self.errors) - MAX_ERRORS_IN_MESSAGE
        if more > 0:
            lines.append(f"- and {more} more")
        raise DataProblem(
            f"the dataset has {len(self.errors)} error(s); correct them before training:", *lines
        )


def examine(open_dataset: Callable[[], Dataset], *, named: str = "", limit: int | None = None) -> Diagnosis:
    """Open a dataset and check it; a problem while opening becomes a finding with `named` as its file."""
    try:
        dataset = open_dataset()
        return check(dataset, limit=limit)
    except DataProblem as problem:
        return Diagnosis(findings=(replace(_unusable(problem), file=named),))


def check(dataset: Dataset, *, limit: int | None = None) -> Diagnosis:
    """Check every sample of every split (at most `limit` per split, evenly spread)."""
    if limit is not None and limit < 1:
        raise UserError(
            f"limit: {limit} samples say nothing about a dataset; give 1 or more, or leave it out."
        )
    dataset = getattr(dataset, "annotated", dataset)  # boxes of a detector have no joints to examine
    known = list(_known_problems(dataset))
    try:
        task = dataset.task
        if isinstance(dataset, FileDataset) and _pairings(dataset):
            dataset.labels  # noqa: B018 - a contradictory class list raises here
    except DataProblem as problem:
        return _without_classes(dataset, known, problem, limit)
    checks = CHECKS[task.kind]
    census: list[Census] = []
    for split in dataset.splits:
        try:
            samples = _samples(dataset, split)
        except DataProblem as problem:
            known.append(_unusable(problem))
            continue
        alone = _alone(dataset, split)
        census.append(take_census(split, samples, task=task, count=counter(task), limit=limit, alone=alone))
    findings = [
        *_nameless_colours(dataset),
        *(found for rule in checks.rules for found in rule(census, task)),
    ]
    return Diagnosis(
        findings=_placed([*known, *findings], dataset),
        splits={part.split: _facts(part, task) for part in census},
    )


def _without_classes(
    dataset: Dataset, known: list[Finding], problem: DataProblem, limit: int | None
) -> Diagnosis:
    """Report why the classes are unknown, and check everything that does not depend on them."""
    pairings = _pairings(dataset)
    census = [
        take_census(
            split,
            [
                FileSample(name=name, image=image, mask=mask, labels=UnknownMeaning())
                for name, (image, mask) in pairing.pairs.items()
            ],
            task=UNKNOWN_TASK,
            count=label_counts,
            limit=limit,
            alone=pairing.images_alone,
        )
        for split, pairing in pairings.items()
    ]
    faults = [fault for split in census for fault in split.faults]
    messages = [*(fault.message for fault in faults), *(found.message for found in known)]
    findings = [found for rule in CLASSLESS_RULES for found in rule(census, UNKNOWN_TASK)]
    if isinstance(problem, MaskProblem):
        masks = [mask for pairing in pairings.values() for _, mask in pairing.pairs.values()]
        findings += [fault_finding(fault) for fault in explain_masks(masks, problem)]
    elif not any(message in str(problem) for message in messages):
        findings.append(_unusable(problem))
    return Diagnosis(
        findings=_placed([*known, *findings], dataset),
        splits={
            part.split: SplitFacts(images=part.total, read=len(part.records), shares={}, ignored=0.0)
            for part in census
        },
    )


@dataclass(frozen=True, kw_only=True)
class UnknownMeaning:
    """The meaning of masks whose classes are unknown: all pixels are ignored, but files and sizes are checked."""

    fingerprint: str = "unread"

    def apply(self, raw: RawMask, path: Path) -> NDArray[Any]:
        """Return an ignored label for every pixel of the mask."""
        del path
        return np.full(raw.values.shape[:2], IGNORE, np.uint8)


def _placed(findings: Iterable[Finding], dataset: Dataset) -> tuple[Finding, ...]:
    """Sort findings; those without a file get the dataset's folder or list, if it has one."""
    path = str(getattr(dataset, "path", ""))
    return tuple(found if found.file else replace(found, file=path) for found in _arranged(findings))


def _arranged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort by severity, keep the first few of each kind and say how many more there are."""
    groups: dict[tuple[Severity, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.severity, finding.kind), []).append(finding)
    ordered = sorted(groups.items(), key=lambda item: SEVERITIES.index(item[0][0]))
    return tuple(finding for _, group in ordered for finding in _capped(group))


def _capped(group: Sequence[Finding]) -> Iterator[Finding]:
    yield from group[:MAX_LISTED]
    rest = len(group) - MAX_LISTED
    if rest > 0:
        more = f"and {rest} more of the same kind, up to {group[-1].file or 'the last one'}"
        yield replace(group[MAX_LISTED], message=more)


def _known_problems(dataset: Dataset) -> Iterator[Finding]:
    """Report the problems that the dataset itself knows, and files without a partner."""
    if isinstance(dataset, HasProblems):
        for severity, kind, file, message, fix in dataset.problems():
            yield Finding(severity=severity, kind=kind, file=file, message=message, fix=fix)
    for split, pairing in _pairings(dataset).items():
        for wrong in pairing.wrong:
            yield replace(_unusable(DataProblem(wrong.message)), kind="listing", file=str(wrong.file))
        for image in pairing.images_alone:
            yield Finding(
                severity="error",
                kind="unpaired",
                file=str(image),
                message=f"this image of split '{split}' has no mask",
                fix="Add a mask of the same name, or move the image away.",
            )
        for mask in pairing.masks_alone:
            yield Finding(
                severity="warning",
                kind="unpaired",
                file=str(mask),
                message=f"this mask of split '{split}' has no image and is not used",
                fix="Add the image of the same name, or remove the mask.",
            )


def _nameless_colours(dataset: Dataset) -> Iterator[Finding]:
    """Report colour masks without a palette: their classes were derived from the colours found."""
    labels = getattr(dataset, "labels", None)
    names = dataset.task.classes
    if isinstance(labels, LabelMap) and labels.colours and names == numbered_names(len(names)):
        yield Finding(
            severity="warning",
            kind="colour-mask",
            file=next(
                (str(mask) for part in _pairings(dataset).values() for _, mask in part.pairs.values()), ""
            ),
            message=f"the masks hold colours and no palette was given; {len(names)} colours were found and numbered",
            fix="Name the classes and their colours in classes.yaml or palette.json beside the images.",
        )


def _pairings(dataset: Dataset) -> Mapping[str, Pairing]:
    """Return the matched files of a file dataset; nothing for other datasets."""
    found: Mapping[str, Pairing] = getattr(dataset, "pairings", {})
    return found


def _alone(dataset: Dataset, split: str) -> tuple[Path, ...]:
    """Return the images of a split that have no mask."""
    pairing = _pairings(dataset).get(split)
    return () if pairing is None else pairing.images_alone


def _samples(dataset: Dataset, split: str) -> Sequence[Sample]:
    """Return the samples of a split; where some images lack masks or annotations, those that have one."""
    if isinstance(dataset, AnnotatedDataset):
        return dataset.usable(split)
    pairing = _pairings(dataset).get(split)
    if pairing is None or not isinstance(dataset, FileDataset):
        return dataset.samples(split)
    return dataset.of(pairing.pairs)


def _facts(part: Census, task: Task) -> SplitFacts:
    pixels = max(int(part.counts.sum()), 1)
    return SplitFacts(
        images=part.total,
        read=len(part.records),
        shares=CHECKS[task.kind].shares(part.counts, task),
        ignored=float(part.counts[task.ignore] / pixels),
    )


def _unusable(problem: DataProblem) -> Finding:
    """Turn an error into a finding; the last clause of its message is the fix."""
    parts = re.fullmatch(r"(.+)(?:\. (?=[A-Z])|; )(.+?)\.?", str(problem), flags=re.DOTALL)
    if parts is None:
        return Finding(
            severity="error",
            kind="unusable",
            message=str(problem),
            fix="Correct the dataset's files or options.",
        )
    fix = parts[2][0].upper() + parts[2][1:]
    return Finding(severity="error", kind="unusable", message=parts[1], fix=f"{fix}.")


def _place(finding: Finding) -> str:
    return f"{finding.file}: " if finding.file else ""
