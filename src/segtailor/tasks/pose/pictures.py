"""Crops of people put back into their pictures, so that all people of one picture are scored together.

A network sees one crop at a time, and its figures are about pictures: someone found in the box of a neighbour is
matched with that neighbour, and a person whom no box shows is missed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from segtailor.tasks.pose.crops import Crop
from segtailor.tasks.pose.oks import Found, oks
from segtailor.tasks.pose.persons import Person
from segtailor.tasks.pose.skeletons import Skeleton

SURE_PEAK = 0.2  # lower peaks do not count in the score of a person
SAME_PERSON_OKS = 0.9  # of two people found in one picture that are more similar, only the surer one is kept


@dataclass(frozen=True, kw_only=True, eq=False)
class AllPeople:
    """All annotated people of a split, also groups and people without joints, and the number of its boxes.

    `detected` says that boxes come from a detector: a person can then have several boxes, or none.
    """

    people: Sequence[Person]
    boxes: int
    detected: bool = False

    @cached_property
    def by_picture(self) -> Mapping[str, Sequence[Person]]:
        """The people of every picture that has any."""
        found: dict[str, list[Person]] = {}
        for person in self.people:
            found.setdefault(person.picture, []).append(person)
        return found

    def shown(self, cuts: Sequence[CutOut]) -> list[Person]:
        """Return the people that these crops are compared with: those of their pictures, or all where all crops are."""
        if len(cuts) >= self.boxes:
            return list(self.people)
        return [
            person
            for name in dict.fromkeys(cut.person.picture for cut in cuts)
            for person in self.by_picture.get(name, ())
        ]


class CutOut(Protocol):
    """A crop that knows whose box it shows, where it lies in the picture, and who else is in the split."""

    @property
    def person(self) -> Person:
        """The person, or the box of a detector with no labelled joint."""

    @property
    def crop(self) -> Crop:
        """The map from the picture to the crop."""

    @property
    def everyone(self) -> AllPeople | None:
        """The people of the split; None where they are not known."""


def from_pictures(samples: Sequence[object]) -> TypeGuard[Sequence[CutOut]]:
    """Tell whether all samples are crops of pictures whose people are known."""
    return bool(samples) and all(getattr(sample, "everyone", None) is not None for sample in samples)


def person_score(joints: NDArray[np.floating], box_score: float = 1.0) -> float:
    """Return how sure a found person (joints, 3) is: the mean of the peaks above `SURE_PEAK`, times the box's score."""
    peaks = joints[:, 2][joints[:, 2] > SURE_PEAK]
    return float(peaks.mean()) * box_score if len(peaks) else 0.0


def found_people(
    joints: NDArray[np.floating], cuts: Sequence[CutOut], skeleton: Skeleton
) -> tuple[list[Found], list[Person]]:
    """Return everyone found in crops (people, joints, 3), in pixels of the pictures, and the people to compare with."""
    found: dict[str, list[tuple[Found, Person]]] = {}
    for rows, cut in zip(joints, cuts, strict=True):
        person = cut.person
        one = Found(
            picture=person.picture,
            joints=cut.crop.to_picture(rows)[:, :2],
            score=person_score(rows, person.score),
        )
        found.setdefault(person.picture, []).append((one, person))
    everyone = cuts[0].everyone
    if everyone is None:
        raise ValueError("crops whose split is not known cannot be scored together")
    if everyone.detected:
        found = {name: without_repeats(people, skeleton) for name, people in found.items()}
    return [one for people in found.values() for one, _ in people], everyone.shown(cuts)


def without_repeats(people: Sequence[tuple[Found, Person]], skeleton: Skeleton) -> list[tuple[Found, Person]]:
    """Leave out who was found twice in a picture, as detectors give people several boxes (Papandreou et al., 2017)."""
    kept: list[tuple[Found, Person]] = []
    for one, box in sorted(people, key=lambda pair: -pair[0].score):
        if all(_similarity(one, box, *other, skeleton) <= SAME_PERSON_OKS for other in kept):
            kept.append((one, box))
    return kept


def _similarity(one: Found, box: Person, other: Found, other_box: Person, skeleton: Skeleton) -> float:
    area = (box.box[2] * box.box[3] + other_box.box[2] * other_box.box[3]) / 2
    known = np.column_stack((np.asarray(other.joints)[:, :2], np.ones(skeleton.count))).astype(np.float32)
    return oks(
        np.asarray(one.joints),
        Person(id="", picture=one.picture, box=other_box.box, joints=known, area=area),
        skeleton,
    )
